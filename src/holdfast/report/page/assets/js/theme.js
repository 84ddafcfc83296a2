// Light and dark: the reader's choice, remembered, or else the system's.

const REMEMBERED = "holdfast-report-theme";
const root = document.documentElement;
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
const repaints = new Set();

// What has to be lighter to be seen on a dark page.
const ON_DARK = {
  "#0072b2": "#56a8e8", "#4d4d4d": "#bcc4cd", "#009e73": "#35c79b", "#d55e00": "#f58a4b",
  "#cc79a7": "#e39cc3", "#e69f00": "#f0b429", "#56b4e9": "#8ad0f7",
};

function rememberedTheme() {
  try { return window.localStorage.getItem(REMEMBERED); } catch { return null; }
}

function remember(theme) {
  try { window.localStorage.setItem(REMEMBERED, theme); } catch { /* a browser that keeps nothing */ }
}

function applyTheme() {
  const theme = rememberedTheme() || (systemIsDark.matches ? "dark" : "light");
  if (root.dataset.theme === theme) return;
  root.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  document.getElementById("theme").textContent = other === "dark" ? "Dark theme" : "Light theme";
  repaints.forEach((repaint) => repaint());
}

function switchTheme() {
  remember(root.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
}

/** A colour of the style sheet, as it is now. */
function ink(name) {
  return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
}

/** The colour of a series, as it is now. */
function paint(colour) {
  return (root.dataset.theme === "dark" && ON_DARK[colour]) || colour;
}

document.getElementById("theme").addEventListener("click", switchTheme);
systemIsDark.addEventListener("change", applyTheme);
applyTheme();
