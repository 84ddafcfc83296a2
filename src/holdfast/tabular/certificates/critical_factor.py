"""The critical factor: how much larger the set may be before a policy violates its constraints."""

from __future__ import annotations

import math

import numpy as np
import scipy
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import Dual, worst_case
from holdfast.uncertainty.rows import EPS

# Factors are searched up to this power of two and down to its inverse: about 1e18, beyond which a radius
# differs from infinity or zero by less than the numerical error.
_LARGEST = 2.0**60
# Factor from one bracket to the next.
_WIDEN = 4.0


def critical_factors(
    table: Table, policy: Float[Array, "S A"], accuracy: float = 1e-9
) -> Float[np.ndarray, " m"]:
    """Return, for every constraint, the largest factor on the radii for which it is proved to hold.

    NaN if the constraint does not hold nominally, infinity if it holds for all radii. Sets grow with
    their radii, so that the margin falls with the factor and its root can be bracketed.

    Arguments:
        table: the model.
        policy: (S, A).
        accuracy: relative accuracy. The constraint holds at the returned factor.
    """
    return np.array(
        [_critical(_Margin(table, policy, i), accuracy) for i in range(len(table.thresholds))]
    )


class _Margin:
    """The margin of one constraint less its numerical error, as a function of the factor.

    Each evaluation starts from the previous one, so that two of them at one factor differ by rounding.
    The first is kept: a margin close to zero must not change its sign within a search.
    """

    def __init__(self, table: Table, policy: Array, index: int) -> None:
        self._table = table.only(index + 1)
        self._policy = policy
        self._threshold = float(table.thresholds[index])
        self._last: PolicyValues | None = None
        self._found: dict[float, float] = {}

    def __call__(self, factor: float) -> float:
        if factor not in self._found:
            self._found[factor] = self._evaluated(factor)
        return self._found[factor]

    def _evaluated(self, factor: float) -> float:
        # A product with a power of two is exact. Others are rounded up: the set is never too small.
        exact = factor == 0 or math.isinf(factor) or math.frexp(factor)[0] == 0.5
        rounded = factor if exact else factor * (1 + 2 * EPS)
        table = self._table.with_uncertainty(self._table.uncertainty.scaled(rounded))
        self._last = worst_case(table, self._policy, Dual(), self._last)
        margin = float(self._last.value[0]) - float(self._last.error[0]) - self._threshold
        return -math.inf if math.isnan(margin) else margin  # NaN proves nothing


def _critical(margin: _Margin, accuracy: float) -> float:
    if margin(0.0) < 0:
        return np.nan
    if margin(np.inf) >= 0:
        return np.inf
    low = high = 1.0
    if margin(1.0) >= 0:
        while margin(high) >= 0:
            low, high = high, high * _WIDEN
            if high > _LARGEST:
                return low
    else:
        while margin(low) < 0:
            low, high = low / _WIDEN, low
            if low < 1 / _LARGEST:
                return 0.0
    # Half of the accuracy for the root, half for the step back to the side that holds.
    root = scipy.optimize.brentq(margin, low, high, xtol=accuracy * low / 4, rtol=accuracy / 4)
    step = accuracy * root / 4
    while margin(root) < 0:
        root, step = max(root - step, low), 2 * step
    return root
