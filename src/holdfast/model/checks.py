"""Checks of arrays that state probabilities: rows of kernels, initial distributions and policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import first_place, numbers_of

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
            index, where = first_place(outside)
            raise ValueError(
                f"{name}: {where} has action {given[index]}, but actions are 0 to {actions - 1}"
            )
        return np.eye(actions)[given]
    if given.shape != (states, actions):
        numbers_of(name, policy)  # text and ragged lists have a message of their own
        raise ValueError(
            f"{name}: expected shape ({states}, {actions}), or ({states},) with integer action "
            f"indices, got {given.shape}{'' if given.ndim != 1 else f' of {given.dtype}'}"
        )
    return check_distributions(name, policy)


def check_distributions(name: str, given: Any) -> Float[np.ndarray, "*rows K"]:
    """Return read-only rows that sum to one, or raise a ValueError for the first bad row.

    Rows that sum to one within 1e-8 (1e-6 in single precision) are renormalised.
    """
    rows = numbers_of(name, given)
    if not (rows >= 0).all():
        index, where = first_place(~(rows >= 0))
        raise ValueError(f"{name}: {where} has probability {rows[index]}")
    single = getattr(getattr(given, "dtype", None), "itemsize", 8) < 8
    tolerance = _SINGLE_PRECISION_TOLERANCE if single else _ROW_SUM_TOLERANCE
    sums = rows.sum(-1, keepdims=True)
    off = ~(np.abs(sums[..., 0] - 1) <= tolerance)
    if off.any():
        index, where = first_place(off)
        raise ValueError(
            f"{name}: {where + ' ' if where else ''}sums to {sums[index][0]:.9g}, not 1"
        )
    # Rows that sum to one within K·eps, the rounding error of the sum, stay unchanged.
    rounding = rows.shape[-1] * np.finfo(np.float64).eps
    return frozen(rows / np.where(np.abs(sums - 1) <= rounding, 1.0, sums))


def finite_number(name: str, value: Any) -> float:
    """Return a finite number as a float, or raise a ValueError that names the argument."""
    array = numbers_of(name, value)
    if array.shape != () or not np.isfinite(array):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(array)


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.flags.writeable = False
    return array
