"""Everything that is written about an experiment in a simulator, in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from holdfast._support.files import write_json, write_text
from holdfast.experiments.results import DeepResults, Trained
from holdfast.report.stress import Learning, plot_learning, plot_stress
from holdfast.report.tables import versions, write_csv
from holdfast.simulators.certificates.intervals import Measured

# The noise on actions under which the authors test.
AUTHORS_NOISE = 0.1


class Line(NamedTuple):
    """One algorithm's line of the table: nominal, perturbed, attacked; and where its limit breaks."""

    algorithm: str
    trust_region: float
    nominal_reward: Measured
    nominal_cost: Measured
    perturbed_reward: Measured
    perturbed_cost: Measured
    attacked_reward: Measured
    attacked_cost: Measured
    critical_radius: float
    beyond_tested: bool


def lines(results: DeepResults) -> list[Line]:
    """The table, by step size and algorithm."""
    experiment = results.experiment
    return [
        _line(results.of(algorithm, trust_region), experiment.radius)
        for trust_region in experiment.trust_regions
        for algorithm in experiment.algorithms
    ]


def _line(trained: Trained, radius: float) -> Line:
    found = trained.stress
    assert found is not None, trained.job
    cost = found.cost_names[0]

    def at(signal: str, kind: str, level: float) -> Measured:
        return dict(found.curve(signal, kind))[level]

    return Line(
        trained.job.algorithm,
        trained.job.trust_region,
        found.rows[0].reward,
        found.rows[0].costs[0],
        at("reward", "action noise", AUTHORS_NOISE),
        at(cost, "action noise", AUTHORS_NOISE),
        at("reward", "attack", radius),
        at(cost, "attack", radius),
        found.critical_radius,
        found.beyond_tested,
    )


def write_deep_experiment(folder: Path, results: DeepResults) -> None:
    """Writes the figures, `table.md`, `table.csv`, `learning.csv` and `versions.json`.

    `figure.png` is for the first step size and `figure-STEP.png` for the others: learning curves beside
    what noise and attacks leave. `undisturbed.png` has the baselines where nothing disturbs them.
    """
    experiment = results.experiment
    write_json(folder / "versions.json", versions())
    write_text(folder / "table.md", table_markdown(results))
    _write_table(folder / "table.csv", results)
    _write_learning(folder / "learning.csv", results)
    for i, trust_region in enumerate(experiment.trust_regions):
        name = "figure" if i == 0 else f"figure-{trust_region:g}"
        shown = [results.of(algorithm, trust_region) for algorithm in experiment.algorithms]
        more = [results.of(algorithm, trust_region) for algorithm in experiment.references]
        stressed = {_label(each): each.stress for each in shown if each.stress is not None}
        cost = next(iter(stressed.values())).cost_names[0]
        learned = {_label(each): _learning(each, cost) for each in (*shown, *more)}
        for suffix in (".png", ".svg"):
            plot_stress(folder / f"{name}{suffix}", stressed, learning=learned)
    quiet = {
        f"{_label(run)}, step {run.job.trust_region:g}": _learning(run, cost)
        for job, run in results.runs.items()
        if not job.noise
    }
    if quiet:
        plot_learning(folder / "undisturbed.png", quiet, (experiment.cost_limit,))


def _label(trained: Trained) -> str:
    return trained.job.algorithm.upper()


def _learning(trained: Trained, cost: str) -> Learning:
    rewards, costs = trained.curve("nominal_reward"), trained.curve("nominal_costs", 0)
    return Learning(
        {"reward": (rewards.mean(0), rewards.std(0)), cost: (costs.mean(0), costs.std(0))}
    )


def table_markdown(results: DeepResults) -> str:
    """The table as Markdown."""
    experiment = results.experiment
    head = [
        "algorithm",
        "step",
        "nominal reward",
        "nominal cost",
        f"reward, noise {AUTHORS_NOISE:g} on actions",
        f"cost, noise {AUTHORS_NOISE:g} on actions",
        f"reward, attack {experiment.radius:g}",
        f"cost, attack {experiment.radius:g}",
        "critical radius",
    ]
    rows = [
        [
            line.algorithm.upper(),
            f"{line.trust_region:g}",
            *(_shown(value) for value in line[2:8]),
            _critical(line),
        ]
        for line in lines(results)
    ]
    text = [" | ".join(head), " | ".join(["---"] * len(head)), *(" | ".join(row) for row in rows)]
    note = (
        f"Mean over {experiment.seeds} seeds of {experiment.episodes:,} episodes each, in brackets "
        f"its 95 % confidence interval. The limit on the cost is {experiment.cost_limit:g}. An "
        "attack is the strongest adversary found against the frozen policy, for the reward and for "
        "the cost on its own."
    )
    return "\n".join(f"| {line} |" for line in text) + f"\n\n{note}\n"


def _shown(value: Measured) -> str:
    return f"{value.mean:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _critical(line: Line) -> str:
    if np.isnan(line.critical_radius):
        return "over the limit nominally"
    return f"{'≥ ' if line.beyond_tested else ''}{line.critical_radius:.2g}"


def _write_table(path: Path, results: DeepResults) -> None:
    head: list[str] = ["algorithm", "trust_region"]
    for name in Line._fields[2:8]:
        head += [name, f"{name}_low", f"{name}_high"]
    rows: list[list[Any]] = []
    for line in lines(results):
        row: list[Any] = [line.algorithm, line.trust_region]
        for value in line[2:8]:
            row += [value.mean, value.low, value.high]
        rows.append([*row, line.critical_radius])
    write_csv(path, [*head, "critical_radius"], rows)


def _write_learning(path: Path, results: DeepResults) -> None:
    head = ("algorithm", "trust_region", "noise", "seed", "iteration", "reward", "cost")
    more = ("nominal_reward", "nominal_cost", "inner_limit", "kl")
    rows = (
        (
            job.algorithm,
            job.trust_region,
            job.noise,
            row["seed"],
            row["iteration"],
            row["reward"],
            row["costs"][0],
            row["nominal_reward"],
            row["nominal_costs"][0],
            row["inner_limits"][0],
            row["kl"],
        )
        for job, trained in results.runs.items()
        for row in trained.rows
    )
    write_csv(path, head + more, rows)
