"""The critical factor: how much larger the set may be before a policy breaks its constraints."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import Outlook
from holdfast.tabular.evaluation.worst_case import Dual, worst_outlook

_LARGEST, _SMALLEST = 2.0**60, 2.0**-60
_MAX_STEPS = 200


def critical_factors(
    table: Table, policy: Float[Array, "S A"], accuracy: float = 1e-9
) -> Float[np.ndarray, " m"]:
    """For every constraint, the largest factor on the radii under which it is proved to hold.

    NaN where it does not hold even nominally, infinity where it holds however large the radii. Sets
    grow with their radii, so the margin falls with the factor and its root is bracketed.

    Arguments:
        table: the model.
        policy: (S, A).
        accuracy: relative; the factor that is returned is on the side that holds.
    """
    return np.array(
        [_Margin(table, policy, i).root(accuracy) for i in range(len(table.thresholds))]
    )


class _Margin:
    """One constraint's margin less its numerical error, as a function of the factor."""

    def __init__(self, table: Table, policy: Array, index: int) -> None:
        self._table = table.with_signals(table.signals[index + 1 : index + 2])
        self._policy = policy
        self._threshold = float(table.thresholds[index])
        self._last: Outlook | None = None

    def __call__(self, factor: float) -> float:
        scaled = jax.tree.map(jnp.asarray, self._table.uncertainty.scaled(factor))
        table = eqx.tree_at(lambda t: t.uncertainty, self._table, scaled)
        self._last = worst_outlook(table, self._policy, Dual(), self._last)
        return float(self._last.value[0]) - float(self._last.error[0]) - self._threshold

    def root(self, accuracy: float) -> float:
        """The largest factor with a margin of at least zero."""
        if self(0.0) < 0:
            return np.nan
        if self(np.inf) >= 0:
            return np.inf
        low, at_low = 1.0, self(1.0)
        high, at_high = low, at_low
        while at_low < 0:  # down to a factor that holds
            high, at_high = low, at_low
            low /= 4
            if low < _SMALLEST:
                return 0.0
            at_low = self(low)
        while at_high >= 0:  # up to one that does not
            low, at_low = high, at_high
            high *= 4
            if high > _LARGEST:
                return low
            at_high = self(high)
        return self._between(low, at_low, high, at_high, accuracy)

    def _between(
        self, low: float, at_low: float, high: float, at_high: float, accuracy: float
    ) -> float:
        """Secants kept a little inside the bracket, and bisection every third time."""
        for step in range(_MAX_STEPS):
            if high - low <= accuracy * high:
                break
            middle = (low + high) / 2
            if step % 3 < 2:
                secant = low + (high - low) * at_low / (at_low - at_high)
                # On the far side of the root by a little, so that the bracket closes from both ends.
                nudge = accuracy * high / 4
                secant += nudge if step % 3 == 0 else -nudge
                middle = secant if low < secant < high else middle
            at_middle = self(middle)
            if at_middle >= 0:
                low, at_low = middle, at_middle
            else:
                high, at_high = middle, at_middle
        return low
