"""Finished jobs on disk: one file each, whole or not there, found again by its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast._files import atomic_write
from holdfast._model import RobustCMDP
from holdfast._model_file import model_to_arrays
from holdfast.experiments.configuration import Job
from holdfast.experiments.results import Bound, Result, columns

_FORMAT = "holdfast-job-1"
_HISTORY = "history_"


def model_digest(model: RobustCMDP) -> str:
    """SHA-256 of everything that a model states."""
    header, arrays = model_to_arrays(model)
    header["arrays"] = {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()}
    digest = hashlib.sha256(_canonical(header))
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def fingerprint(job: Job, digest: str) -> str:
    """SHA-256 of all that decides a job's result: its description, its model and our version."""
    description = {"job": job.to_dict(), "model": digest, "version": __version__, "format": _FORMAT}
    return hashlib.sha256(_canonical(description)).hexdigest()


def job_path(folder: Path, job: Job) -> Path:
    """Where a job's file lies in the experiment's folder."""
    return folder / "jobs" / f"{job.algorithm}-seed-{job.seed}.npz"


def save(path: Path, result: Result, mark: str) -> None:
    """Writes a result under its fingerprint."""
    header = {
        "format": _FORMAT,
        "fingerprint": mark,
        "job": result.job.to_dict(),
        "status": result.status,
        "bounds": [dataclasses.asdict(bound) for bound in result.bounds],
    }
    arrays = {_HISTORY + name: np.asarray(value) for name, value in result.history.items()}
    arrays["policy"] = result.policy
    with atomic_write(path) as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]


def load(path: Path, job: Job, mark: str) -> Result | None:
    """What `save` wrote under this fingerprint; None if there is nothing that can be read."""
    if not path.is_file():
        return None
    try:
        # Opened here, since np.load leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays["header"]))
        if header["fingerprint"] != mark:
            return None
        history = {
            name.removeprefix(_HISTORY): value
            for name, value in arrays.items()
            if name.startswith(_HISTORY)
        }
        bounds = tuple(Bound(**bound) for bound in header["bounds"])
        columns(history, bounds)  # raises where one is missing or has the wrong shape
        return Result(job, str(header["status"]), bounds, arrays["policy"], history)
    # A damaged archive can raise nearly anything; whatever is wrong with it, the job is run again.
    except Exception:
        return None


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
