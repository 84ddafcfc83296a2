"""Models as `.npz` files: arrays and a JSON header, nothing that could be executed."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from holdfast._support.files import write_bytes
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint
from holdfast.model.kernel import Kernel
from holdfast.uncertainty import SETS

_FORMAT = "holdfast-model-1"
# What reading a damaged archive raises; zipfile says RuntimeError to flags that it does not know.
_UNREADABLE = (
    ValueError,
    TypeError,
    OSError,
    EOFError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def model_to_arrays(model: RobustCMDP) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All that a model states: a header that JSON can hold, and arrays by name."""
    uncertainty, set_arrays = model.uncertainty.to_arrays()  # type: ignore[union-attr]
    header = {
        "format": _FORMAT,
        "discount": model.discount,
        "constraints": [
            {"threshold": c.threshold, "sense": c.sense, "name": c.name} for c in model.constraints
        ],
        "uncertainty": uncertainty,
    }
    arrays: dict[str, Any] = {"reward": model.reward, "initial": model.initial}
    if isinstance(model.transitions, Kernel):
        arrays["successors"] = model.transitions.successors
        arrays["probabilities"] = model.transitions.probabilities
    else:
        arrays["transitions"] = model.transitions
    arrays |= {f"constraint_{i}": c.signal for i, c in enumerate(model.constraints)}
    arrays |= {f"uncertainty_{name}": value for name, value in set_arrays.items()}
    return header, arrays


def model_to_bytes(model: RobustCMDP) -> bytes:
    """A model as the content of a `.npz` file."""
    header, arrays = model_to_arrays(model)
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def model_from_bytes(data: bytes, name: str = "model") -> RobustCMDP:
    """The inverse of `model_to_bytes`; the model's own checks apply to it."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        header = json.loads(str(arrays["header"]))
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']!r}, expected {_FORMAT!r}")
        if header["uncertainty"]["set"] not in SETS:
            raise ValueError(f"unknown uncertainty set {header['uncertainty']['set']!r}")
        return _from_arrays(header, arrays)
    except KeyError as error:
        raise ValueError(f"{name}: not a Holdfast model: it has no {error}") from error
    except _UNREADABLE as error:
        raise ValueError(f"{name}: not a Holdfast model: {error}") from error


def save_model(model: RobustCMDP, path: str | os.PathLike[str]) -> None:
    """Writes a model whole or not at all."""
    write_bytes(path, model_to_bytes(model))


def load_model(path: str | os.PathLike[str]) -> RobustCMDP:
    """Reads a model that `save_model` wrote; the model's own checks apply to it."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: not a Holdfast model: {error}") from error
    return model_from_bytes(data, str(path))


def _from_arrays(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> RobustCMDP:
    transitions: Any = arrays.get("transitions")
    if transitions is None:
        transitions = Kernel(arrays["successors"], arrays["probabilities"])
    set_arrays = {
        name.removeprefix("uncertainty_"): value
        for name, value in arrays.items()
        if name.startswith("uncertainty_")
    }
    uncertainty = SETS[header["uncertainty"]["set"]]
    return RobustCMDP(
        transitions=transitions,
        reward=arrays["reward"],
        constraints=[
            Constraint(arrays[f"constraint_{i}"], c["threshold"], c["sense"], c["name"])
            for i, c in enumerate(header["constraints"])
        ],
        initial=arrays["initial"],
        discount=header["discount"],
        uncertainty=uncertainty.from_arrays(header["uncertainty"], set_arrays),
    )
