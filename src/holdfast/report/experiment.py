"""Everything that is written about one experiment, in its folder."""

from __future__ import annotations

from pathlib import Path

from holdfast.experiments.results import Results
from holdfast.report.figures import write_figure
from holdfast.report.tables import write_config, write_data, write_summary


def write_experiment(folder: Path, results: Results) -> None:
    """Writes the figure (PNG and SVG), `data.csv`, `summary.json`, `summary.csv`, `config.json`."""
    write_config(folder / "config.json", results)
    write_data(folder / "data.csv", results)
    write_summary(folder, results)
    write_figure(folder / "figure", results)
