"""Sections about simulators: training runs side by side, and stress results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.report import charts
from holdfast.report.charts import Chart, Limit, Series, Style, critical_text, label_of, styles_of
from holdfast.report.page import content
from holdfast.report.page.certificate import margin_text, value_text
from holdfast.report.page.content import Block, Cell, Lines, Section, details
from holdfast.report.records import TrainingRecord
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.training.runs import limits_of

# Up to this many runs, the table of last iterations has a column per run instead of a row.
_FEW = 2


# Training runs of one simulator, by their labels.
ShownRuns = Mapping[str, TrainingRecord]


def training_sections(found: Sequence[TrainingRecord]) -> list[Section]:
    """Return one section per simulator with the same limits, with its runs side by side."""
    groups: dict[str, list[TrainingRecord]] = {}
    for run in found:
        about = run.description
        kind = (about["environment"], about["limits"], about["settings"]["limit_on"])
        groups.setdefault(json.dumps(kind, sort_keys=True), []).append(run)
    # Simulators with equal names are distinguished by their settings.
    firsts = [group[0].description for group in groups.values()]
    titles = _distinguished(
        [about["environment"]["name"] for about in firsts],
        [{**about["environment"], "limits": about["limits"]} for about in firsts],
    )
    sections = []
    for (key, group), title in zip(groups.items(), titles, strict=True):
        shown = dict(zip(_labels(group), group, strict=True))
        sections.append(_section(f"training {key}", title, shown))
    return sections


def _labels(group: Sequence[TrainingRecord]) -> list[str]:
    """Return algorithm and radius of each run, with the settings that distinguish equal labels."""
    names, settings = [], []
    for run in group:
        own = dict(run.description["settings"])
        radius = f", radius {own['radius']:g}" if run.description["robust"] else ""
        names.append(label_of(run.description["algorithm"]) + radius)
        # More iterations only continue a run.
        settings.append({name: value for name, value in own.items() if name != "iterations"})
    longer = _distinguished(names, settings)
    return [
        name if longer.count(name) == 1 else f"{name} ({run.folder.name})"
        for name, run in zip(longer, group, strict=True)
    ]


def _distinguished(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names, each followed by the settings in which others of the same name differ."""
    flat = [dict(content.flat_entries(each)) for each in settings]
    longer = []
    for name, mine in zip(names, flat, strict=True):
        same = [theirs for other, theirs in zip(names, flat, strict=True) if other == name]
        differs = [key for key in mine if any(each.get(key) != mine[key] for each in same)]
        words = [f"{key.rsplit('.', 1)[-1]} {mine[key]}" for key in differs]
        longer.append(", ".join([name, *dict.fromkeys(words)]))
    return longer


def _section(key: str, title: str, shown: ShownRuns) -> Section:
    stressed = {label: run.stress for label, run in shown.items() if run.stress is not None}
    blocks: list[Block] = [
        *_learning(shown),
        *_against_cost(shown),
        _ends(shown),
        *(stress_blocks(stressed) if stressed else []),
    ]
    for i, (label, run) in enumerate(shown.items()):
        if run.arena is not None:
            name = f"{run.arena.title}: {label}"
            blocks.append(run.arena._replace(key=f"episodes-{i}", title=name))
    for i, (label, run) in enumerate(shown.items()):
        about = dict(run.description)
        made = about.pop("made_with")
        blocks.append(details(f"settings-{i}", f"Configuration: {label}", about))
        blocks.append(details(f"versions-{i}", f"Versions: {label}", made))
    folders = [str(run.folder) for run in shown.values()]
    return Section(key, title, folders, _facts(shown), blocks)


def _facts(shown: ShownRuns) -> list[Cell]:
    label, run = next(iter(shown.items()))
    limits = [Cell(f"{name} ≤ {limit:g}") for name, limit in limits_of(run.description)]
    if len(shown) > 1:
        return [Cell(f"{len(shown)} runs"), *limits]
    seeds = len(run.description["seeds"])
    count = f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    facts = [Cell(label), *limits, Cell(count), Cell(f"{_progress(run)} iterations")]
    if run.finished and run.description["constrained"]:
        over = ", ".join(run.over_limits)
        facts.append(Cell(f"{over} over a limit", "bad") if over else Cell("within limits", "good"))
    return facts


def _progress(run: TrainingRecord) -> str:
    asked = run.description["settings"]["iterations"]
    return f"{run.done}" if run.finished else f"{run.done} of {asked}"


def _costs(shown: ShownRuns) -> list[tuple[str, float]]:
    """Return the names and limits of the costs, which all runs share."""
    return list(limits_of(next(iter(shown.values())).description))


def _learning(shown: ShownRuns) -> list[Block]:
    """Return reward and costs against iterations, worst case and nominal."""
    about = "The band is two standard errors of the batch to either side."
    if any(len(run.description["seeds"]) > 1 for run in shown.values()):
        about = "Mean over seeds; the band reaches from the lowest to the highest seed."
    if not all(run.description["robust"] for run in shown.values()):
        about += " Algorithms without an adversary measure the nominal case only."
    styles, axis = styles_of(shown), charts.Axis("iteration")

    def lines(key: str, title: str, column: str, index: int | None, limits: list[Limit]) -> Lines:
        views = []
        kinds = [("worst case", column), ("nominal", f"nominal_{column}")]
        # Runs of version 0.1.0 did not measure most likely actions.
        if index is not None and all(
            "likely_costs" in run.rows[0] for run in shown.values() if run.rows
        ):
            kinds.append(("most likely actions", "likely_costs"))
        for kind, name in kinds:
            series = [_series(label, styles[label], shown[label], name, index) for label in shown]
            views.append(Chart(kind, axis, f"{key}, {kind}", series, limits))
        return Lines(f"learning-{key}", title, about, views)

    blocks: list[Block] = [lines("reward", "Reward of an episode", "reward", None, [])]
    for i, (name, limit) in enumerate(_costs(shown)):
        bound = [Limit.at_most(name, limit)]
        blocks.append(lines(name, f"Cost of an episode: {name}", "costs", i, bound))
    return blocks


def _series(
    label: str, style: Style, run: TrainingRecord, column: str, index: int | None
) -> Series:
    curves = run.curve(column, index)
    series = charts.over_seeds(label, style, list(curves), start=1)
    error = {"reward": "reward_error", "costs": "cost_errors"}.get(column)
    if len(curves) > 1 or error is None:
        return series
    twice = 2 * run.curve(error, index)[0]
    return series._replace(low=curves[0] - twice, high=curves[0] + twice)


def _against_cost(shown: ShownRuns) -> list[Block]:
    about = (
        "Worst case. A point is the end of a seed; the line is the mean from the start, a square."
    )
    blocks: list[Block] = []
    styles = styles_of(shown)
    for i, (cost, limit) in enumerate(_costs(shown)):
        clouds = []
        for label, run in shown.items():
            if run.done:
                points = [
                    charts.EndPoint(each.costs[i], each.reward, f"seed {each.label}", kept)
                    for each, kept in zip(run.seeds, run.kept, strict=True)
                ]
                trace = charts.Trace(run.curve("costs", i).mean(0), run.curve("reward").mean(0))
                clouds.append(charts.Cloud(label, *styles[label], points, [trace]))
        plane = charts.Plane(cost, "reward", clouds, [Limit.at_most(cost, limit, "x")])
        blocks.append(content.Scatter(f"against-{i}", f"Reward against {cost}", about, plane))
    return blocks


def _ends(shown: ShownRuns) -> content.PageTable:
    costs = _costs(shown)
    head = ["", "iterations", "reward", "nominal reward"]
    for name, limit in costs:
        head += [f"{name} ≤ {limit:g}", "most likely actions", "margin", f"nominal {name}"]
    head += ["seeds within limits", "critical radius"]

    def number(value: float) -> Cell:
        return Cell(value_text(float(f"{value:.4g}")))

    rows = []
    for label, run in shown.items():
        cells = [Cell(label), Cell(_progress(run))]
        if not run.done:
            rows.append([*cells, *[Cell("–")] * (len(head) - 2)])
            continue
        mean = run.standings[-1]
        cells += [number(mean.reward), number(mean.nominal_reward)]
        for i, (_, limit) in enumerate(costs):
            margin = limit - mean.larger_costs[i]
            tone = "good" if margin >= 0 else "bad"
            cells += [number(mean.costs[i]), number(mean.likely_costs[i])]
            cells.append(Cell(margin_text(margin), tone))
            cells.append(number(mean.nominal_costs[i]))
        critical = "–" if run.stress is None else critical_text(run.stress)
        rows.append([*cells, Cell(f"{sum(run.kept)} of {len(run.kept)}"), Cell(critical)])
    title = "Last iterations, mean over seeds, worst case"
    if len(shown) > _FEW:
        return content.PageTable("ends", title, head, rows)
    turned = list(zip(map(Cell, head), *rows, strict=True))
    return content.PageTable("ends", title, [cell.text for cell in turned[0]], turned[1:])


def stress_section(folder: str, found: Stress) -> Section:
    """Return the section of a stress result in a folder of its own."""
    name = ", ".join(found.agents)
    limits = zip(found.cost_names, found.limits, strict=True)
    facts = [Cell(Limit.at_most(cost, limit).label) for cost, limit in limits]
    facts.append(Cell(f"critical radius {critical_text(found)}"))
    title = f"{found.environment['name']}, stress of {name}"
    return Section(f"stress {folder}", title, [folder], facts, stress_blocks({name: found}))


def stress_blocks(found: Mapping[str, Stress]) -> list[Block]:
    """Return a figure for the reward and one for each cost, with a view per kind of test.

    Arguments:
        found: stress results by label, all with the same costs and limits.
    """
    confidence = 100 * next(iter(found.values())).setup["confidence"]
    about = f"Mean over episodes of the frozen policy, with {confidence:g} % confidence intervals."
    if any(len(each.actions) > 1 for each in found.values()):
        about += " Dotted lines: most likely actions instead of drawn ones."
    return [
        Lines(f"stress-{signal}", f"Under stress: {signal}", about, views, "bars")
        for signal, views in charts.stress_charts(found).items()
        if views
    ]
