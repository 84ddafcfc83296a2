"""Writes the tables and figures of an experiment into its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast._support.files import write_json, write_text
from holdfast.experiments.results import DeepResults, Results, Trained
from holdfast.report import tables
from holdfast.report.charts import Axis, Chart, Limit, label_of, over_seeds, styles_of
from holdfast.report.comparison import simulator_rows
from holdfast.report.figures import write_charts, write_figure, write_plane, write_radii
from holdfast.report.stress import plot_stress


def write_experiment(folder: Path, results: Sequence[Results]) -> None:
    """Write the tables of an experiment on tables, and a folder of figures for each model.

    `figure` shows reward and constraints against iterations, `plane` reward against margin, and
    `MODEL-radii` both against the radius; each is written as PNG and SVG. `data.csv` has every iterate.
    All files except `timings.*` and `versions.json` depend on the results only.
    """
    write_json(folder / "versions.json", tables.versions())
    tables.write_comparison(folder, results)
    tables.write_chosen(folder, results)
    for found in results:
        tables.write_data(folder / found.cell / "data.csv", found)
        write_figure(folder / found.cell / "figure", found)
        write_plane(folder / found.cell / "plane", found)
    for environment in dict.fromkeys(found.environment for found in results):
        same = [found for found in results if found.environment == environment]
        if len(same) > 1:
            write_radii(folder / f"{environment}-radii", same)


def write_simulator_experiment(folder: Path, results: DeepResults) -> None:
    """Write the tables and figures of an experiment in a simulator.

    `figure.png` is for the first step size and `figure-STEP.png` for the others: learning curves beside
    rewards and costs under noise and attacks. `undisturbed.png` shows the baselines without disturbance.
    """
    experiment = results.experiment
    write_json(folder / "versions.json", tables.versions())
    write_text(folder / "table.md", tables.simulator_markdown(results))
    tables.write_records(folder / "table.csv", simulator_rows(results))
    tables.write_learning(folder / "learning.csv", results)
    for i, trust_region in enumerate(experiment.trust_regions):
        name = "figure" if i == 0 else f"figure-{trust_region:g}"
        names = (*experiment.algorithms, *experiment.references)
        shown = {label_of(each): results.of(each, trust_region) for each in names}
        stressed = {label: each.stress for label, each in shown.items() if each.stress is not None}
        cost = next(iter(stressed.values())).cost_names[0]
        learning = _learning_charts("training, nominal kernel", shown, cost, experiment.cost_limit)
        for suffix in (".png", ".svg"):
            plot_stress(folder / f"{name}{suffix}", stressed, learning=learning)
    quiet = {
        f"{label_of(job.algorithm)}, step {job.trust_region:g}": trained
        for job, trained in results.runs.items()
        if not job.noise
    }
    if quiet:
        charts = _learning_charts("undisturbed", quiet, cost, experiment.cost_limit)
        title = "simulator without disturbance: mean ± 1 standard deviation over seeds"
        write_charts(folder / "undisturbed", list(charts.values()), title, [".png"])


def _learning_charts(
    name: str, shown: Mapping[str, Trained], cost: str, limit: float
) -> dict[str, Chart]:
    """Return charts of reward and cost during training under the nominal kernel, by signal."""
    columns = {"reward": ("nominal_reward", None, []), cost: ("nominal_costs", 0, [limit])}
    return {
        signal: Chart(
            name,
            Axis("iteration"),
            signal,
            [
                over_seeds(label, style, [*shown[label].curve(column, index)], band="deviation")
                for label, style in styles_of(shown).items()
            ],
            [Limit.at_most(signal, each) for each in limits],
        )
        for signal, (column, index, limits) in columns.items()
    }
