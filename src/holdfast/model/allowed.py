"""Models in which some actions are not allowed, as models in which all are."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
from jaxtyping import Int

from holdfast.model.cmdp import RobustCMDP
from holdfast.model.kernel import Kernel
from holdfast.uncertainty import UncertaintySet


def allowed_copies(model: RobustCMDP) -> Int[np.ndarray, "S A"]:
    """Return each action if it is allowed, and the first allowed one of its state otherwise."""
    every = np.broadcast_to(np.arange(model.actions), (model.states, model.actions))
    if model.allowed is None:
        return every
    allowed = np.asarray(model.allowed)
    return np.where(allowed, every, allowed.argmax(-1)[:, None])


def only_allowed(model: RobustCMDP) -> RobustCMDP:
    """Return a model in which actions that are not allowed are copies of the first allowed one.

    Every algorithm then works on all actions, and its policies move to the allowed ones at the end.
    """
    if model.allowed is None:
        return model
    action = allowed_copies(model)
    state = np.arange(model.states)[:, None]

    def copied(array: np.ndarray, per_entry: bool) -> np.ndarray:
        if array.ndim < 2 + per_entry:  # a number
            return array
        return array[(..., state, action, slice(None)) if per_entry else (..., state, action)]

    def signal(array: np.ndarray) -> np.ndarray:
        return copied(array, model.by_next_state(array))

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
