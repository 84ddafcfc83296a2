// Light or dark theme: the reader's stored choice, or the system's.

const REMEMBERED = "holdfast-report-theme";
const root = document.documentElement;
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");
const repaints = new Set();

// Lighter variants of the series colours, for a dark page.
const ON_DARK = {
  "#0072b2": "#56a8e8", "#4d4d4d": "#bcc4cd", "#009e73": "#35c79b", "#d55e00": "#f58a4b",
  "#cc79a7": "#e39cc3", "#e69f00": "#f0b429", "#56b4e9": "#8ad0f7",
  "#882255": "#d77fa8", "#999933": "#c9c963", "#332288": "#9a8cf0", "#661100": "#d98a6a",
};

function rememberedTheme() {
  try { return window.localStorage.getItem(REMEMBERED); } catch { return null; }
}

function remember(theme) {
  try { window.localStorage.setItem(REMEMBERED, theme); } catch { /* storage is disabled */ }
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

/** A colour of the current theme, by its name in the style sheet. */
function ink(name) {
  return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
}

/** The colour of a series in the current theme. */
function paint(colour) {
  return (root.dataset.theme === "dark" && ON_DARK[colour]) || colour;
}

document.getElementById("theme").addEventListener("click", switchTheme);
systemIsDark.addEventListener("change", applyTheme);
applyTheme();
