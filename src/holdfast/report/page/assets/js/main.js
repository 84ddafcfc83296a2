// The whole page: sections, the table of contents, and updates from a server.

const content = document.getElementById("content");
const contents = document.getElementById("contents");
const menu = document.getElementById("menu");
const live = document.getElementById("live");
const runsShown = new Map();
const introBox = element("section", { class: "intro", "aria-label": "Summary" });
content.append(introBox);

function skippedBox(skipped) {
  if (!skipped.length) return null;
  return element("div", { class: "skipped", role: "note" }, element("h2", {}, `Skipped: ${skipped.length}`),
    element("ul", {}, ...skipped.map((each) => element("li", {}, element("code", {}, each.path), `: ${each.reason}`))));
}

function drawIntro(data) {
  introBox.replaceChildren(...[
    element("h1", {}, data.title), element("p", {}, data.summary),
    element("p", { class: "made" }, `Made by Holdfast ${data.version}, ${data.made}.`), skippedBox(data.skipped),
  ].filter(Boolean));
}

function factsList(facts) {
  return element("ul", { class: "facts" }, ...facts.map((fact) => element("li", { class: fact.tone || null }, toned(fact))));
}

function runSection(section) {
  const facts = element("div");
  const blocks = element("div", { class: "blocks" });
  const folded = element("div", { class: "folded" });
  const shown = new Map();
  const node = element("section", { class: "run", id: section.id, "aria-labelledby": `${section.id}-title` },
    element("header", {}, element("h2", { id: `${section.id}-title` }, section.title),
      element("p", { class: "where" }, ...section.where.flatMap((path, i) => [i ? ", " : "", element("code", {}, path)])), facts),
    blocks);

  function update(next) {
    facts.replaceChildren(factsList(next.facts));
    for (const block of next.blocks) {
      if (shown.has(block.key)) {
        shown.get(block.key).update(block);
      } else {
        const made = mounted(block);
        shown.set(block.key, made);
        (block.type === "details" ? folded : blocks).append(made.node);
      }
    }
    blocks.append(folded);
  }

  content.append(node);
  update(section);
  return { node, update };
}

function drawRuns(sections) {
  const kept = new Set(sections.map((section) => section.id));
  for (const [id, run] of runsShown) {
    if (!kept.has(id)) { run.node.remove(); runsShown.delete(id); }
  }
  for (const section of sections) {
    if (runsShown.has(section.id)) runsShown.get(section.id).update(section);
    else runsShown.set(section.id, runSection(section));
  }
}

function drawContents(sections) {
  const entries = sections.map((section) => [section.id, section.title, section.where.length === 1 ? section.where[0] : `${section.where.length} runs`]);
  if (same(drawContents.last, entries)) return;
  drawContents.last = entries;
  contents.replaceChildren(...entries.map(([id, title, where]) => element("li", {},
    element("a", { href: `#${id}`, onclick: () => { if (isNarrow.matches) menu.open = false; } }, title, element("small", {}, where)))));
  markPlace();
}

/** Marks the current run: the last one that starts above a line near the top. */
function markPlace() {
  const links = [...contents.querySelectorAll("a")];
  const begun = links.filter((link) => document.getElementById(link.hash.slice(1))?.getBoundingClientRect().top < 160);
  links.forEach((link) => link.setAttribute("aria-current", String(link === begun[begun.length - 1])));
}

function show(data) {
  drawIntro(data);
  drawRuns(data.sections);
  drawContents(data.sections);
}

async function follow(every) {
  live.hidden = false;
  try {
    const answer = await fetch("data.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const data = await answer.json();
    show(data);
    live.classList.remove("lost");
    live.textContent = `updated ${new Date().toLocaleTimeString()}`;
  } catch {
    live.classList.add("lost");
    live.textContent = "the server does not answer";
  }
  setTimeout(() => follow(every), 1000 * every);
}

const isNarrow = window.matchMedia("(max-width: 860px)");
const openMenu = () => { menu.open = !isNarrow.matches; };
isNarrow.addEventListener("change", openMenu);
openMenu();
window.addEventListener("scroll", markPlace, { passive: true });
const first = JSON.parse(document.getElementById("data").textContent);
show(first);
if (first.follow_every) follow(first.follow_every);
