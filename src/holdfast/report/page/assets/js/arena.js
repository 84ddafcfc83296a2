// The map of Point Gather: apples, bombs, the path with its heading, and nature's pushes.

const UNIT = 50;
const PUSH_MAGNIFIED = 3;
const ROOM = 0.6;

function onMap([x, y]) {
  return [x * UNIT, -y * UNIT];
}

function objectShape(block, drive, index, step) {
  const [x, y] = onMap(drive.objects[index]);
  const apple = index < block.apples;
  const colour = ink(apple ? "apple" : "bomb");
  const caught = drive.caught_at[index] > 0 && drive.caught_at[index] <= step;
  const group = shape("g", {}, shape("circle", {
    cx: x, cy: y, r: block.reach * UNIT, fill: colour, "fill-opacity": caught ? 0.05 : 0.13, stroke: colour, "stroke-width": 1.2, "stroke-dasharray": "5 4",
  }));
  if (caught) {
    group.append(shape("path", { d: `M${x - 8} ${y - 8} L${x + 8} ${y + 8} M${x + 8} ${y - 8} L${x - 8} ${y + 8}`, stroke: colour, "stroke-width": 3.5 }));
    group.append(shape("text", { x: x + 13, y: y - 9, "font-size": 17, "font-weight": 600, fill: colour }, apple ? "+10" : "−1"));
  } else if (apple) {
    group.append(shape("circle", { cx: x, cy: y, r: 10, fill: colour }));
  } else {
    group.append(shape("rect", { x: x - 8, y: y - 8, width: 16, height: 16, fill: colour, transform: `rotate(45 ${x} ${y})` }));
  }
  return group;
}

function pathShape(drive, step) {
  const places = drive.path.slice(0, step + 1).map(onMap);
  const colour = ink("path");
  const [x, y] = places[places.length - 1];
  const heading = drive.headings[step];
  const [startX, startY] = places[0];
  return shape("g", {},
    shape("polyline", { points: places.map((place) => place.join(",")).join(" "), fill: "none", stroke: colour, "stroke-width": 3.5, "stroke-linejoin": "round" }),
    ...places.slice(1).map(([cx, cy]) => shape("circle", { cx, cy, r: 4.5, fill: colour })),
    shape("circle", { cx: startX, cy: startY, r: 8, fill: ink("surface"), stroke: colour, "stroke-width": 3 }),
    arrow(x, y, 32 * Math.cos(heading), -32 * Math.sin(heading), { colour, width: 4, head: 14 }),
    shape("circle", { cx: x, cy: y, r: 9, fill: colour, stroke: ink("surface"), "stroke-width": 2 }));
}

function pushShapes(drive, step) {
  return drive.pushes.slice(0, step).map(([px, py], i) => {
    const [x, y] = onMap(drive.path[i + 1]);
    const [dx, dy] = onMap([px * PUSH_MAGNIFIED, py * PUSH_MAGNIFIED]);
    const look = { colour: ink("push"), width: 2.5, head: 10, opacity: i === step - 1 ? 1 : 0.45 };
    return Math.hypot(dx, dy) < 2 ? null : arrow(x - dx, y - dy, dx, dy, look);
  }).filter(Boolean);
}

function arenaKey(block) {
  return element("ul", { class: "key" },
    keyEntry(() => [shape("circle", { cx: 12, cy: 11, r: 7, fill: ink("apple") })], "apple, pays 10"),
    keyEntry(() => [shape("rect", { x: 7, y: 6, width: 10, height: 10, fill: ink("bomb"), transform: "rotate(45 12 11)" })], "bomb, pays −1 and costs 1"),
    keyEntry(() => [arrow(2, 11, 21, 0, { colour: ink("path"), width: 3, head: 8 })], "path and heading"),
    keyEntry(() => [arrow(2, 11, 21, 0, { colour: ink("push"), width: 3, head: 8 })], `disturbance of a step, drawn ${PUSH_MAGNIFIED} times as long`),
    keyEntry(() => [shape("circle", { cx: 12, cy: 11, r: 9, fill: "none", stroke: ink("quiet"), "stroke-dasharray": "4 3" })], "caught within the circle"));
}

function arenaBlock(block) {
  let chosen = Math.max(0, block.drives.findIndex((drive) => drive.name.startsWith("adversary of bombs")));
  const edge = (block.half_width + block.reach + ROOM) * UNIT;
  const half = block.half_width * UNIT;
  const drawing = shape("svg", { viewBox: `${-edge} ${-edge} ${2 * edge} ${2 * edge}`, role: "img", "aria-label": `${block.title}, seen from above. ${block.about}` });
  const totals = totalsList();
  const keyBox = element("div");
  const controls = player((step) => {
    const drive = block.drives[chosen];
    drawing.replaceChildren(
      shape("rect", { x: -half, y: -half, width: 2 * half, height: 2 * half, fill: ink("ground"), stroke: ink("quiet"), "stroke-width": 2 }),
      ...drive.objects.map((_, i) => objectShape(block, drive, i, step)), ...pushShapes(drive, step), pathShape(drive, step));
    totals.show(drive.totals, step);
    keyBox.replaceChildren(arenaKey(block));
  });
  const load = () => controls.load(block.drives[chosen].path.length - 1, block.drives[chosen].path.length - 1);
  repaints.add(controls.repaint);
  load();
  return { node: element("section", { class: "block wide", "data-key": block.key },
    element("div", { class: "caption" }, element("h3", {}, block.title), saveControl(block.title, () => drawingText(drawing))),
    element("p", { class: "about" }, block.about),
    element("div", { class: "stage" }, drawing, element("div", { class: "panel" },
      selectOf("episode under", block.drives.map((drive) => drive.name), chosen, (i) => { chosen = i; load(); }),
      controls.node, totals.node, keyBox))) };
}
