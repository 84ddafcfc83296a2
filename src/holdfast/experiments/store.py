"""The folder of an experiment: `experiment.json`, and one file per finished solve."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast._support.archives import read_arrays
from holdfast._support.files import read_json, write_json
from holdfast.experiments.description import Experiment, TabularExperiment
from holdfast.experiments.jobs import Job, SolveSettings, cell_name
from holdfast.experiments.results import ConstraintThreshold, Result, Results, columns
from holdfast.model import RobustCMDP
from holdfast.model.npz import model_to_arrays

RECORD = "experiment.json"
_RECORD_FORMAT = "holdfast-experiment-1"
_JOB_FORMAT = "holdfast-job-2"
_HISTORY, _ARRAYS = "history_", ("header", "policy")

Find = Callable[[Job], Result | None]


def model_digest(model: RobustCMDP) -> str:
    """Return the SHA-256 of a model's content.

    Example:
        >>> import holdfast as hf
        >>> model_digest(hf.environments.gambler()) == model_digest(hf.environments.n_chain())
        False
    """
    header, arrays = model_to_arrays(model)
    header["arrays"] = {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()}
    digest = hashlib.sha256(_canonical(header))
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def fingerprint(job: Job, digest: str) -> str:
    """Return the SHA-256 of everything that decides a result: job, model and version of Holdfast."""
    decisive = {
        "job": job.to_dict(),
        "model": digest,
        "version": __version__,
        "format": _JOB_FORMAT,
    }
    return hashlib.sha256(_canonical(decisive)).hexdigest()


def to_bytes(result: Result, mark: str) -> bytes:
    """Return the content of the `.npz` file of a result, with its fingerprint."""
    header = {
        "format": _JOB_FORMAT,
        "fingerprint": mark,
        "job": result.job.to_dict(),
        "status": result.status,
        "bounds": [dataclasses.asdict(bound) for bound in result.bounds],
        "certificate": result.certificate,
        "cpu_seconds": result.cpu_seconds,
    }
    arrays = {_HISTORY + name: np.asarray(value) for name, value in result.history.items()}
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), policy=result.policy, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def read(path: Path) -> tuple[str, Result] | None:
    """Return the fingerprint and the result in a file; None if the file is missing or damaged."""
    try:
        arrays = read_arrays(path, lambda name: name in _ARRAYS or name.startswith(_HISTORY))
        header = json.loads(str(arrays["header"]))
        bounds = tuple(ConstraintThreshold(**bound) for bound in header["bounds"])
        result = Result(
            job=Job.from_dict(header["job"]),
            status=str(header["status"]),
            bounds=bounds,
            policy=arrays["policy"],
            history={
                name.removeprefix(_HISTORY): value
                for name, value in arrays.items()
                if name.startswith(_HISTORY)
            },
            certificate=header["certificate"],
            cpu_seconds=float(header["cpu_seconds"]),
        )
        columns(result.history, bounds)  # raises if a column is missing or has the wrong shape
        return (header["fingerprint"], result) if header["format"] == _JOB_FORMAT else None
    except Exception:  # a damaged archive raises many kinds of exception; the job runs again
        return None


def write_record(folder: Path, experiment: Experiment, models: Mapping[str, str]) -> None:
    """Write `experiment.json`.

    Arguments:
        folder: the experiment's folder.
        experiment: the experiment.
        models: SHA-256 of each model's content, by cell.
    """
    content = {
        "format": _RECORD_FORMAT,
        "experiment": experiment.to_dict(),
        "models": models,
        "version": __version__,
    }
    write_json(folder / RECORD, content)


def read_record(folder: Path) -> tuple[Experiment, dict[str, str]]:
    """Return the experiment in a folder, and the SHA-256 of each model's content by cell.

    Raises:
        ValueError: the folder holds no experiment, a damaged one, or one of another format.
    """
    path = folder / RECORD
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        content = read_json(path, "the record of an experiment")
        form, made = content["format"], content.get("version", "another version")
        if form == _RECORD_FORMAT:
            return Experiment.from_dict(content["experiment"]), dict(content["models"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: damaged, not the record of an experiment ({error})") from error
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: {reason}") from error
    raise ValueError(f"{path}: format {form!r}, made by {made}; this is {__version__}")


def read_experiment(folder: Path) -> list[Results]:
    """Return the results in a folder so far, one per model and radius, of any version of Holdfast.

    Missing and unreadable jobs are left out. An experiment on simulators has no results here: its
    training runs have folders of their own.

    Raises:
        ValueError: the folder holds no experiment.
    """
    experiment, models = read_record(folder)
    if not isinstance(experiment, TabularExperiment):
        return []

    def described(job: Job) -> Result | None:
        _, result = read(folder / job.path) or ("", None)
        return result if result is not None and result.job == job else None

    return collect(experiment, models, described)


def collect(experiment: TabularExperiment, models: Mapping[str, str], find: Find) -> list[Results]:
    """Return the results of finished jobs, one per model and radius that has any."""
    runs: dict[str, dict[str, list[Result]]] = {}
    for job in experiment.jobs(chosen(experiment, find)):
        result = find(job)
        if result is not None:
            runs.setdefault(job.cell, {}).setdefault(job.label, []).append(result)
    return [
        Results(experiment, runs[cell], models.get(cell, ""), environment, radius)
        for environment, radius in experiment.cells()
        if (cell := cell_name(environment, radius)) in runs
    ]


def chosen(experiment: Experiment, find: Find) -> dict[tuple[str, str], SolveSettings]:
    """Return the settings of the best finished run of the search, by cell and algorithm.

    The first of equally good settings wins.
    """
    best: dict[tuple[str, str], Result] = {}
    for job in experiment.search_jobs():
        result, key = find(job), (job.cell, job.algorithm)
        if result is not None and (key not in best or result.merit > best[key].merit):
            best[key] = result
    return {key: result.job.settings for key, result in best.items()}


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
