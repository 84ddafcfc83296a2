"""The largest worst-case value of one signal, without constraints: (3), by robust policy iteration."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.rounding import PER_STATE
from holdfast.tabular.evaluation.values import PolicyValues, RowBrackets, bracketed_rows
from holdfast.tabular.evaluation.worst_case import Dual, worst_case
from holdfast.uncertainty.rows import EPS, SMALLEST

# Actions whose values differ by less than this, relative to 1 + |best|, are tied: a few hundred rounding
# errors, as the worst responses are computed to about 1e-13.
_TIE = 1e-13
# Limit on the rounds of policy iteration. It ends by itself; the limit is for cycles caused by rounding.
_MAX_ROUNDS = 1000
# Brackets wider than this, relative to max(1, largest |V|), may still widen for a round; narrower ones
# that do are at the level of rounding.
_NARROW = 1e-6


class Optimum(NamedTuple):
    """A bracket [lower, upper] of the largest worst-case value from the initial distribution.

    Attributes:
        policy: a policy whose worst-case value is at least `lower`.
        lower: the policy's worst-case value less its error.
        upper: V + max(0, max_s(T̄V − V))/(1−γ), with T̄ built from members of the set.
        values: values of the policy in the worst case of the signal, without the kernel.
    """

    policy: Float[Array, "S A"]
    lower: float
    upper: float
    values: PolicyValues


def sweep(
    table: Table, values: Float[Array, " S"], multipliers: Float[Array, "S A"]
) -> tuple[Float[Array, " S"], Float[Array, "S A"], Float[Array, "S A"]]:
    """Return max_a min_q q·y, the greedy policy and nature's multipliers: one robust value iteration.

    The first is an upper bound, with members of the set for q and rounding included.

    Arguments:
        table: the model with one signal.
        values: V, (S,).
        multipliers: dual variables from which the search starts, (S, A).
    """
    rows = bracketed_rows(table, values, multipliers)
    return *_greedy(table, rows), rows.multipliers


@compiled
def _greedy(table: Table, rows: RowBrackets) -> tuple[Float[Array, " S"], Float[Array, "S A"]]:
    underflow = jnp.where(rows.size > 0, 16 * table.probabilities.shape[-1] * SMALLEST, 0.0)
    upper = rows.upper + (PER_STATE * EPS * rows.size + underflow)
    best = rows.value.max(-1)
    # The first of the tied actions, so that the policy does not alternate between them.
    tied = rows.value >= best[:, None] - _TIE * (1 + jnp.abs(best[:, None]))
    return upper.max(-1), jax.nn.one_hot(tied.argmax(-1), upper.shape[1], dtype=upper.dtype)


def robust_optimum(
    table: Table,
    signal: Float[Array, "S A J"],
    start: Optimum | Float[Array, "S A"] | None = None,
    tolerance: float = 1e-9,
) -> Optimum:
    """Return the largest worst-case value of one signal, to a certified error.

    Each round evaluates the greedy policy exactly in the worst case, so that the values only rise, and
    makes one sweep, whose residual bounds the distance to the optimum.

    Arguments:
        table: the model.
        signal: the signal to maximise.
        start: a policy to start from, or the optimum of a similar signal.
        tolerance: width of the bracket to reach, relative to max(1, largest |V|).
    """
    alone = table.with_signals(signal[None])
    count = table.probabilities.shape[1]
    found: PolicyValues | None = None
    if isinstance(start, Optimum):
        policy, found = start.policy, start.values
    elif start is None:
        policy = jnp.full((table.states, count), 1 / count, table.initial.dtype)
    else:
        policy = start
    narrowest = float("inf")
    for _ in range(_MAX_ROUNDS):
        found = worst_case(alone, policy, Dual(), found)
        values = found.values[0]
        assert found.multipliers is not None
        swept, greedy, _ = sweep(alone, values, found.multipliers[0])
        excess = float(jnp.maximum((swept - values).max(), 0.0) / (1 - table.discount))
        excess *= 1 + 8 * EPS  # the last operations are rounded
        error = float(found.error[0])
        width = excess + 2 * error
        # Rounding may keep the residual above the tolerance. Then it stops falling. What is not a number
        # would stay so.
        width /= max(1.0, float(jnp.abs(values).max()))
        if not width > tolerance or width >= narrowest:
            break
        narrowest = min(narrowest, width) if width < _NARROW else narrowest
        policy = greedy
    assert found is not None
    value = float(found.value[0])
    lower, upper = value - error, value + excess + error
    # What is not a number proves nothing.
    lower, upper = -np.inf if np.isnan(lower) else lower, np.inf if np.isnan(upper) else upper
    return Optimum(policy, lower, upper, found)
