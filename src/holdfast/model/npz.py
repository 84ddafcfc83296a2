"""Model files: a `.npz` archive of arrays and a JSON header. No code in a file is executed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from holdfast._support.archives import read_arrays
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint
from holdfast.model.kernel import Kernel
from holdfast.model.logs.summary import LogSummary
from holdfast.model.rules import Reach, reach
from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty import UncertaintySet

_FORMAT = "holdfast-model-1"
_ARRAYS = (
    *(
        "header",
        "reward",
        "initial",
        "successors",
        "probabilities",
        "transitions",
        "allowed",
        "policy",
    ),
)
_SET = "uncertainty_"
# Larger models are written as they are: loading maps them, and probabilities hardly become smaller.
_LARGEST_COMPRESSED = 1 << 26
# Fields that do not change any value. A file has them in its header under "about", if there are any.
_ABOUT = ("state_names", "action_names", "labels")


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
    about = {name: getattr(model, name) for name in _ABOUT}
    about["data"] = None if model.data is None else model.data.to_dict()
    if any(value is not None for value in about.values()):
        header["about"] = {name: value for name, value in about.items() if value is not None}
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
    arrays |= {f"{_SET}{name}": value for name, value in set_arrays.items()}
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
    """Return a model as the content of a `.npz` file; large models are not compressed."""
    header, arrays = model_to_arrays(model)
    file = io.BytesIO()
    large = sum(np.asarray(array).nbytes for array in arrays.values()) > _LARGEST_COMPRESSED
    save = np.savez if large else np.savez_compressed
    save(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def model_from_bytes(
    data: bytes | Path, name: str = "model", *, importing: bool = False
) -> RobustCMDP:
    """Return the model in the content of a file; the checks of `RobustCMDP` apply.

    Arguments:
        data: the content, or the path of the file, whose large arrays are then mapped.
        name: name of the file, for messages.
        importing: whether to import the module of a set that is not registered. Only for content that
            this program has made itself.

    Raises:
        ValueError: the content is damaged or is not a model; the message starts with the name.
    """
    try:
        arrays = read_arrays(data, _is_known)
        if "header" not in arrays and "policy" in arrays:
            raise ValueError("it has no 'header'; it is a policy, which belongs to a model")
        header = json.loads(str(arrays["header"]))
        if header["format"] != _FORMAT:
            raise ValueError(f"format {header['format']!r}, expected {_FORMAT!r}")
        find = UNCERTAINTY.find if importing else UNCERTAINTY.find_imported
        return _from_arrays(header, arrays, find)
    except Exception as error:  # a header may lack or misstate anything
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{name}: not a Holdfast model: {reason}") from error


def _is_known(name: str) -> bool:
    return name in _ARRAYS or name.startswith(("constraint_", _SET))


def _from_arrays(
    header: dict[str, Any], arrays: dict[str, np.ndarray], find: Callable[[str], Any]
) -> RobustCMDP:
    transitions: Any = arrays.get("transitions")
    if transitions is None:
        transitions = Kernel(arrays["successors"], arrays["probabilities"])
    uncertainty = find(header["uncertainty"]["set"])
    # A file may name any object. Only a subclass of `UncertaintySet` is called.
    if not (isinstance(uncertainty, type) and issubclass(uncertainty, UncertaintySet)):
        raise ValueError(f"uncertainty: {header['uncertainty']['set']!r} is not an uncertainty set")
    about = header.get("about", {})
    fields = {name[len(_SET) :]: arrays[name] for name in arrays if name.startswith(_SET)}
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
        **{name: about.get(name) for name in _ABOUT},
        data=LogSummary.from_dict(about["data"]) if "data" in about else None,
    )
