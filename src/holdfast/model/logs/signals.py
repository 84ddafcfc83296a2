"""Signals of a log: the mean in every (state, action) pair, with confidence limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast._support.arguments import numbers_of
from holdfast.model.logs.summary import SignalSummary
from holdfast.uncertainty.mean_limits import mean_limits


class SignalColumn(NamedTuple):
    """A signal to be averaged.

    Attributes:
        name: name of the signal.
        column: its column.
        range: smallest and largest possible value, or None for those in the log.
        exact: whether it is a fixed function of state and action.
        risk: probability that a limit of some pair fails.
    """

    name: str
    column: str
    range: Any
    exact: bool
    risk: float


def signal_limits(
    signal: SignalColumn,
    values: Float[np.ndarray, " n"],
    pair: Int[np.ndarray, " n"],
    ends: Bool[np.ndarray, " S"],
    names: tuple[Sequence[str], Sequence[str]],
) -> SignalSummary:
    """Return the means of a signal in all pairs, with their limits.

    Arguments:
        signal: the signal.
        values: its value in each transition, in the order of time; NaN if missing.
        pair: index s·A + a of the pair of each transition.
        ends: absorbing states in which all signals are zero.
        names: names of the states and of the actions.
    """
    name, column, given, exact, risk = signal
    shape = len(names[0]), len(names[1])
    seen = np.isfinite(values)
    x, pair = values[seen], pair[seen]
    if not len(x):
        raise ValueError(f"signals[{name!r}]: no transition has a value in {column!r}")
    low, high = _range(name, given, x)
    ended = np.broadcast_to(ends[:, None], shape)
    if exact:
        first = np.full(shape[0] * shape[1], math.nan)
        first[pair[::-1]] = x[::-1]
        off = x != first[pair]
        if off.any():
            at = int(np.flatnonzero(off)[0])
            s, a = divmod(int(pair[at]), shape[1])
            raise ValueError(
                f"exact: {name!r} has the values {first[pair[at]]:g} and {x[at]:g} in "
                f"({names[0][s]}, {names[1][a]})"
            )
        mean = np.where(np.isnan(first), (low + high) / 2, first)
        lower, upper = np.where(np.isnan(first), low, first), np.where(np.isnan(first), high, first)
    else:
        width = high - low
        share = (x - low) / width if width > 0 else np.zeros_like(x)
        pairs = shape[0] * shape[1]
        found = mean_limits(np.clip(share, 0.0, 1.0), pair, pairs, risk / max(1, (~ended).sum()))
        mean, lower, upper = (low + width * each for each in found[:3])

    def rows(array: np.ndarray) -> list[list[float]]:
        # Signals are zero in the state after the end.
        return np.where(ended, 0.0, np.reshape(array, shape)).tolist()

    declared_range = given is not None
    return SignalSummary(
        column, (low, high), declared_range, exact, rows(mean), rows(lower), rows(upper)
    )


def _range(name: str, given: Any, values: np.ndarray) -> tuple[float, float]:
    seen = float(values.min()), float(values.max())
    if given is None:
        return seen
    limits = numbers_of(f"ranges[{name!r}]", given)
    if limits.shape != (2,) or not np.isfinite(limits).all() or not limits[0] <= limits[1]:
        raise ValueError(
            f"ranges[{name!r}]: expected the smallest and largest value, got {given!r}"
        )
    for value in seen:
        if not limits[0] <= value <= limits[1]:
            raise ValueError(f"ranges[{name!r}]: the log has {value:g}, outside {given!r}")
    return float(limits[0]), float(limits[1])
