// Charts with their title, views, legend and files; they adapt to the theme, the width and new data.

function chartIn(box) {
  const chart = echarts.init(box, null, { renderer: "svg" });
  new ResizeObserver(() => chart.resize()).observe(box);
  return chart;
}

/** The chart as an SVG text with its title and legend, which the page shows outside the chart. */
function chartText(title, option, width, height) {
  const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: height + 70 });
  chart.setOption({
    ...option, backgroundColor: ink("surface"),
    title: { text: title, left: 12, top: 8, textStyle: { color: ink("text"), fontSize: 15 } },
    legend: { ...option.legend, show: option.legend.data.length > 0, top: 34, left: 12, type: "scroll", textStyle: { color: ink("text") }, inactiveColor: ink("line") },
    grid: { ...option.grid, top: 78 }, tooltip: { show: false },
  });
  const text = chart.renderToSVGString();
  chart.dispose();
  return text;
}

function swatch(colour, dash) {
  const pattern = DASHES[dash] === "solid" ? null : DASHES[dash].join(" ");
  return shape("svg", { width: 26, height: 10, "aria-hidden": "true" },
    shape("line", { x1: 0, y1: 5, x2: 26, y2: 5, stroke: paint(colour), "stroke-width": 3, "stroke-dasharray": pattern }));
}

/** A figure of curves or of points; `parts` has the functions that differ between the two. */
function chartFigure(block, parts) {
  const state = { block, view: 0, hidden: new Set(), index: -1 };
  const box = element("div", { class: "chart", tabindex: "0", role: "img" });
  const views = element("div", { class: "views", role: "group", "aria-label": `View of ${block.title}` });
  const legend = element("div", { class: "legend", role: "group", "aria-label": `Series of ${block.title}` });
  const about = element("p", { class: "about" });
  const note = element("p", { class: "note" });
  const option = () => parts.option(state.block, state.view, [...state.hidden]);
  const node = element("figure", { class: "block", "data-key": block.key },
    element("figcaption", { class: "caption" }, element("h3", {}, block.title),
      saveControl(block.title, () => chartText(state.block.title, option(), box.clientWidth, box.clientHeight))),
    about, views, legend, box, note);
  const chart = chartIn(box);

  function drawViews() {
    const names = parts.views(state.block);
    views.replaceChildren(...(names.length > 1 ? names : []).map((name, i) => element("button", {
      type: "button", "aria-pressed": String(i === state.view), onclick: () => { state.view = i; draw(); },
    }, name)));
    const at = [...views.children].indexOf(document.activeElement);
    if (at >= 0) views.children[at].focus();
  }

  function toggle(name) {
    if (!state.hidden.delete(name)) state.hidden.add(name);
    draw();
    [...legend.children].find((button) => button.dataset.series === name)?.focus();
  }

  function drawLegend() {
    const entries = new Map(parts.series(state.block, state.view).map((series) => [series.name, series]));
    legend.replaceChildren(...[...entries.values()].map((series) => element("button", {
      type: "button", "data-series": series.name, "aria-pressed": String(!state.hidden.has(series.name)),
      title: "Show or hide", onclick: () => toggle(series.name),
    }, swatch(series.colour, series.dash), series.name)));
  }

  function draw() {
    about.textContent = state.block.about;
    note.replaceChildren(...parts.notes(state.block).map((text) => element("span", {}, text)));
    drawViews();
    drawLegend();
    chart.setOption(option(), { replaceMerge: ["series"] });
    box.setAttribute("aria-label", `${box.getAttribute("aria-label") || state.block.title} Use the left and right keys to read values.`);
  }

  /** The left and right keys show the tooltip of one point after the other. */
  function read(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = chart.getOption().series;
    const shown = all.findIndex((series) => parts.readable(series) && !state.hidden.has(series.name));
    if (shown < 0) return;
    const { data } = all[shown];
    state.index = Math.min(Math.max(state.index + step, 0), data.length - 1);
    chart.dispatchAction({ type: "showTip", ...parts.tipAt(chart, shown, data, state.index) });
  }

  box.addEventListener("keydown", read);
  box.addEventListener("blur", () => chart.dispatchAction({ type: "hideTip" }));
  repaints.add(draw);
  draw();
  return { node, update(next) { state.block = next; draw(); } };
}

/** The pointer position that shows a point's tooltip, moved inside the frame: its edge counts as outside. */
function tipBesideEdges(chart, seriesIndex, data, index) {
  const across = (point) => chart.convertToPixel({ seriesIndex }, point)[0];
  const [first, last] = [across(data[0]), across(data[data.length - 1])];
  if (first === last) return { seriesIndex, dataIndex: index };
  return { x: Math.min(Math.max(across(data[index]), first + 1), last - 1), y: chart.getHeight() / 2 };
}

function linesFigure(block) {
  return chartFigure(block, {
    option: (now, view, hidden) => linesOption(now.title, now.views[view], now.spread, hidden),
    views: (now) => now.views.map((view) => view.name),
    series: (now, view) => now.views[view].series,
    notes: () => [],
    readable: (series) => series.id.startsWith("mean-"),
    tipAt: tipBesideEdges,
  });
}

function scatterFigure(block) {
  return chartFigure(block, {
    option: (now, _, hidden) => scatterOption(now, hidden),
    views: () => [],
    series: (now) => now.plane.clouds,
    notes: () => ["● feasible", "✕ not feasible"],
    readable: (series) => series.id.startsWith("cloud-"),
    tipAt: (_, seriesIndex, data, dataIndex) => ({ seriesIndex, dataIndex }),
  });
}
