"""UMB files, the binary format of several model checkers, through the package `umbi`."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from holdfast._support.files import write_bytes
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.explicit import ExplicitModel
from holdfast.model.kernel import Kernel
from holdfast.model.rules import Reach
from holdfast.uncertainty import Interval

# Largest number of states, choices or branches that a file may announce: a damaged number must not fill
# the memory.
_MOST = 1 << 27


def read_umb(path: Path) -> ExplicitModel:
    """Return the model in a UMB file: an MDP, an interval MDP or a Markov chain.

    Raises:
        ValueError: the model has several players, continuous time or observations, or is too large.
    """
    umb_format = _umbi("umb.umb_to_tar")
    decoder = umb_format.UmbDecoder(umbpath=path)
    umb = umb_format.ExplicitUmb()
    decoder.read_index_file(umb)
    system = umb.index.transition_system
    if system.time != "discrete" or system.num_players > 1 or system.num_observations:
        raise ValueError("expected an MDP: discrete time, one player and no observations")
    for name in ("states", "choices", "branches", "choice_actions", "branch_actions"):
        if getattr(system, f"num_{name}") > _MOST:
            raise ValueError(f"it announces {getattr(system, f'num_{name}')} {name}")
    # Valuations of variables have no place in a model here, and are not read.
    for part in (
        decoder.read_state_files,
        decoder.read_transition_files,
        decoder.read_annotation_files,
    ):
        part(umb)
    states, choices, branches = system.num_states, system.num_choices, system.num_branches
    of_state = _offsets(umb.state_to_choices, states, choices, "state-to-choices")
    of_choice = _offsets(umb.choice_to_branches, choices, branches, "choice-to-branches")
    branch_choice = np.repeat(np.arange(choices), np.diff(of_choice))
    choice_state = np.repeat(np.arange(states), np.diff(of_state))
    probabilities = _sized(umb.branch_to_probability or [1.0] * branches, branches, "probabilities")
    names = umb.choice_action_to_string
    chosen = umb.choice_to_choice_action
    to_branch = {
        "states": choice_state[branch_choice],
        "choices": branch_choice,
        "branches": np.arange(branches),
    }
    rewards = {}
    annotations = umb.annotations or {}
    for name, parts in annotations.get("rewards", {}).items():
        rewards[name] = sum(
            np.array(_sized(values, _count(system, where), name), float)[to_branch[where]]
            for where, values in parts.items()
        )
    labels = {
        name: np.flatnonzero(_sized(parts["states"], states, name)).tolist()
        for name, parts in annotations.get("aps", {}).items()
        if "states" in parts
    }
    return ExplicitModel(
        states=states,
        choice_state=choice_state,
        choice_name=[names[i] for i in chosen] if names and chosen else [""] * choices,
        branch_choice=branch_choice,
        target=np.array(_sized(umb.branch_to_target or [], branches, "targets"), int),
        lower=np.array([float(getattr(p, "left", p)) for p in probabilities]),
        upper=np.array([float(getattr(p, "right", p)) for p in probabilities]),
        rewards=rewards,
        labels=labels,
        initial=np.flatnonzero(_sized(umb.state_is_initial, states, "initial states")).tolist(),
    )


def write_umb(model: RobustCMDP, path: str | os.PathLike[str]) -> None:
    """Write a model to a UMB file: the nominal kernel, or the intervals of an `Interval` set.

    The reward and the constraints become reward structures, labels atomic propositions, and names of
    actions choice actions. Actions that are not allowed are left out. The format has no place for
    thresholds, the discount, rules on states and names of states.

    Raises:
        ValueError: the set is neither intervals nor the nominal kernel alone, the initial distribution
            is not uniform over some states, or the model has a horizon.
    """
    if model.horizon is not None:
        raise ValueError(
            "horizon: UMB files have none; replace(horizon=None, discount=…) writes the model without it"
        )
    umb_format, index = _umbi("umb.umb_to_tar"), _umbi("umb.index")
    datatypes, sized = _umbi("datatypes"), _umbi("binary").SizedType
    kernel = model.transitions
    successors = (
        kernel.successors
        if isinstance(kernel, Kernel)
        else np.broadcast_to(np.arange(model.states), model.nominal.shape)
    )
    initial = np.asarray(model.initial)
    start = initial > 0
    if np.ptp(initial[start]) > 1e-9:
        raise ValueError(
            "initial: UMB files have initial states without probabilities; expected a distribution that "
            "is uniform over some states"
        )
    bounds = _bounds(model)
    shape = model.states, model.actions
    allowed = np.ones(shape, bool) if model.allowed is None else np.asarray(model.allowed)
    kept = ((model.nominal if bounds is None else bounds[1]) > 0) & allowed[..., None]
    branches = kept.sum(-1)[allowed]
    system = index.TransitionSystem(
        num_players=1,
        num_states=model.states,
        num_initial_states=int(start.sum()),
        num_choices=int(allowed.sum()),
        num_choice_actions=model.actions if model.action_names else 0,
        num_branches=int(branches.sum()),
        branch_probability_type=sized.for_type(_type(datatypes, bounds is not None)),
    )
    umb = umb_format.ExplicitUmb()
    umb.index = index.UmbIndex(transition_system=system, annotations={}, valuations=None)
    umb.annotations = {}
    umb.state_is_initial = start.tolist()
    umb.state_to_choices = np.r_[0, np.cumsum(allowed.sum(-1))].tolist()
    umb.choice_to_branches = np.r_[0, np.cumsum(branches)].tolist()
    umb.branch_to_target = successors[kept].tolist()
    if bounds is None:
        umb.branch_to_probability = model.nominal[kept].tolist()
    else:
        pairs = zip(bounds[0][kept].tolist(), bounds[1][kept].tolist(), strict=True)
        umb.branch_to_probability = [datatypes.Interval(low, high) for low, high in pairs]
    if model.action_names:
        umb.choice_to_choice_action = np.nonzero(allowed)[1].tolist()
        umb.choice_action_to_string = list(model.action_names)

    def annotate(group: str, name: str, where: str, values: list, kind: Any) -> None:
        described = index.AnnotationDescription(applies_to=[where], type=sized.for_type(kind))
        umb.index.annotations.setdefault(group, {})[name] = described
        umb.annotations.setdefault(group, {})[name] = {where: values}

    for name, signal in _signals(model).items():
        flat = signal[allowed if signal.ndim == 2 else kept]
        where = "choices" if signal.ndim == 2 else "branches"
        annotate("rewards", name, where, flat.tolist(), _type(datatypes, False))
    for name, states in (model.labels or {}).items():
        marked = np.isin(np.arange(model.states), states).tolist()
        annotate("aps", name, "states", marked, datatypes.PrimitiveType.BOOL)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.umb"
        umb_format.write(umb, file)
        write_bytes(path, file.read_bytes())


def _umbi(module: str) -> ModuleType:
    try:
        return importlib.import_module(f"umbi.{module}")
    except ImportError as error:
        raise ValueError('UMB files need umbi; pip install "holdfast[formats]"') from error


def _type(datatypes: ModuleType, interval: bool) -> Any:
    double = datatypes.NumericPrimitiveType.DOUBLE
    return datatypes.IntervalType(double) if interval else double


def _bounds(model: RobustCMDP) -> tuple[np.ndarray, np.ndarray] | None:
    """Return lower and upper bounds, or None for a model with the nominal kernel alone."""
    found = model.uncertainty
    radius = np.asarray(getattr(found, "radius", 0.0))
    if (radius == 0).all():
        return None
    if not isinstance(found, Interval) or not np.isfinite(radius).all():
        raise ValueError(
            "uncertainty: UMB files have intervals or no set at all, got "
            f"{found}; replace(uncertainty=None) writes the nominal kernel"
        )
    p = model.nominal
    factor = np.broadcast_to(radius, p.shape[:2])[..., None]
    lower = np.clip(p - factor * (p - found.lower), 0.0, p)
    return lower, np.clip(p + factor * (found.upper - p), p, 1.0)


def _signals(model: RobustCMDP) -> dict[str, np.ndarray]:
    """Return the reward and the signals of the constraints, under different names."""
    found = {"reward": model.reward}
    for i, constraint in enumerate(model.constraints):
        if isinstance(constraint, Reach):
            continue
        name = constraint.name or f"constraint {i}"
        found[name if name not in found else f"{name} {i}"] = constraint.signal
    return found


def _count(system: Any, where: str) -> int:
    return getattr(system, f"num_{where}")


def _sized(values: Any, count: int, name: str) -> Any:
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} entries, expected {count}")
    return values


def _offsets(values: Any, count: int, total: int, name: str) -> np.ndarray:
    """Return where the items of each entry start; without a list each entry has one."""
    found = np.array(range(count + 1) if values is None else values, np.int64)
    _sized(found, count + 1, name)
    if found[0] != 0 or found[-1] != total or (np.diff(found) < 0).any():
        raise ValueError(f"{name} does not count from 0 to {total}")
    return found
