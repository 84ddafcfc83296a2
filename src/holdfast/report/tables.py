"""An experiment's numbers: every iterate as `data.csv`, a line for each algorithm, the settings."""

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
from holdfast._files import write_text
from holdfast.experiments.results import Results, columns

# The wall clock is the only thing that differs between equal runs, and it is in the summary.
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
        (job.algorithm, job.seed, *row)
        for job, table in tables
        for row in zip(*(table[name] for name in shared), strict=True)
    )
    write_csv(path, ("algorithm", "seed", *shared), rows)


def summary(results: Results) -> list[dict[str, Any]]:
    """A record for each algorithm, over its seeds; standard deviations are of the seeds at hand."""
    return [_summary_of(results, algorithm) for algorithm in results.runs]


def _summary_of(results: Results, algorithm: str) -> dict[str, Any]:
    runs = results.runs[algorithm]
    rewards = results.rewards(algorithm)
    record: dict[str, Any] = {
        "algorithm": algorithm,
        "seeds": len(runs),
        "reward_mean": rewards.mean(),
        "reward_std": rewards.std(),
    }
    for i, bound in enumerate(results.bounds):
        values = bound.values(np.array([run.history["margins"][-1, i] for run in runs]))
        suffix = "" if len(results.bounds) == 1 else f"_{i}"
        record[f"{bound.kind}{suffix}_mean"] = values.mean()
        record[f"{bound.kind}{suffix}_std"] = values.std()
    after_first = np.concatenate([run.feasible_after_first for run in runs])
    return record | {
        "smallest_margin": results.margins(algorithm).min(),
        "seeds_feasible": int(results.feasible(algorithm).sum()),
        "infeasible_share_after_first_feasible": (
            float(np.mean(~after_first)) if after_first.size else math.nan
        ),
        "seconds": sum(float(run.history["seconds"][-1]) for run in runs),
    }


def write_summary(folder: Path, results: Results) -> None:
    """Writes `summary.json` and `summary.csv`."""
    records = summary(results)
    thresholds = [
        {"kind": bound.kind, "threshold": bound.threshold, "name": bound.name}
        for bound in results.bounds
    ]
    write_json(
        folder / "summary.json",
        {
            "environment": results.experiment.environment,
            "constraints": thresholds,
            "algorithms": records,
        },
    )
    write_csv(
        folder / "summary.csv", list(records[0]), (list(record.values()) for record in records)
    )


def write_config(path: Path, results: Results) -> None:
    """Writes the experiment, fully spelled out, and what it was run with."""
    write_json(
        path,
        {
            "experiment": results.experiment.to_dict(),
            "model_sha256": results.model,
            "versions": versions(),
        },
    )


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
