// Tables, certificates and settings, and the function that draws each kind of block.

/** Explicit roles: the style sheet of a phone changes the display of rows, which removes implicit ones. */
function cellOf(cell, head, isFirst, words) {
  const name = [cell.tone, words ? "words" : ""].filter(Boolean).join(" ");
  return isFirst
    ? element("th", { class: name || null, scope: "row", role: "rowheader" }, toned(cell))
    : element("td", { class: name || null, role: "cell", "data-label": head }, ...(cell.text ? [toned(cell)] : []));
}

function tableShape(table) {
  const head = table.head.map((name, i) => element("th", { scope: "col", role: "columnheader", class: table.words.includes(i) ? "words" : null }, name));
  const rows = table.rows.map((cells) => element("tr", { role: "row" },
    ...cells.map((cell, i) => cellOf(cell, table.head[i], i === 0, table.words.includes(i)))));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title || "Values" },
    element("table", { role: "table" },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...head)), element("tbody", { role: "rowgroup" }, ...rows)));
}

// Columns of a table that fits into half the width of the page.
const NARROW = 3;

function tableBlock(block) {
  return { node: element("section", { class: block.head.length <= NARROW ? "block" : "block wide", "data-key": block.key }, element("h3", {}, block.title), tableShape(block)) };
}

function cardBlock(block) {
  const holds = block.verdict.tone === "good";
  return { node: element("section", { class: `block wide card ${holds ? "holds" : "fails"}`, "data-key": block.key },
    element("h3", {}, block.title),
    element("p", { class: `verdict ${block.verdict.tone}` }, toned(block.verdict)),
    element("ul", {}, ...block.statements.map((text) => element("li", {}, text))),
    tableShape(block.table)) };
}

function detailsBlock(block) {
  return { node: element("details", { class: "block wide", "data-key": block.key }, element("summary", {}, block.title),
    element("dl", { class: "entries" }, ...block.entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]))) };
}

const BLOCKS = {
  lines: linesFigure, scatter: scatterFigure, table: tableBlock, card: cardBlock,
  kernels: kernelsBlock, grid: gridBlock, arena: arenaBlock, details: detailsBlock,
};

/** A block whose contents can change: in place if it has `update`, else by making it again. */
function mounted(block) {
  let [now, made] = [block, BLOCKS[block.type](block)];
  return {
    get node() { return made.node; },
    update(next) {
      if (same(now, next)) return;
      if (made.update) {
        made.update(next);
      } else {
        const old = made;
        made = BLOCKS[next.type](next);
        if (old.node.open) made.node.open = true;
        old.node.replaceWith(made.node);
      }
      now = next;
    },
  };
}
