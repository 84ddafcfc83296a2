// Playback of an episode: play, pause, single steps and a slider.

const MILLISECONDS_A_STEP = 450;
const ICONS = {
  play: "M3 1 L14 8 L3 15 Z", pause: "M3 1 H6.5 V15 H3 Z M9.5 1 H13 V15 H9.5 Z",
  back: "M12 1 L5 8 L12 15 Z M3 1 H5 V15 H3 Z", on: "M4 1 L11 8 L4 15 Z M11 1 H13 V15 H11 Z",
};

function icon(name) {
  return shape("svg", { width: 16, height: 16, "aria-hidden": "true" }, shape("path", { d: ICONS[name], fill: "currentColor" }));
}

/** Playback controls; `show(step)` draws a step. */
function player(show) {
  const state = { step: 0, steps: 0, timer: null };
  const scrub = element("input", { type: "range", min: 0, value: 0, "aria-label": "Step of the episode", oninput: () => { pause(); go(Number(scrub.value)); } });
  const count = element("output", { class: "about" });
  const play = element("button", { type: "button", onclick: () => (state.timer === null ? start() : pause()) });
  const step = (name, label, by) => element("button", { type: "button", "aria-label": label, onclick: () => { pause(); go(state.step + by); } }, icon(name));
  const node = element("div", { class: "player", role: "group", "aria-label": "Playback" },
    element("div", { class: "buttons" }, step("back", "One step back", -1), play, step("on", "One step forward", 1)), scrub, count);

  function go(to) {
    state.step = Math.min(Math.max(to, 0), state.steps);
    scrub.value = state.step;
    count.textContent = `step ${state.step} of ${state.steps}`;
    node.dataset.step = state.step;
    show(state.step);
  }

  function face() {
    const playing = state.timer !== null;
    play.replaceChildren(icon(playing ? "pause" : "play"), playing ? "Pause" : "Play");
  }

  function start() {
    if (state.step === state.steps) go(0);
    state.timer = setInterval(() => {
      go(state.step + 1);
      if (state.step === state.steps) pause();
    }, MILLISECONDS_A_STEP);
    face();
  }

  function pause() {
    clearInterval(state.timer);
    state.timer = null;
    face();
  }

  face();
  return {
    node, repaint: () => go(state.step),
    load(steps, at) { pause(); state.steps = steps; scrub.max = steps; go(at); },
  };
}

function totalsList() {
  const node = element("dl", { class: "totals" });
  return { node, show(totals, step) {
    node.replaceChildren(...Object.entries(totals).flatMap(([name, values]) =>
      [element("dt", {}, name), element("dd", {}, written(values[step]))]));
  } };
}

/** An SVG arrow from (x, y) to (x + dx, y + dy). */
function arrow(x, y, dx, dy, look) {
  const length = Math.hypot(dx, dy);
  const head = Math.min(look.head, length);
  const [ux, uy] = [dx / length, dy / length];
  const tip = [x + dx, y + dy];
  const corner = (side) => [tip[0] - head * ux + side * head * 0.55 * uy, tip[1] - head * uy - side * head * 0.55 * ux];
  return shape("g", { fill: look.colour, stroke: look.colour, "stroke-linecap": "round", opacity: look.opacity ?? 1 },
    shape("line", { x1: x, y1: y, x2: tip[0] - head * 0.6 * ux, y2: tip[1] - head * 0.6 * uy, "stroke-width": look.width }),
    shape("polygon", { points: [tip, corner(1), corner(-1)].map((point) => point.join(",")).join(" "), stroke: "none" }));
}

function keyEntry(drawing, text) {
  return element("li", {}, shape("svg", { width: 26, height: 22, viewBox: "0 0 26 22", "aria-hidden": "true" }, ...drawing()), text);
}
