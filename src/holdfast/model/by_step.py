"""Uncertainty sets whose radii or bounds have a leading axis of steps."""

from __future__ import annotations

import numpy as np

from holdfast.uncertainty import UncertaintySet


def step_counts(uncertainty: UncertaintySet) -> list[int]:
    """Return the length of the axis of steps of every array of a set that has one."""
    found = []

    def look(array: np.ndarray, per_entry: bool) -> np.ndarray:
        if array.ndim > 2 + per_entry:
            found.append(len(array))
        return array

    uncertainty.map_rows(look)
    return found


def at_step(uncertainty: UncertaintySet, step: int) -> UncertaintySet:
    """Return the set of one step."""
    return uncertainty.map_rows(lambda a, per_entry: a[step] if a.ndim > 2 + per_entry else a)


def over_steps(
    uncertainty: UncertaintySet, count: int, shape: tuple[int, int, int]
) -> UncertaintySet:
    """Return the set with the rows of all steps on one axis.

    Arguments:
        uncertainty: the set.
        count: number of steps; 1 if nothing differs by step.
        shape: (S, A, K) of the kernel of one step.
    """

    def rows(array: np.ndarray, per_entry: bool) -> np.ndarray:
        if array.ndim == 0 or (count == 1 and array.ndim == 2 + per_entry):
            return array
        own = shape[: 2 + per_entry]
        return np.broadcast_to(array, (count, *own)).reshape(-1, *own[1:])

    return uncertainty.map_rows(rows)
