"""Checks of arrays that state probabilities: rows of kernels, initial distributions and policies."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from holdfast._support.arguments import first_place, numbers_of
from holdfast._support.blocks import is_long, over_blocks

# Rows that sum to one within this are renormalised. Probabilities printed with nine digits pass; a
# forgotten successor of probability 1e-7 does not.
_ROW_SUM_TOLERANCE = 1e-8
# Single precision rounds each probability by 6e-8, so the sum of a long row is no closer than this.
_SINGLE_PRECISION_TOLERANCE = 1e-6
EPS = float(np.finfo(np.float64).eps)
# The smallest normal number. Compiled code replaces smaller ones by zero.
SMALLEST = float(np.finfo(np.float64).tiny)


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
    rows = check_distributions(name, policy)
    refuse_subnormal(name, rows, "probability", "set it to zero")
    return rows


def check_distributions(name: str, given: Any) -> Float[np.ndarray, "*rows K"]:
    """Return read-only rows that sum to one, or raise a ValueError for the first bad row.

    Rows that sum to one within 1e-8 (1e-6 in single precision) are renormalised. A read-only
    memory-mapped array of rows that need no change is returned itself.
    """
    single = getattr(getattr(given, "dtype", None), "itemsize", 8) < 8
    tolerance = _SINGLE_PRECISION_TOLERANCE if single else _ROW_SUM_TOLERANCE
    if _is_long_table(given, "f"):
        found = _long_distributions(given, tolerance)
        if found is not None:
            return found
    rows = numbers_of(name, given)
    if not (rows >= 0).all():
        index, where = first_place(~(rows >= 0))
        raise ValueError(f"{name}: {where} has probability {rows[index]}")
    sums = rows.sum(-1)
    off = ~(np.abs(sums - 1) <= tolerance)
    if off.any():
        index, where = first_place(off)
        raise ValueError(f"{name}: {where + ' ' if where else ''}sums to {sums[index]:.9g}, not 1")
    return frozen(normalised(rows))


def _is_long_table(given: Any, kinds: str) -> bool:
    """Return whether an argument is a long array of rows, which is checked in blocks."""
    return (
        isinstance(given, np.ndarray)
        and given.ndim > 1
        and is_long(given.size)
        and given.dtype.kind in kinds
        and given.flags.c_contiguous
    )


def _is_kept(given: np.ndarray, dtype: type) -> bool:
    """Return whether an array is a read-only map of a file, which nobody changes through it."""
    return isinstance(given, np.memmap) and given.dtype == dtype and not given.flags.writeable


def _long_distributions(given: np.ndarray, tolerance: float) -> np.ndarray | None:
    """Return checked rows, or None if one of them is bad; the caller then finds the first one."""
    flat = given.reshape(-1, given.shape[-1])

    def checked(block: slice) -> np.ndarray | None:
        rows = np.asarray(flat[block], np.float64)
        good = (rows >= 0).all() and (np.abs(rows.sum(-1) - 1) <= tolerance).all()
        return normalised(rows) if good else None

    def is_unchanged(block: slice) -> bool:
        rows = checked(block)
        return rows is not None and np.shares_memory(rows, flat)

    if _is_kept(given, np.float64) and all(over_blocks(is_unchanged, *flat.shape)):
        return given
    found = np.empty(flat.shape)

    def is_good(block: slice) -> bool:
        rows = checked(block)
        if rows is None:
            return False
        found[block] = rows
        return True

    return frozen(found.reshape(given.shape)) if all(over_blocks(is_good, *flat.shape)) else None


def check_indices(name: str, given: Any, count: int) -> Int[np.ndarray, "*rows K"]:
    """Return read-only int32 indices of states, or raise a ValueError for the first that is none.

    Arguments:
        name: the argument's name.
        given: integers. A read-only memory-mapped array of int32 is returned itself.
        count: number of states.
    """
    if _is_long_table(given, "iu"):
        flat = given.reshape(-1, given.shape[-1])
        kept = _is_kept(given, np.int32)
        found = given if kept else np.empty(given.shape, np.int32)
        rows = found.reshape(flat.shape)

        def is_good(block: slice) -> bool:
            here = flat[block]
            good = bool(here.min() >= 0 and here.max() < count)
            if good and not kept:
                rows[block] = here
            return good

        if all(over_blocks(is_good, *flat.shape)):
            return found if kept else frozen(found)
    indices = numbers_of(name, given, dtype=None)
    outside = (indices < 0) | (indices >= count)
    if outside.any():
        index, where = first_place(outside)
        raise ValueError(f"{name}: {where} is {indices[index]}, but states are 0 to {count - 1}")
    return frozen(indices.astype(np.int32))


def normalised(rows: Float[np.ndarray, "*rows K"]) -> Float[np.ndarray, "*rows K"]:
    """Return rows whose exact sums round to one.

    Each row is divided by its accurate sum, and the exact remainder is added to its largest entry. What
    is left is the rounding of that one entry, at most eps/4. Rows that sum to one already do not change.

    Example:
        >>> import math
        >>> row = np.full(7, 1 / 7 + 1e-12)
        >>> row.sum() == 1, math.fsum(normalised(row)) == 1
        (np.False_, True)
    """
    high, low = accurate_sum(rows)
    off = high + low != 1
    if not off.any():
        return rows
    some = rows[off] / (high + low)[off][..., None]
    high, low = accurate_sum(some)
    largest = some.argmax(-1)[..., None]
    entry = np.take_along_axis(some, largest, -1) + ((1 - high) - low)[..., None]
    np.put_along_axis(some, largest, entry, -1)
    result = rows.copy()
    result[off] = some
    return result


def accurate_sum(
    rows: Float[np.ndarray, "*rows K"],
) -> tuple[Float[np.ndarray, "*rows"], Float[np.ndarray, "*rows"]]:
    """Return the sums of rows, each as two numbers whose exact sum has a relative error of about eps².

    Halves of the rows are added to each other, and the rounding error of every addition is computed
    (Knuth's two-sum) and summed apart. The entries are non-negative.

    Example:
        >>> print(*accurate_sum(np.array([1.0, 1e-17, 1e-17])))
        1.0 2e-17
    """
    high, low = rows, np.zeros_like(rows)
    while high.shape[-1] > 1:
        half = high.shape[-1] // 2
        rest = slice(2 * half, None)  # the last entry of an odd number
        sums, errors = two_sum(high[..., :half], high[..., half : 2 * half])
        errors = errors + (low[..., :half] + low[..., half : 2 * half])
        high = np.concatenate([sums, high[..., rest]], axis=-1)
        low = np.concatenate([errors, low[..., rest]], axis=-1)
    return high[..., 0], low[..., 0]


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sum of two arrays, and its exact rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def refuse_subnormal(name: str, array: np.ndarray, noun: str, advice: str) -> None:
    """Raise a ValueError for the first entry that is neither zero nor a normal number.

    Arguments:
        name: the argument's name.
        array: numbers of any sign.
        noun: what an entry is.
        advice: what to do instead.
    """

    def any_subnormal(block: slice) -> bool:
        size = np.abs(flat[block])
        return bool(((size > 0) & (size < SMALLEST)).any())

    flat = array.reshape(-1)
    if any(over_blocks(any_subnormal, flat.size, 1)):
        size = np.abs(array)
        subnormal = (size > 0) & (size < SMALLEST)
        index, where = first_place(subnormal)
        raise ValueError(
            f"{name}: {where + ' ' if where else ''}has {noun} {array[index]}, below the smallest "
            f"normal number {SMALLEST:.2g}; {advice}"
        )


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
