"""Numbers as files: JSON, CSV, every iterate of an experiment, and the versions behind them."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast._support.files import write_text
from holdfast.experiments.results import Results, columns

# The wall clock is the only thing that differs between equal runs, and it has a file of its own.
_NOT_IN_DATA = ("seconds",)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON that every reader accepts: NaN becomes null, an infinity the string "inf"."""
    write_text(path, to_json(value) + "\n")


def to_json(value: Any) -> str:
    """JSON text as `write_json` writes it."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a CSV file; floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_plain_number(value) for value in row] for row in rows)
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


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = _plain_number(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _plain_number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
