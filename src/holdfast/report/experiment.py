"""Everything that is written about an experiment on tables, in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast._support.files import write_json
from holdfast.experiments.results import Results
from holdfast.report.comparison_figures import write_plane, write_radii
from holdfast.report.comparison_tables import write_chosen, write_comparison
from holdfast.report.figures import write_figure
from holdfast.report.tables import versions, write_data


def write_experiment(folder: Path, results: Sequence[Results]) -> None:
    """Writes the tables and, in a folder for each model, the figures and `data.csv`.

    `figure` has reward and constraints against iterations, `plane` the reward against the margin; a
    model at several radii also gets `MODEL-radii`. Each is there as PNG and SVG.

    Everything but `timings.*` and `versions.json` depends on the results alone.
    """
    write_json(folder / "versions.json", versions())
    write_comparison(folder, results)
    write_chosen(folder, results)
    for found in results:
        write_data(folder / found.cell / "data.csv", found)
        write_figure(folder / found.cell / "figure", found)
        write_plane(folder / found.cell / "plane", found)
    for environment in dict.fromkeys(found.environment for found in results):
        same = [found for found in results if found.environment == environment]
        if len(same) > 1:
            write_radii(folder / f"{environment}-radii", same)
