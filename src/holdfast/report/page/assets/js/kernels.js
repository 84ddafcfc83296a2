// Heat maps of the nominal kernel and of another one.

function matrixLargest(matrix) {
  return Math.max(1e-12, ...matrix.values.flat().map((value) => Math.abs(value ?? 0)));
}

function heatColours(signed) {
  return signed
    ? [paint("#d55e00"), ink("surface"), paint("#0072b2")]
    : [ink("surface"), root.dataset.theme === "dark" ? "#2b6ea6" : "#9cc9e8", paint("#0072b2"), root.dataset.theme === "dark" ? "#dff0ff" : "#003a5c"];
}

function stateAxis(name, states) {
  return {
    type: "category", name, nameLocation: "middle", data: states.map(String), splitArea: { show: false },
    nameTextStyle: { color: ink("quiet"), fontSize: 12 }, axisLine: { lineStyle: { color: ink("line") } }, axisTick: { show: false },
    axisLabel: { color: ink("quiet"), fontSize: 11, hideOverlap: true },
  };
}

function heatOption(block, matrix) {
  const option = common(`${block.title}, ${matrix.name}`, [], []);
  const largest = matrix.signed ? matrixLargest(matrix) : 1;
  option.xAxis = { ...stateAxis("next state", block.columns), nameGap: 26 };
  option.yAxis = { ...stateAxis("state", block.rows), inverse: true, nameGap: 12 };
  option.grid = { ...option.grid, bottom: 50 };
  option.visualMap = {
    min: matrix.signed ? -largest : 0, max: largest, calculable: false, orient: "horizontal", left: "center", bottom: 4,
    itemWidth: 12, itemHeight: 140, text: [written(largest), matrix.signed ? written(-largest) : "0"], textStyle: { color: ink("quiet") },
    inRange: { color: heatColours(matrix.signed) },
  };
  option.series = [{
    id: "cells", type: "heatmap", data: matrix.values.flatMap((row, i) => row.map((value, j) => [j, i, value])),
    itemStyle: { borderColor: ink("faint"), borderWidth: 0.5 }, emphasis: { itemStyle: { borderColor: ink("text"), borderWidth: 1.5 } },
  }];
  option.tooltip.trigger = "item";
  option.tooltip.formatter = (point) => element("div", { class: "tip" },
    element("span", {}, `from state ${block.rows[point.value[1]]} to ${block.columns[point.value[0]]}`),
    element("b", {}, written(point.value[2])));
  return option;
}

function heatMap(block, head, matrixNow) {
  const box = element("div", { class: "chart", role: "img", tabindex: "0" });
  const name = () => `${block.title}, ${matrixNow().name}`;
  const node = element("div", {}, element("div", { class: "caption" }, head,
    saveControl(name(), () => chartText(name(), heatOption(block, matrixNow()), box.clientWidth, box.clientHeight))), box);
  const chart = chartIn(box);
  function draw() {
    chart.setOption(heatOption(block, matrixNow()), { notMerge: true });
    box.setAttribute("aria-label", `Heat map: ${name()}, ${block.rows.length} states.`);
  }
  repaints.add(draw);
  draw();
  return { node, draw };
}

function kernelsBlock(block) {
  let chosen = 0;
  const left = heatMap(block, element("p", { class: "about" }, "nominal"), () => block.nominal);
  const head = selectOf("compare with", block.others.map((matrix) => matrix.name), 0, (i) => { chosen = i; right.draw(); });
  const right = heatMap(block, head, () => block.others[chosen]);
  return { node: element("section", { class: "block wide", "data-key": block.key },
    element("h3", {}, block.title), element("p", { class: "about" }, block.about),
    element("div", { class: "pair" }, left.node, right.node)) };
}
