"""Interval rows as columns: the least value of every row, without the response that attains it.

A backward induction over successor lists needs the least values only. With entry k of all rows in one
array, every operation is a vector operation over all rows. With targets u = y − min y sorted, l and w
the lower ends and the widths of the intervals, and b = 1 − Σl,

    min q·y = min y + Σ_k l_k·u_k + Σ_k x_k·u_k,   x_k = min(w_k, b − x_1 − … − x_{k−1}).

All terms are non-negative, so that rounding is relative to the span of the targets. Each of the first K
terms has an error of 4 eps (two of l, of the product and of the sum). The budget b has one of K eps,
each x_k adds one, and product and sum add two for each; p itself misses a sum of one by eps/4. That is
at most (8K + 16)·eps·span, and 2 eps of the largest |y| for the last sum.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import RowBrackets
from holdfast.uncertainty import Interval
from holdfast.uncertainty.rows import EPS

# Exchanges of neighbours sort K entries in K²/2 steps. General sorts are faster for longer rows.
_MOST_ENTRIES = 8


class IntervalColumns(NamedTuple):
    """The rows of a table with an interval set, one array (A, S) for each entry.

    Attributes:
        lower: lower ends l of the intervals.
        width: widths w of the intervals.
        budget: b, what is left above the lower ends.
        successors: next states. An entry that no member reaches has the first one that some member does.
        entry: which entry of the row the target is taken from.
    """

    lower: list[Float[Array, "A S"]]
    width: list[Float[Array, "A S"]]
    budget: Float[Array, "A S"]
    successors: list[Int[Array, "A S"]]
    entry: list[Int[Array, "A S"]]

    @classmethod
    def of(cls, table: Table) -> IntervalColumns | None:
        """Return the rows of a table as columns; None if it is not of this kind."""
        ball, p = table.uncertainty, table.probabilities
        if not isinstance(ball, Interval) or table.successors is None or p.ndim == 4:
            return None
        if p.shape[-1] > _MOST_ENTRIES:
            return None
        below, above = ball.room(p)
        reached = p + above > 0
        entry = jnp.where(reached, jnp.arange(p.shape[-1]), reached.argmax(-1)[..., None])
        successors = jnp.take_along_axis(table.successors, entry, axis=-1)
        return cls(
            _columns(p - below),
            _columns(below + above),
            below.sum(-1).T,
            _columns(successors),
            _columns(entry),
        )

    def brackets(self, here: Table, values: Float[Array, " S"]) -> RowBrackets:
        """Return brackets of the worst response to V, for a table's only signal, as arrays (A, S)."""
        following = [here.discount * values[each] for each in self.successors]
        signals = self._signals(here.signals[0])
        targets = [c + v for c, v in zip(signals, following, strict=True)]
        sizes = [abs(c) + abs(v) for c, v in zip(signals, following, strict=True)]
        low, high = _least(targets), -_least([-y for y in targets])
        above = [y - low for y in targets]
        base = sum((lower * u for lower, u in zip(self.lower, above, strict=True)), low * 0.0)
        value = low + base + self._filled(above)
        scale = (8 * len(targets) + 16) * (high - low) + 2 * jnp.maximum(abs(low), abs(high))
        error = EPS * scale
        size = -_least([-each for each in sizes])
        return RowBrackets(value, value - error, value + error, jnp.zeros_like(value), size)

    def largest(self, errors: Float[Array, " S"]) -> Float[Array, "A S"]:
        """Return the largest error of a next state that a member of the set can reach, for every row."""
        return -_least([-errors[each] for each in self.successors])

    def _signals(self, signal: Float[Array, "S A J"]) -> list[Float[Array, "A S"]]:
        if signal.shape[-1] == 1:
            return [signal[..., 0].T] * len(self.entry)
        return [
            jnp.take_along_axis(signal, each.T[..., None], axis=-1)[..., 0].T for each in self.entry
        ]

    def _filled(self, above: list[Float[Array, "A S"]]) -> Float[Array, "A S"]:
        """Return Σ x_k·u_k: the budget goes to the smallest targets first."""
        u, width = [*above], [*self.width]
        for turn in range(len(u)):
            for i in range(turn % 2, len(u) - 1, 2):
                swap = u[i] > u[i + 1]
                for row in (u, width):
                    row[i], row[i + 1] = (
                        jnp.where(swap, row[i + 1], row[i]),
                        jnp.where(swap, row[i], row[i + 1]),
                    )
        left, total = self.budget, jnp.zeros_like(self.budget)
        for target, most in zip(u, width, strict=True):
            given = jnp.minimum(most, left)
            left, total = left - given, total + given * target
        return total


def _columns(rows: Array) -> list[Array]:
    return [rows[..., k].T for k in range(rows.shape[-1])]


def _least(columns: list[Array]) -> Array:
    least = columns[0]
    for column in columns[1:]:
        least = jnp.minimum(least, column)
    return least
