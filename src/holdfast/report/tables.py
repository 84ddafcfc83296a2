"""Numbers as files: JSON, CSV, every iterate of an experiment, and the versions behind them."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast._support.files import plain_number, write_text
from holdfast.experiments.results import Results, columns

# The wall clock is the only thing that differs between equal runs, and it has a file of its own.
_NOT_IN_DATA = ("seconds",)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file; floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([plain_number(value) for value in row] for row in rows)
    write_text(path, text.getvalue())


def write_data(path: Path, results: Results) -> None:
    """Writes every iterate of every run, a row each."""
    tables = [(result.job, columns(result.history, result.bounds)) for result in results]
    # Algorithms may record columns of their own; the file has those that all of them have.
    shared = [
        name
        for name in tables[0][1]
        if name not in _NOT_IN_DATA and all(name in table for _, table in tables)
    ]
    rows = (
        (job.label, job.seed, *row)
        for job, table in tables
        for row in zip(*(table[name] for name in shared), strict=True)
    )
    write_csv(path, ("algorithm", "seed", *shared), rows)


def versions() -> dict[str, str]:
    """The versions that results depend on."""
    return {
        "holdfast": __version__,
        "jax": version("jax"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }
