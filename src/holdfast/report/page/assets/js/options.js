// Chart records as options of the charting library.

// No quotation marks: the library would copy them into attributes of a saved figure.
const FONT = "system-ui, -apple-system, Roboto, Helvetica, sans-serif";
const DASHES = { solid: "solid", dashed: [7, 4], dotted: [2, 3], "dash-dot": [9, 3, 2, 3] };

function scaled(axis) {
  return axis.scale === "sqrt" ? Math.sqrt : (value) => value;
}

function unscaled(axis) {
  return axis.scale === "sqrt" ? (value) => value * value : (value) => value;
}

function axisLook(name, extra = {}) {
  return {
    type: "value", name, nameLocation: "middle", nameTextStyle: { color: ink("quiet"), fontSize: 12 },
    axisLine: { onZero: false, lineStyle: { color: ink("line") } }, axisTick: { lineStyle: { color: ink("line") } },
    axisLabel: { color: ink("quiet"), fontSize: 12, hideOverlap: true, formatter: written },
    splitLine: { lineStyle: { color: ink("faint") } }, ...extra,
  };
}

function horizontalAxis(axis) {
  const back = unscaled(axis);
  const label = { color: ink("quiet"), fontSize: 12, hideOverlap: true, formatter: (value) => written(back(value)) };
  const ticks = axis.ticks.map(scaled(axis));
  if (ticks.length) label.customValues = ticks;
  return axisLook(axis.name, {
    nameGap: 30, axisLabel: label, splitLine: { show: false },
    axisTick: { customValues: ticks.length ? ticks : undefined, lineStyle: { color: ink("line") } },
    min: ticks.length ? ticks[0] : "dataMin", max: ticks.length ? ticks[ticks.length - 1] : "dataMax",
  });
}

function common(title, names, hidden) {
  return {
    animation: false, backgroundColor: "transparent", textStyle: { fontFamily: FONT },
    aria: { enabled: true, label: { general: { withTitle: `${title}.`, withoutTitle: `${title}.` } } },
    legend: { show: false, data: names, selected: Object.fromEntries(names.map((name) => [name, !hidden.includes(name)])) },
    grid: { left: 12, right: 18, top: 16, bottom: 6, outerBoundsMode: "same", outerBoundsContain: "all" },
    tooltip: {
      confine: true, backgroundColor: ink("surface"), borderColor: ink("line"), padding: [8, 10],
      textStyle: { color: ink("text") }, transitionDuration: 0,
    },
  };
}

/** The area between low and high, as one polygon for the whole series. */
function bandSeries(series, at, index) {
  const colour = paint(series.colour);
  const data = series.x.map((x, i) => [at(x), series.low[i], series.high[i]]);
  return {
    id: `spread-${index}`, name: series.name, type: "custom", data, encode: { x: 0, y: [1, 2] }, silent: true, z: 1, clip: true,
    itemStyle: { color: colour },
    renderItem(place, api) {
      if (place.dataIndex !== 0) return null;
      const corner = (x, y) => api.coord([x, y]);
      const points = data.map(([x, low]) => corner(x, low)).concat(data.map(([x, , high]) => corner(x, high)).reverse());
      return { type: "polygon", shape: { points }, style: { fill: colour, opacity: 0.17 } };
    },
  };
}

/** A bar from low to high at every point. */
function barSeries(series, at, index) {
  const stroke = paint(series.colour);
  return {
    id: `spread-${index}`, name: series.name, type: "custom", silent: true, z: 1, encode: { x: 0, y: [1, 2] },
    data: series.x.map((x, i) => [at(x), series.low[i], series.high[i]]), itemStyle: { color: stroke },
    renderItem(place, api) {
      const [x, low] = api.coord([api.value(0), api.value(1)]);
      const high = api.coord([api.value(0), api.value(2)])[1];
      const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke, lineWidth: 1.5 } });
      return { type: "group", children: [line(x, low, x, high), line(x - 4, low, x + 4, low), line(x - 4, high, x + 4, high)] };
    },
  };
}

function meanSeries(series, at, index, spread) {
  const color = paint(series.colour);
  const few = spread === "bars" || series.x.length <= 12;
  return {
    id: `mean-${index}`, name: series.name, type: "line", z: 3, connectNulls: false,
    data: series.x.map((x, i) => [at(x), series.y[i]]), showSymbol: few, symbol: "circle", symbolSize: 6,
    lineStyle: { color, width: 2.2, type: DASHES[series.dash] }, itemStyle: { color }, emphasis: { disabled: true },
  };
}

/** A value on the allowed side of a limit, so that the axis shows both sides; not below zero for a positive limit. */
function roomBeside(limit, values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const room = 0.08 * (Math.max(...known, limit.value) - Math.min(...known, limit.value)) || 0.1 * Math.abs(limit.value) || 0.1;
  if (limit.violated === "below") return limit.value + room;
  return limit.value > 0 ? Math.max(limit.value - room, 0) : limit.value - room;
}

// Pixels of a character and of the gap before it, at the size of the labels.
const LABEL_CHARACTER = 6.6;
const MOST_LABEL = 110;

function labelWidth(limit) {
  return Math.min(MOST_LABEL, LABEL_CHARACTER * limit.label.length + 8);
}

/** Limit lines with the violated side shaded; invisible points keep the lines within the axes. The label of a
 * horizontal line is outside the frame, where no curve can cross it. */
function limitSeries(limits, inside) {
  const lines = limits.map((limit) => ({
    [limit.axis === "x" ? "xAxis" : "yAxis"]: limit.value,
    label: { formatter: limit.label, position: "end", rotate: 0, ...(limit.axis === "x" ? {} : { width: labelWidth(limit), overflow: "break" }) },
  }));
  const areas = limits.map((limit) => {
    const axis = limit.axis === "x" ? "xAxis" : "yAxis";
    const ends = limit.violated === "above" ? [limit.value, Infinity] : [-Infinity, limit.value];
    return ends.map((end) => ({ [axis]: end }));
  });
  return {
    id: "limits", name: "limits", type: "line", silent: true, symbol: "none", lineStyle: { opacity: 0 }, z: 2,
    data: limits.flatMap((limit) => [limit.value, roomBeside(limit, inside.values)]
      .map((value) => (limit.axis === "x" ? [value, inside.y] : [inside.x, value]))),
    markLine: {
      symbol: "none", silent: true, lineStyle: { color: ink("text"), type: [8, 4], width: 1.3 },
      label: { color: ink("text"), fontSize: 12, textBorderColor: ink("surface"), textBorderWidth: 3 }, data: lines,
    },
    markArea: { silent: true, itemStyle: { color: ink("shade") }, data: areas },
  };
}

function firstNumber(values) {
  return values.find((value) => value !== null && value !== undefined) ?? 0;
}

/** One line of a tooltip: name, value and range. */
function tipLine(colour, name, value, range) {
  return element("span", {}, element("i", { style: `background:${colour}` }), `${name}: `, element("b", {}, value), element("small", {}, range));
}

function rangeText(low, high) {
  const [from, to] = [written(low), written(high)];
  return from === to ? "" : ` (${from} to ${to})`;
}

function linesTip(view, points) {
  const seen = points.filter((point) => point.seriesId.startsWith("mean-"));
  if (!seen.length) return "";
  const box = element("div", { class: "tip" }, element("span", {}, `${view.x.name.replace(/ \(.*\)/, "")} ${written(unscaled(view.x)(seen[0].value[0]))}`));
  for (const point of seen) {
    const series = view.series[Number(point.seriesId.slice(5))];
    const i = point.dataIndex;
    const range = series.low ? rangeText(series.low[i], series.high[i]) : "";
    box.append(tipLine(paint(series.colour), series.name, written(series.y[i]), range));
  }
  return box;
}

function linesOption(title, view, spread, hidden) {
  const at = scaled(view.x);
  const names = [...new Set(view.series.map((series) => series.name))];
  const option = common(title, names, hidden);
  const wide = spread === "bars" ? barSeries : bandSeries;
  const inside = {
    x: at(firstNumber(view.series.flatMap((series) => series.x))),
    values: view.series.flatMap((series) => [...series.y, ...(series.low || []), ...(series.high || [])]),
  };
  option.grid.right = Math.max(18, ...view.limits.map((limit) => labelWidth(limit) + 4));
  option.xAxis = horizontalAxis(view.x);
  option.yAxis = axisLook(view.y, { scale: true, nameGap: 12, splitNumber: 4 });
  option.series = [
    ...view.series.map((series, i) => (series.low ? wide(series, at, i) : null)),
    ...view.series.map((series, i) => meanSeries(series, at, i, spread)),
    view.limits.length ? limitSeries(view.limits, inside) : null,
  ].filter((series) => series !== null);
  option.tooltip.trigger = "axis";
  option.tooltip.axisPointer = { type: "line", lineStyle: { color: ink("quiet"), width: 1 } };
  option.tooltip.formatter = (points) => linesTip(view, points);
  return option;
}

function cloudSeries(cloud, index) {
  const color = paint(cloud.colour);
  return {
    id: `cloud-${index}`, name: cloud.name, type: "scatter", z: 4, symbolSize: 12,
    data: cloud.points.map((point) => ({
      value: [point.x, point.y], label: point.label, feasible: point.feasible, symbol: point.feasible ? "circle" : CROSS,
      itemStyle: { color, borderColor: ink("surface"), borderWidth: point.feasible ? 1 : 0 },
    })),
    itemStyle: { color },
  };
}

const CROSS = "path://M1 0 L5 4 L9 0 L10 1 L6 5 L10 9 L9 10 L5 6 L1 10 L0 9 L4 5 L0 1 Z";

/** The path of a run, with a square at its start. */
function traceSeries(cloud, trace, id) {
  const color = paint(cloud.colour);
  const start = { symbol: "rect", symbolSize: 7, itemStyle: { color: ink("surface"), borderColor: ink("quiet"), borderWidth: 1.5 } };
  return {
    id, name: cloud.name, type: "line", silent: true, z: 2, symbol: "none", showSymbol: true, itemStyle: { color },
    data: trace.x.map((x, i) => ({ value: [x, trace.y[i]], ...(i ? {} : start) })),
    lineStyle: { color, width: 1.4, opacity: 0.55, type: DASHES[cloud.dash] },
  };
}

function scatterTip(plane, point) {
  const verdict = point.data.feasible ? "✓ feasible" : "✗ not feasible";
  return element("div", { class: "tip" },
    element("span", {}, `${point.seriesName}, ${point.data.label}`), element("span", {}, verdict),
    element("span", {}, `${plane.y}: `, element("b", {}, written(point.value[1]))),
    element("span", {}, `${plane.x}: `, element("b", {}, written(point.value[0]))));
}

function scatterOption(block, hidden) {
  const plane = block.plane;
  const option = common(block.title, plane.clouds.map((cloud) => cloud.name), hidden);
  const points = plane.clouds.flatMap((cloud) => cloud.points);
  option.xAxis = axisLook(plane.x, { scale: true, nameGap: 30, splitNumber: 4 });
  option.yAxis = axisLook(plane.y, { scale: true, nameGap: 12, splitNumber: 4 });
  option.series = [
    ...plane.clouds.flatMap((cloud, i) => cloud.traces.map((trace, j) => traceSeries(cloud, trace, `trace-${i}-${j}`))),
    ...plane.clouds.map(cloudSeries),
    plane.limits.length ? limitSeries(plane.limits, { y: firstNumber(points.map((point) => point.y)), values: points.map((point) => point.x) }) : null,
  ].filter((series) => series !== null);
  option.grid.top = 28;
  option.tooltip.trigger = "item";
  option.tooltip.formatter = (point) => scatterTip(plane, point);
  return option;
}
