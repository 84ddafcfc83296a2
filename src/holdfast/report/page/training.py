"""Training runs side by side: learning curves, reward against cost, stress, episodes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast.report.page.certificate import margin, shown
from holdfast.report.page.content import (
    Arena,
    Axis,
    Block,
    Cell,
    Cloud,
    Details,
    Limit,
    Lines,
    Point,
    Scatter,
    Section,
    Series,
    Table,
    View,
    flat_entries,
    kept_rows,
    number,
    numbers,
)
from holdfast.report.page.looks import Look, label_of, looks_of
from holdfast.report.page.stress import critical_in_words, stress_blocks
from holdfast.report.page.versions import check_not_newer
from holdfast.report.training import Outcome, Standing
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import limits_of

_NEEDED = (
    "reward",
    "nominal_reward",
    "reward_error",
    "costs",
    "nominal_costs",
    "cost_errors",
    "kl",
)
_FEW = 2  # runs that have a column each in the table of their ends, rather than a line
_WORST, _NOMINAL = "worst case", "nominal"


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingRun:
    """A folder that `holdfast train` wrote, finished or not.

    Attributes:
        folder: it lies in.
        description: what the run is.
        rows: of every iteration that all seeds have done.
        finished: whether there are no iterations left to do.
        stress: what was found when it was put under stress, if it was.
        arena: episodes on the map, where there is one.
    """

    folder: Path
    description: Mapping[str, Any]
    rows: Sequence[dict[str, Any]]
    finished: bool
    stress: Stress | None = None
    arena: Arena | None = None

    @property
    def done(self) -> int:
        """Iterations."""
        return len(self.rows) // len(self.description["seeds"])

    def curve(self, name: str, index: int | None = None) -> Float[np.ndarray, "seeds iterations"]:
        """A measurement, by seed and iteration."""
        values = [row[name] if index is None else row[name][index] for row in self.rows]
        return np.array(values, float).reshape(self.done, len(self.description["seeds"])).T

    def agent_files(self) -> list[Path]:
        """What episodes are played from: nothing before the run is finished."""
        first = runs.agent_file(self.folder, self.description["seeds"][0])
        return [first, self.folder / runs.CHECKPOINT] if self.finished and first.is_file() else []

    def played_episodes(self) -> Arena | None:
        """Episodes on the map."""
        if not self.agent_files():
            return None
        from holdfast.report.page.arena import arena_block

        return arena_block(self.folder, self.description)


def read_training(folder: Path, stress: Stress | None = None) -> TrainingRun:
    """Reads a training run; a last line that is being written is left out.

    Arguments:
        folder: of the run.
        stress: what was found when it was put under stress, if it was.

    Raises:
        ValueError: it is damaged or of a newer version; the message says where.
    """
    path = folder / runs.DESCRIPTION
    try:
        described = json.loads(path.read_text())
        made_with = dict(described.get("made_with", {}))
    except (ValueError, OSError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: damaged, not the description of a run ({error})") from error
    check_not_newer(made_with)
    description = runs.read_description(folder)
    assert description is not None
    rows = runs.read_lines(folder / runs.METRICS)
    seeds = description["seeds"]
    by_iteration: dict[int, dict[int, dict[str, Any]]] = {}
    for i, row in enumerate(rows, start=1):
        for name in ("seed", *_NEEDED):
            if name not in row:
                raise ValueError(f"{folder / runs.METRICS}: line {i} has no {name}")
        by_iteration.setdefault(row["iteration"], {})[row["seed"]] = row
    whole: list[dict[str, Any]] = []
    for i in range(len(by_iteration)):
        if set(by_iteration.get(i, ())) != set(seeds):
            break
        whole += [by_iteration[i][seed] for seed in seeds]
    done = len(whole) // len(seeds)
    finished = done >= description["settings"]["iterations"]
    return TrainingRun(folder, description, whole, finished, stress)


def training_sections(found: Sequence[TrainingRun]) -> list[Section]:
    """A section for each simulator with its limits, its runs side by side."""
    groups: dict[str, list[TrainingRun]] = {}
    for run in found:
        about = run.description
        kind = (about["environment"], about["limits"], about["settings"]["limit_on"])
        groups.setdefault(json.dumps(kind, sort_keys=True), []).append(run)
    titles = _titles([group[0].description for group in groups.values()])
    return [
        _section(f"training {key}", title, group)
        for (key, group), title in zip(groups.items(), titles, strict=True)
    ]


def _titles(descriptions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The simulators' names, with what differs where two have the same."""
    titles = []
    for about in descriptions:
        name = about["environment"]["name"]
        same = [each for each in descriptions if each["environment"]["name"] == name]
        flat = [
            dict(flat_entries({**each["environment"], "limits": each["limits"]})) for each in same
        ]
        mine = flat[same.index(about)]
        differs = [k for k in mine if any(each.get(k) != mine[k] for each in flat)]
        words = [f"{k.rsplit('.', 1)[-1]} {mine[k]}" for k in differs]
        titles.append(", ".join([name, *dict.fromkeys(words)]))
    return titles


def _section(key: str, title: str, group: Sequence[TrainingRun]) -> Section:
    names = _labels(group)
    looks = looks_of([run.description["algorithm"] for run in group])
    ended = [_outcome(run) for run in group]
    blocks: list[Block] = [
        *_learning(group, names, looks),
        *_against_cost(group, names, looks, ended),
        _table(group, names, ended),
        *stress_blocks(
            {n: run.stress for n, run in zip(names, group, strict=True) if run.stress is not None},
            dict(zip(names, looks, strict=True)),
        ),
    ]
    for i, (run, name) in enumerate(zip(group, names, strict=True)):
        if run.arena is not None:
            title_of = f"{run.arena.title}: {name}"
            blocks.append(dataclasses.replace(run.arena, key=f"episodes-{i}", title=title_of))
    for i, (run, name) in enumerate(zip(group, names, strict=True)):
        about = {k: v for k, v in run.description.items() if k != "made_with"}
        blocks.append(Details(f"settings-{i}", f"Configuration: {name}", flat_entries(about)))
        made = flat_entries(run.description["made_with"])
        blocks.append(Details(f"versions-{i}", f"Versions: {name}", made))
    return Section(key, title, [str(run.folder) for run in group], _facts(group, ended), blocks)


def _labels(group: Sequence[TrainingRun]) -> list[str]:
    """The algorithm and its radius, with more where that is the same for two runs."""
    names = []
    for run in group:
        about = run.description
        radius = f", radius {about['settings']['radius']:g}" if about["robust"] else ""
        names.append(label_of(about["algorithm"]) + radius)
    flat = [dict(flat_entries(run.description["settings"])) for run in group]
    longer = []
    for i, name in enumerate(names):
        same = [j for j, other in enumerate(names) if other == name]
        differs = [
            f"{k} {v}"
            for k, v in flat[i].items()
            if k != "iterations" and any(flat[j].get(k) != v for j in same)
        ]
        longer.append(", ".join([name, *differs]))
    return [
        name if longer.count(name) == 1 else f"{name} ({run.folder.name})"
        for name, run in zip(longer, group, strict=True)
    ]


def _outcome(run: TrainingRun) -> Outcome | None:
    return Outcome.of_rows(run.description, run.rows) if run.done else None


def _facts(group: Sequence[TrainingRun], ended: Sequence[Outcome | None]) -> list[Cell]:
    about = group[0].description
    facts = [Cell(f"{name} ≤ {limit:g}") for name, limit in limits_of(about)]
    if len(group) > 1:
        return [Cell(f"{len(group)} runs"), *facts]
    run, seeds = group[0], len(about["seeds"])
    facts.insert(0, Cell(_labels(group)[0]))
    facts.append(Cell(f"{seeds} {'seed' if seeds == 1 else 'seeds'}"))
    facts.append(Cell(_progress(run)))
    if ended[0] is not None and run.finished and about["constrained"]:
        over = ended[0].over_limits
        facts.append(Cell(f"{', '.join(over)} over a limit", "bad") if over else _WITHIN)
    return facts


_WITHIN = Cell("within limits", "good")


def _progress(run: TrainingRun) -> str:
    asked = run.description["settings"]["iterations"]
    return f"{run.done} iterations" if run.finished else f"{run.done} of {asked} iterations"


def _learning(
    group: Sequence[TrainingRun], names: Sequence[str], looks: Sequence[Look]
) -> list[Block]:
    """Reward and each cost against iterations, worst case and nominal."""
    costs = limits_of(group[0].description)
    several = any(len(run.description["seeds"]) > 1 for run in group)
    about = (
        "Mean over seeds; the band reaches from the lowest to the highest."
        if several
        else "The band is two standard errors of the batch to either side."
    )
    if not all(run.description["robust"] for run in group):
        about += " Without an adversary the worst case that training knows is the nominal one."

    def views(worst: str, error: str, index: int | None, limits: Sequence[Limit]) -> list[View]:
        y = "reward" if index is None else costs[index][0]
        return [
            View(
                kind,
                Axis("iteration"),
                f"{y}, {kind}",
                [
                    _series(run, name, look, column, error if kind == _WORST else None, index)
                    for run, name, look in zip(group, names, looks, strict=True)
                ],
                limits,
            )
            for kind, column in ((_WORST, worst), (_NOMINAL, f"nominal_{worst}"))
        ]

    blocks: list[Block] = [
        Lines("reward", "Reward of an episode", about, views("reward", "reward_error", None, ()))
    ]
    for i, (name, limit) in enumerate(costs):
        line = Limit(limit, f"{name} ≤ {limit:g}", "above")
        title = f"Cost of an episode: {name}"
        blocks.append(Lines(f"cost-{i}", title, about, views("costs", "cost_errors", i, [line])))
    return blocks


def _series(
    run: TrainingRun, name: str, look: Look, column: str, error: str | None, index: int | None
) -> Series:
    curves = run.curve(column, index)
    kept = kept_rows(run.done)
    mean = curves.mean(0)
    low = high = None
    if len(curves) > 1:
        low, high = curves.min(0), curves.max(0)
    elif error is not None:
        twice = 2 * run.curve(error, index)[0]
        low, high = mean - twice, mean + twice

    def shortened(values: np.ndarray | None) -> list[float | None] | None:
        return None if values is None else numbers(values[kept])

    return Series(
        name,
        look.colour,
        look.dash,
        numbers(kept + 1),
        numbers(mean[kept]),
        shortened(low),
        shortened(high),
    )


def _against_cost(
    group: Sequence[TrainingRun],
    names: Sequence[str],
    looks: Sequence[Look],
    ended: Sequence[Outcome | None],
) -> list[Block]:
    blocks: list[Block] = []
    for i, (cost, limit) in enumerate(limits_of(group[0].description)):
        clouds = [
            _cloud(run, name, look, outcome, i)
            for run, name, look, outcome in zip(group, names, looks, ended, strict=True)
            if outcome is not None
        ]
        blocks.append(
            Scatter(
                f"against-{i}",
                f"Reward against {cost}",
                "Worst case. A point is a seed at the end, the line the mean on its way there.",
                cost,
                "reward",
                clouds,
                [Limit(limit, f"{cost} ≤ {limit:g}", "above", "x")],
            )
        )
    return blocks


def _keeps_limits(run: TrainingRun, standing: Standing) -> bool:
    return all(left >= 0 for left in standing.margins(run.description["limits"]))


def _cloud(run: TrainingRun, name: str, look: Look, outcome: Outcome, cost: int) -> Cloud:
    points = [
        Point(
            number(each.costs[cost]),
            number(each.reward),
            f"seed {each.label}",
            _keeps_limits(run, each),
        )
        for each in outcome.standings
        if each.label != "mean"
    ]
    kept = kept_rows(run.done)
    way = run.curve("costs", cost).mean(0)[kept], run.curve("reward").mean(0)[kept]
    return Cloud(name, look.colour, look.dash, points, *map(numbers, way))


def _table(
    group: Sequence[TrainingRun], names: Sequence[str], ended: Sequence[Outcome | None]
) -> Table:
    costs = limits_of(group[0].description)
    head = ["", "iterations", "reward", "nominal reward"]
    for name, limit in costs:
        head += [f"{name} ≤ {limit:g}", "margin", f"nominal {name}"]
    head += ["seeds within limits", "critical radius"]
    rows = []
    for run, name, outcome in zip(group, names, ended, strict=True):
        cells = [Cell(name), Cell(_progress(run).removesuffix(" iterations"))]
        if outcome is None:
            rows.append([*cells, *[Cell("–")] * (len(head) - 2)])
            continue
        mean = outcome.standings[-1]
        cells += [Cell(shown(float(f"{v:.4g}"))) for v in (mean.reward, mean.nominal_reward)]
        for i, (_, limit) in enumerate(costs):
            left = limit - mean.costs[i]
            cells += [
                Cell(shown(float(f"{mean.costs[i]:.4g}"))),
                Cell(margin(left), "good" if left >= 0 else "bad"),
                Cell(shown(float(f"{mean.nominal_costs[i]:.4g}"))),
            ]
        kept = [_keeps_limits(run, each) for each in outcome.standings if each.label != "mean"]
        critical = "–" if run.stress is None else critical_in_words(run.stress)
        rows.append([*cells, Cell(f"{sum(kept)} of {len(kept)}"), Cell(critical)])
    title = "How the runs ended, mean over seeds, in the worst case"
    if len(group) > _FEW:
        return Table("ends", title, head, rows)
    turned = list(zip([Cell(name) for name in head], *rows, strict=True))
    return Table("ends", title, [cell.text for cell in turned[0]], turned[1:], wide=False)
