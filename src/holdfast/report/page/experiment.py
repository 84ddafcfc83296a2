"""A comparison of algorithms on tables, as sections: one for each model and radius."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.experiments.results import Result, Results, smallest_margins
from holdfast.report.figures import iteration_ticks
from holdfast.report.page.certificate import margin, shown
from holdfast.report.page.content import (
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
from holdfast.report.page.solution import kernel_blocks, limit_of

_PREFERRED = "rcpo"


def experiment_sections(folder: str, results: Sequence[Results], version: str) -> list[Section]:
    """A section for each of an experiment's models.

    Arguments:
        folder: of the experiment.
        results: one for each environment and radius.
        version: of Holdfast, that ran it.
    """
    return [_section(folder, each, version) for each in results]


def _section(folder: str, results: Results, version: str) -> Section:
    radius = "" if results.radius is None else f", radius {results.radius:g}"
    names = list(results.runs)
    looks = dict(zip(names, looks_of(names), strict=True))
    seeds = max(len(ended) for ended in results.runs.values())
    facts = [
        Cell(f"{len(names)} algorithms"),
        Cell(f"{seeds} {'seed' if seeds == 1 else 'seeds'}"),
        *(Cell(limit_of(bound).label) for bound in results.bounds),
    ]
    blocks: list[Block] = [
        *_curves(results, looks),
        _against_margin(results, looks),
        _table(results),
        *_kernels(results),
        Details("settings", "Configuration", flat_entries(results.experiment.to_dict())),
        Details("versions", "Versions", [("holdfast", version), ("model_sha256", results.model)]),
    ]
    title = f"{results.environment}{radius}"
    return Section(f"experiment {folder} {title}", title, [folder], facts, blocks)


def _curves(results: Results, looks: Mapping[str, Look]) -> list[Block]:
    most = max(len(ended.history["reward"]) for runs in results.runs.values() for ended in runs) - 1
    axis = Axis("iteration (square-root scale)", "sqrt", iteration_ticks(max(most, 1)))
    about = "The line is the mean over seeds, the band reaches from the lowest to the highest."
    zero = Limit(0.0, "margin ≥ 0", "below")

    def views(wanted: Mapping[str, str], limits: Sequence[Limit] = ()) -> list[View]:
        return [
            View(
                name,
                axis,
                name,
                [
                    _series(results, algorithm, looks[algorithm], column)
                    for algorithm in results.runs
                ],
                limits,
            )
            for name, column in wanted.items()
        ]

    rewards = {"worst-case reward": "reward", "nominal reward": "nominal_reward"}
    margins = {"smallest margin": "smallest"}
    if len(results.bounds) > 1:
        margins |= {
            f"margin of {b.name or b.kind} {i + 1}": f"margins {i}"
            for i, b in enumerate(results.bounds)
        }
    blocks: list[Block] = [Lines("reward", "Reward", about, views(rewards))]
    if results.bounds:
        title = "Margin in the worst case"
        blocks.append(
            Lines(
                "margin",
                title,
                f"{about} Below zero a constraint is violated.",
                views(margins, [zero]),
            )
        )
    return blocks


def _column(ended: Result, column: str) -> np.ndarray:
    if column == "smallest":
        return smallest_margins(ended.history)
    if column.startswith("margins "):
        return ended.history["margins"][:, int(column.split()[1])]
    return ended.history[column]


def _series(results: Results, algorithm: str, look: Look, column: str) -> Series:
    found = [_column(ended, column) for ended in results.runs[algorithm]]
    rows = min(map(len, found))
    curves = np.stack([values[:rows] for values in found])
    kept = kept_rows(rows)
    several = len(curves) > 1
    return Series(
        label_of(algorithm),
        look.colour,
        look.dash,
        numbers(kept),
        numbers(curves.mean(0)[kept]),
        numbers(curves.min(0)[kept]) if several else None,
        numbers(curves.max(0)[kept]) if several else None,
    )


def _against_margin(results: Results, looks: Mapping[str, Look]) -> Scatter:
    return Scatter(
        "against",
        "Worst-case reward against margin",
        "Where each seed ended.",
        "smallest margin in the worst case",
        "worst-case reward",
        [
            Cloud(
                label_of(algorithm),
                *looks[algorithm],
                [
                    Point(number(e.margin), number(e.reward), f"seed {e.seed}", e.feasible)
                    for e in ended
                ],
            )
            for algorithm, ended in results.runs.items()
        ],
        [Limit(0.0, "margin ≥ 0", "below", "x")],
    )


def _table(results: Results) -> Table:
    rows = []
    for algorithm, ended in results.runs.items():
        rewards = np.array([each.reward for each in ended])
        nominal = np.array([each.history["nominal_reward"][-1] for each in ended])
        smallest = min(each.margin for each in ended)
        feasible = sum(each.feasible for each in ended)
        rows.append(
            [
                Cell(label_of(algorithm)),
                Cell(shown(rewards.mean())),
                Cell(shown(nominal.mean())),
                Cell(margin(smallest), "good" if feasible == len(ended) else "bad"),
                Cell(f"{feasible} of {len(ended)}"),
            ]
        )
    head = ["", "worst-case reward", "nominal reward", "smallest margin", "feasible"]
    if any(math.isfinite(each.gap) for ended in results.runs.values() for each in ended):
        head.append("certified gap")
        for row, ended in zip(rows, results.runs.values(), strict=True):
            row.append(Cell(_largest_gap(ended)))
    return Table("ends", "How the runs ended, mean over seeds", head, rows, wide=False)


def _largest_gap(ended: Sequence[Result]) -> str:
    """How far from the best possible the seeds may be."""
    gaps = [each.gap for each in ended]
    return f"≤ {100 * max(gaps):.2g} %" if all(map(math.isfinite, gaps)) else "–"


def _kernels(results: Results) -> list[Block]:
    """What nature does to the policy of one of the runs, where the model is at hand."""
    from holdfast.environments import MODELS
    from holdfast.experiments.store import model_digest

    if results.environment not in MODELS:
        return []
    model = MODELS[results.environment]()
    if results.radius is not None and model.uncertainty is not None:
        model = model.replace(uncertainty=model.uncertainty.with_radius(results.radius))
    if model_digest(model) != results.model:
        return []
    algorithm = next((name for name in results.runs if name.split()[0] == _PREFERRED), None)
    algorithm = algorithm or next(iter(results.runs))
    ended = results.runs[algorithm][0]
    return kernel_blocks(model, ended.policy, f"{label_of(algorithm)}, seed {ended.seed}")
