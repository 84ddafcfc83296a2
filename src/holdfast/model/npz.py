"""Model files: a `.npz` archive of arrays and a JSON header. No code in a file is executed."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint
from holdfast.model.kernel import Kernel
from holdfast.model.rules import Reach, reach
from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty import UncertaintySet

_FORMAT = "holdfast-model-1"


def model_to_arrays(model: RobustCMDP) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return everything a model states: a JSON header, and arrays by name."""
    uncertainty, set_arrays = model.uncertainty.to_arrays()  # type: ignore[union-attr]
    header = {
        "format": _FORMAT,
        "discount": model.discount,
        "constraints": [_described(constraint) for constraint in model.constraints],
        "uncertainty": uncertainty,
    }
    if model.horizon is not None:
        header["horizon"] = model.horizon
    arrays: dict[str, Any] = {"reward": model.reward, "initial": model.initial}
    if isinstance(model.transitions, Kernel):
        arrays["successors"] = model.transitions.successors
        arrays["probabilities"] = model.transitions.probabilities
    else:
        arrays["transitions"] = model.transitions
    if model.allowed is not None:
        arrays["allowed"] = model.allowed
    sums = {i: c for i, c in enumerate(model.constraints) if not isinstance(c, Reach)}
    arrays |= {f"constraint_{i}": c.signal for i, c in sums.items()}
    arrays |= {f"uncertainty_{name}": value for name, value in set_arrays.items()}
    return header, arrays


def _described(constraint: Constraint) -> dict[str, Any]:
    """Return what a header says about a constraint; a sum over all steps is the default."""
    described: dict[str, Any] = {
        "threshold": constraint.threshold,
        "sense": constraint.sense,
        "name": constraint.name,
    }
    if constraint.per != "total":
        described["per"] = constraint.per
    if isinstance(constraint, Reach):
        described |= {"reach": list(constraint.states), "avoid": list(constraint.avoid)}
    return described


def _constraint(described: dict[str, Any], arrays: dict[str, np.ndarray], index: int) -> Constraint:
    if "reach" in described:
        sense = described["sense"]
        return reach(
            described["reach"],
            avoid=described["avoid"],
            name=described["name"],
            **{sense: described["threshold"]},
        )
    return Constraint(
        arrays[f"constraint_{index}"],
        described["threshold"],
        described["sense"],
        described["name"],
        described.get("per", "total"),
    )


def model_to_bytes(model: RobustCMDP) -> bytes:
    """Return a model as the content of a `.npz` file."""
    header, arrays = model_to_arrays(model)
    file = io.BytesIO()
    np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def model_from_bytes(data: bytes, name: str = "model") -> RobustCMDP:
    """Return the model in the content of a file; the checks of `RobustCMDP` apply.

    Raises:
        ValueError: the content is damaged or is not a model; the message starts with the name.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        header = json.loads(str(arrays["header"]))
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']!r}, expected {_FORMAT!r}")
        return _from_arrays(header, arrays)
    except Exception as error:  # zipfile, zlib and NumPy raise eight kinds for damaged archives
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{name}: not a Holdfast model: {reason}") from error


def load_model(path: str | os.PathLike[str]) -> RobustCMDP:
    """Return the model in a file that `RobustCMDP.save` wrote; the checks of `RobustCMDP` apply."""
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
    uncertainty = UNCERTAINTY.find(header["uncertainty"]["set"])
    # A file may name any object. Only a subclass of `UncertaintySet` is called.
    if not (isinstance(uncertainty, type) and issubclass(uncertainty, UncertaintySet)):
        raise ValueError(f"uncertainty: {header['uncertainty']['set']!r} is not an uncertainty set")
    own = "uncertainty_"
    fields = {name[len(own) :]: arrays[name] for name in arrays if name.startswith(own)}
    return RobustCMDP(
        transitions=transitions,
        reward=arrays["reward"],
        constraints=[
            _constraint(described, arrays, i) for i, described in enumerate(header["constraints"])
        ],
        initial=arrays["initial"],
        discount=header["discount"],
        horizon=header.get("horizon"),
        allowed=arrays.get("allowed"),
        uncertainty=uncertainty.from_arrays(header["uncertainty"], fields),
    )
