"""Models in which some actions are not allowed, as models in which all are."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
from jaxtyping import Int

from holdfast.model.cmdp import RobustCMDP
from holdfast.model.kernel import Kernel
from holdfast.uncertainty import UncertaintySet


def allowed_copies(model: RobustCMDP) -> Int[np.ndarray, "*H S A"]:
    """Return each action if it is allowed, and the first allowed one of its state otherwise."""
    if model.allowed is None:
        return np.broadcast_to(np.arange(model.actions), (model.states, model.actions))
    allowed = np.asarray(model.allowed)
    return np.where(allowed, np.arange(model.actions), allowed.argmax(-1)[..., None])


def only_allowed(model: RobustCMDP) -> RobustCMDP:
    """Return a model in which actions that are not allowed are copies of the first allowed one.

    Every algorithm then works on all actions, and its policies move to the allowed ones at the end.
    """
    if model.allowed is None:
        return model
    action = allowed_copies(model)
    place: tuple[Any, ...] = (*np.ix_(*map(np.arange, action.shape))[:-1], action)

    def copied(array: np.ndarray, per_entry: bool) -> np.ndarray:
        if array.ndim < 2 + per_entry:  # a number
            return array
        if action.ndim == 3:
            array = np.broadcast_to(array, (len(action), *array.shape[-2 - per_entry :]))
        return array[(..., *place, slice(None)) if per_entry else (..., *place)]

    def signal(array: np.ndarray) -> np.ndarray:
        found = copied(array, model.by_next_state(array))
        # A shape that may be by step or by next state needs all four axes.
        twofold = found.shape == model.nominal.shape[-3:] and not model.by_next_state(array)
        return np.repeat(found[..., None], model.states, -1) if twofold else found

    kernel = model.transitions
    if isinstance(kernel, Kernel):
        lists = copied(kernel.successors, True), copied(kernel.probabilities, True)
        transitions: np.ndarray | Kernel = Kernel(*lists)
    else:
        transitions = copied(kernel, True)
    return model.replace(
        allowed=None,
        transitions=transitions,
        reward=signal(model.reward),
        constraints=[dataclasses.replace(c, signal=signal(c.signal)) for c in model.constraints],
        uncertainty=cast(UncertaintySet, model.uncertainty).map_rows(copied),
    )
