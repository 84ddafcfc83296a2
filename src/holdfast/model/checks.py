"""Checks of arrays that state probabilities: rows of kernels, initial distributions and policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import numbers_of

# Rows that sum to one within this are renormalised. Probabilities printed with nine digits pass; a
# forgotten successor of probability 1e-7 does not.
_ROW_SUM_TOLERANCE = 1e-8
# Single precision rounds each probability by 6e-8, so the sum of a long row is no closer than this.
_SINGLE_PRECISION_TOLERANCE = 1e-6


def check_policy(name: str, policy: ArrayLike, states: int, actions: int) -> np.ndarray:
    """Return a policy as an (S, A) array whose rows sum to one.

    Arguments:
        name: the argument's name, for error messages.
        policy: (S, A) probabilities, or (S,) integers, the index of the action taken in each state.
        states: S.
        actions: A.

    Raises:
        ValueError: the shape is wrong, or a row is not a distribution, or an action does not exist.

    Example:
        >>> print(check_policy("policy", [1, 0], states=2, actions=3))
        [[0. 1. 0.]
         [1. 0. 0.]]
    """
    given = numbers_of(name, policy, dtype=None)
    if given.shape == (states,) and np.issubdtype(given.dtype, np.integer):
        outside = (given < 0) | (given >= actions)
        if outside.any():
            s = int(outside.argmax())
            raise ValueError(
                f"{name}: state {s} has action {given[s]}, but actions are 0 to {actions - 1}"
            )
        return np.eye(actions)[given]
    if given.shape != (states, actions):
        numbers_of(name, policy)  # text and ragged lists have a message of their own
        raise ValueError(
            f"{name}: expected shape ({states}, {actions}), or ({states},) with integer action "
            f"indices, got {given.shape}{'' if given.ndim != 1 else f' of {given.dtype}'}"
        )
    tolerance = row_sum_tolerance(policy)
    policy = numbers_of(name, policy)
    if not (policy >= 0).all():
        s, a = np.argwhere(~(policy >= 0))[0]
        raise ValueError(f"{name}: (state {s}, action {a}) has probability {policy[s, a]}")
    sums = policy.sum(-1)
    off = np.abs(sums - 1) > tolerance
    if off.any():
        s = np.argwhere(off)[0, 0]
        raise ValueError(f"{name}: state {s} sums to {sums[s]:.9g}, not 1")
    return normalised(policy)


def check_rows(
    name: str, rows: Float[np.ndarray, "S A K"], tolerance: float
) -> Float[np.ndarray, "S A K"]:
    """Return rows that sum to one exactly, or raise a ValueError for the first bad (s, a)."""
    if not (rows >= 0).all():
        s, a, k = np.argwhere(~(rows >= 0))[0]
        raise ValueError(
            f"{name}: (state {s}, action {a}) has probability {rows[s, a, k]} at entry {k}"
        )
    sums = rows.sum(-1)
    off = ~(np.abs(sums - 1) <= tolerance)
    if off.any():
        s, a = np.argwhere(off)[0]
        raise ValueError(f"{name}: (state {s}, action {a}) sums to {sums[s, a]:.9g}, not 1")
    return frozen(normalised(rows))


def row_sum_tolerance(given: Any) -> float:
    """Return the accepted distance of a row sum from one, by the precision of the given array."""
    single = getattr(getattr(given, "dtype", None), "itemsize", 8) < 8
    return _SINGLE_PRECISION_TOLERANCE if single else _ROW_SUM_TOLERANCE


def normalised(rows: Float[np.ndarray, "*rows K"]) -> Float[np.ndarray, "*rows K"]:
    """Return the rows divided by their sums.

    Rows that already sum to one within K·eps, the rounding error of the sum, stay unchanged.
    """
    sums = rows.sum(-1, keepdims=True)
    rounding = rows.shape[-1] * np.finfo(np.float64).eps
    return rows / np.where(np.abs(sums - 1) <= rounding, 1.0, sums)


def check_number(name: str, value: Any) -> float:
    """Return a finite number as a float, or raise a ValueError that names the argument."""
    array = numbers_of(name, value)
    if array.shape != () or not np.isfinite(array):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(array)


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.flags.writeable = False
    return array
