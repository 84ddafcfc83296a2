// The map of a grid world, with the policy, nature's pushes and an episode.

const CELL = 100;
const CELL_NAMES = { H: "hole", G: "goal" };
const LONGEST_PUSH = 0.42 * CELL;
const LEAST_SHOWN = 0.02;

function cellCentre(block, cell) {
  const columns = block.letters[0].length;
  return [(cell % columns + 0.5) * CELL, (Math.floor(cell / columns) + 0.5) * CELL];
}

function cellFill(letter) {
  return ink({ H: "hole", G: "goal" }[letter] || "ice");
}

function cellShape(block, letter, cell) {
  const [x, y] = cellCentre(block, cell);
  const group = shape("g", {}, shape("rect", {
    x: x - CELL / 2 + 2, y: y - CELL / 2 + 2, width: CELL - 4, height: CELL - 4, rx: 8, fill: cellFill(letter),
  }));
  if (block.marked.includes(cell)) {
    group.append(shape("rect", { x: x - 44, y: y - 44, width: 88, height: 88, rx: 6, fill: "none", stroke: ink("apple"), "stroke-width": 3, "stroke-dasharray": "7 5" }));
  }
  if (CELL_NAMES[letter]) {
    group.append(shape("text", { x, y: y + 6, "text-anchor": "middle", "font-size": 18, fill: letter === "H" ? "#d5dbe2" : ink("text") }, CELL_NAMES[letter]));
  }
  group.append(shape("text", { x: x - 40, y: y - 30, "font-size": 13, fill: letter === "H" ? "#aab4bf" : ink("quiet") }, String(cell)));
  return group;
}

function policyArrows(block, cell) {
  const [x, y] = cellCentre(block, cell);
  return block.policy[cell].map((probability, action) => {
    if (probability < LEAST_SHOWN) return null;
    const [right, down] = block.moves[action];
    return arrow(x + 5 * right, y + 5 * down, right * 38 * probability, down * 38 * probability, { colour: ink("path"), width: 4, head: 12 });
  });
}

function pushFactor(block) {
  const longest = Math.max(...block.pushes.flatMap((pushes) => pushes.arrows.map(([x, y]) => Math.hypot(x, y))), 1e-9);
  return LONGEST_PUSH / longest;
}

function pushArrow(block, pushes, cell) {
  const [x, y] = cellCentre(block, cell);
  const [dx, dy] = pushes.arrows[cell].map((part) => part * pushFactor(block));
  return Math.hypot(dx, dy) < 3 ? null : arrow(x, y, dx, dy, { colour: ink("push"), width: 3, head: 11, opacity: 0.9 });
}

/** The path of the episode up to a step. */
function walkShape(block, walk, step) {
  const places = walk.cells.slice(0, step + 1).map((cell) => cellCentre(block, cell));
  const [x, y] = places[places.length - 1];
  return shape("g", {},
    shape("polyline", { points: places.map((place) => place.join(",")).join(" "), fill: "none", stroke: ink("text"), "stroke-width": 4, "stroke-opacity": 0.35, "stroke-linejoin": "round" }),
    shape("circle", { cx: x, cy: y, r: 15, fill: "#e69f00", stroke: ink("text"), "stroke-width": 2.5 }));
}

function gridKey(block) {
  const factor = pushFactor(block) / CELL;
  return element("ul", { class: "key" },
    keyEntry(() => [arrow(2, 11, 21, 0, { colour: ink("path"), width: 3, head: 8 })], "policy: the length is the probability"),
    keyEntry(() => [arrow(2, 11, 21, 0, { colour: ink("push"), width: 3, head: 8 })], `nature's push, drawn ${written(Number(factor.toPrecision(2)))} times as long`),
    block.marked.length ? keyEntry(() => [shape("rect", { x: 3, y: 2, width: 18, height: 18, rx: 3, fill: "none", stroke: ink("apple"), "stroke-width": 2, "stroke-dasharray": "4 3" })], `non-zero ${block.marked_name}`) : null,
    keyEntry(() => [shape("circle", { cx: 12, cy: 11, r: 7, fill: "#e69f00", stroke: ink("text"), "stroke-width": 2 })], "position in the episode"));
}

function gridBlock(block) {
  const state = { walk: 0, pushes: 0 };
  const [rows, columns] = [block.letters.length, block.letters[0].length];
  const drawing = shape("svg", { viewBox: `0 0 ${columns * CELL} ${rows * CELL}`, role: "img", "aria-label": `Map of ${rows} by ${columns} cells. ${block.about}` });
  const totals = totalsList();
  const keyBox = element("div");
  const letters = [...block.letters.join("")];
  const ice = letters.map((letter, cell) => (CELL_NAMES[letter] ? -1 : cell)).filter((cell) => cell >= 0);
  const controls = player((step) => {
    const walk = block.walks[state.walk];
    const pushes = block.pushes[state.pushes];
    drawing.replaceChildren(
      ...letters.map((letter, cell) => cellShape(block, letter, cell)),
      ...ice.flatMap((cell) => policyArrows(block, cell)).filter(Boolean),
      ...(pushes ? ice.map((cell) => pushArrow(block, pushes, cell)).filter(Boolean) : []),
      walkShape(block, walk, step));
    totals.show(walk.totals, step);
    keyBox.replaceChildren(gridKey(block));
  });
  const load = () => controls.load(block.walks[state.walk].cells.length - 1, 0);
  repaints.add(controls.repaint);
  load();
  return { node: element("section", { class: "block wide", "data-key": block.key },
    element("div", { class: "caption" }, element("h3", {}, block.title), saveControl(block.title, () => drawingText(drawing))),
    element("p", { class: "about" }, block.about),
    element("div", { class: "stage" }, drawing, element("div", { class: "panel" },
      selectOf("nature's pushes", [...block.pushes.map((pushes) => pushes.name), "none"], 0, (i) => { state.pushes = i; controls.repaint(); }),
      selectOf("episode under the kernel", block.walks.map((walk) => walk.name), 0, (i) => { state.walk = i; load(); }),
      controls.node, totals.node, keyBox))) };
}
