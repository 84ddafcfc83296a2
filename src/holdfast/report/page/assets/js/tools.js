// Small things that everything else is made with. Text only ever enters the page as text.

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

/** A number as a reader wants it: four digits, a real minus, powers of ten only where they help. */
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

/** Text with its verdict, which is a sign and not a colour alone. */
function toned(cell) {
  return (TONES[cell.tone] || "") + cell.text;
}

function selectOf(label, names, chosen, onChoice) {
  const select = element("select", { onchange: () => onChoice(Number(select.value)) });
  names.forEach((name, i) => select.append(element("option", { value: i }, name)));
  select.value = chosen;
  return element("label", { class: "choice" }, label, select);
}
