"""Finished jobs as bytes: one file each, found again by its fingerprint."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import __version__
from holdfast.experiments.configuration import Job
from holdfast.experiments.results import Bound, Result, columns
from holdfast.model import RobustCMDP
from holdfast.model.npz import model_to_arrays

FORMAT = "holdfast-job-2"
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
    description = {"job": job.to_dict(), "model": digest, "version": __version__, "format": FORMAT}
    return hashlib.sha256(_canonical(description)).hexdigest()


def to_bytes(result: Result, mark: str) -> bytes:
    """A result under its fingerprint, as a `.npz` file."""
    header = {
        "format": FORMAT,
        "fingerprint": mark,
        "job": result.job.to_dict(),
        "status": result.status,
        "bounds": [dataclasses.asdict(bound) for bound in result.bounds],
        "certificate": result.certificate,
        "cpu_seconds": result.cpu_seconds,
    }
    arrays = {_HISTORY + name: np.asarray(value) for name, value in result.history.items()}
    arrays["policy"] = result.policy
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def load(path: Path, mark: str) -> Result | None:
    """What `to_bytes` gave under this fingerprint; None if there is nothing that can be read."""
    if not path.is_file():
        return None
    # A damaged archive can raise nearly anything; whatever is wrong with it, the job is run again.
    try:
        found, result = read(path)
    except Exception:
        return None
    return result if found == mark else None


def read(path: Path) -> tuple[str, Result]:
    """The fingerprint and the result that a file holds; raises nearly anything if it is damaged."""
    # Opened here, since np.load leaves a file that it cannot read open.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(str(arrays["header"]))
    if header["format"] != FORMAT:
        raise ValueError(f"{path}: of the format {header['format']!r}, not {FORMAT!r}")
    history = {
        name.removeprefix(_HISTORY): value
        for name, value in arrays.items()
        if name.startswith(_HISTORY)
    }
    bounds = tuple(Bound(**bound) for bound in header["bounds"])
    columns(history, bounds)  # raises where one is missing or has the wrong shape
    result = Result(
        job=Job.from_dict(header["job"]),
        status=str(header["status"]),
        bounds=bounds,
        policy=arrays["policy"],
        history=history,
        certificate=header["certificate"],
        cpu_seconds=float(header["cpu_seconds"]),
    )
    return str(header["fingerprint"]), result


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
