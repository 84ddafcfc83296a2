"""Policies that remember which events of `reach` rules have happened, on states × flags."""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np

from holdfast.model import Kernel, Reach, RobustCMDP
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation.flags import flags_of
from holdfast.uncertainty import UncertaintySet


def with_memory(model: RobustCMDP) -> RobustCMDP:
    """Return the model whose states also say which events of its `reach` rules have happened.

    State f·S + s is state s after the events of set f; set 0 is none. A policy of this model may do
    something else once an event has happened, for example stop avoiding it.

    Arguments:
        model: a model with `reach` rules and a set that keeps to the listed successors.

    Raises:
        ValueError: the model has no such rule, or its set may lead to any state.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.gambler(goal=4).replace(
        ...     horizon=3, constraints=[hf.reach([0], at_most=0.5)])
        >>> with_memory(model).states
        10
    """
    uncertainty = cast(UncertaintySet, model.uncertainty)
    if not any(isinstance(constraint, Reach) for constraint in model.constraints):
        raise ValueError("remember: the model has no reach rule whose event could be remembered")
    if not uncertainty.fits_lists:
        raise ValueError(
            f"remember: this {uncertainty.name} set may lead to any state, so that nature could "
            "change the memory; use a set that keeps the support"
        )
    states, actions = model.states, model.actions
    following = flags_of(layout_of(model).table).following[:, :states]
    sets = len(following)

    def repeated(array: np.ndarray, per_entry: bool) -> np.ndarray:
        """Return an array over states once for every set of events."""
        return array if array.ndim < 2 else np.concatenate([array] * sets, axis=-2 - per_entry)

    kernel = model.transitions
    if isinstance(kernel, Kernel):
        lists = kernel.successors
    else:
        lists = np.broadcast_to(np.arange(states), (states, actions, states))
    successors = np.concatenate([states * after[:, None, None] + lists for after in following])

    def everywhere(given: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(f * states + s for f in range(sets) for s in given)

    def remembered(constraint: Reach) -> Reach:
        avoided = tuple(s for s in constraint.stopped if s not in constraint.target)
        return dataclasses.replace(
            constraint,
            name=constraint.label,
            states=everywhere(constraint.target),
            avoid=everywhere(avoided),
        )

    return model.replace(
        transitions=Kernel(successors, repeated(model.nominal, True)),
        reward=repeated(model.reward, model.by_next_state(model.reward)),
        constraints=[
            remembered(c)
            if isinstance(c, Reach)
            else dataclasses.replace(c, signal=repeated(c.signal, model.by_next_state(c.signal)))
            for c in model.constraints
        ],
        initial=np.concatenate([np.asarray(model.initial), np.zeros((sets - 1) * states)]),
        uncertainty=uncertainty.map_rows(repeated),
        allowed=None if model.allowed is None else repeated(np.asarray(model.allowed), False),
        state_names=None
        if model.state_names is None
        else [
            f"{name}, events {f}" if f else name for f in range(sets) for name in model.state_names
        ],
        labels=None
        if model.labels is None
        else {
            label: [int(state) + f * states for f in range(sets) for state in members]
            for label, members in model.labels.items()
        },
        data=None,
    )
