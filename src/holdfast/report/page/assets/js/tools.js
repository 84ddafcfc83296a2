// Helpers for the other scripts. Text enters the page as text nodes only, never as HTML.

const SVG_SPACE = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_SPACE, tag), attributes, children);
}

/** A number with four digits and a minus sign; in scientific notation if very large or small. */
function written(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace(/-/g, "−");
}

function fileName(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "figure";
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

const TONES = { good: "✓ ", bad: "✗ ", unsure: "? " };

/** Text with the sign of its tone, so that colour is not the only mark. */
function toned(cell) {
  return (TONES[cell.tone] || "") + cell.text;
}

function selectOf(label, names, chosen, onChoice) {
  const select = element("select", { onchange: () => onChoice(Number(select.value)) });
  names.forEach((name, i) => select.append(element("option", { value: i }, name)));
  select.value = chosen;
  return element("label", { class: "choice" }, label, select);
}
