"""The largest worst-case value of one signal, without constraints: (3), by robust policy iteration."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.boundaries import Boundaries
from holdfast.model.table import Table
from holdfast.tabular.evaluation.backward import (
    backward_induction,
    first_of_tied,
    signal_task,
    upper_values,
)
from holdfast.tabular.evaluation.rounding import initial_error, initial_value
from holdfast.tabular.evaluation.values import PolicyValues, RowBrackets, bracketed_rows
from holdfast.tabular.evaluation.worst_case import Dual, worst_case
from holdfast.uncertainty.rows import EPS

# Limit on the rounds of policy iteration. It ends by itself; the limit is for cycles caused by rounding.
_MAX_ROUNDS = 1000
# A bracket wider than this, relative to max(1, largest |V|), may still widen for a round. A narrower
# bracket that widens has reached the level of rounding.
_NARROW = 1e-6


class Optimum(NamedTuple):
    """A bracket [lower, upper] of the largest worst-case value from the initial distribution.

    Attributes:
        policy: a policy whose worst-case value is at least `lower`.
        lower: the policy's worst-case value less its error.
        upper: V + max(0, max_s(T̄V − V))/(1−γ), with T̄ built from members of the set.
        values: values of the policy in the worst case of the signal, without the kernel; None with a
            horizon, and for a sum with probabilities, whose policy remembers events.
    """

    policy: Float[Array, "S A"]
    lower: float
    upper: float
    values: PolicyValues | None


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
    upper = upper_values(rows, table.probabilities.shape[-1]).max(-1)
    if table.boundary is not None:
        upper = jnp.where(table.boundary.stops, table.boundary.pays, upper)
    return upper, first_of_tied(rows.value.T).T.astype(upper.dtype)


def robust_optimum(
    table: Table,
    signal: Float[Array, "*H S A J"],
    start: Optimum | Float[Array, "S A"] | None = None,
    tolerance: float = 1e-9,
    boundaries: Boundaries | None = None,
) -> Optimum:
    """Return the largest worst-case value of one signal, to a certified error.

    Each round evaluates the greedy policy exactly in the worst case, so that the values only rise, and
    makes one sweep, whose residual bounds the distance to the optimum. With a horizon one backward
    induction finds the policy and the bound.

    Arguments:
        table: the model.
        signal: the signal to maximise.
        start: a policy to start from, or the optimum of a similar signal.
        tolerance: width of the bracket to reach, relative to max(1, largest |V|).
        boundaries: boundary values of this signal, with a leading axis of one, if it has some.
    """
    alone = table.with_signals(signal[None], boundaries)
    if table.horizon is not None:
        return _by_backward_induction(alone)
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
        # Rounding may keep the residual above the tolerance. Stop if the width no longer falls, or is
        # NaN.
        width /= max(1.0, float(jnp.abs(values).max()))
        if not width > tolerance or width >= narrowest:
            break
        narrowest = min(narrowest, width) if width < _NARROW else narrowest
        policy = greedy
    assert found is not None
    value = float(found.value[0])
    lower, upper = value - error, value + excess + error
    return Optimum(policy, *_numbers(lower, upper), found)


def best_of(table: Table, index: int) -> Optimum:
    """Return the largest worst-case value of one of the signals of a table."""
    alone = table.only(index)
    return robust_optimum(table, table.signals[index], boundaries=alone.boundaries)


def _by_backward_induction(alone: Table) -> Optimum:
    """Return the optimum of a table with a horizon and one signal."""
    policy, value, error = _induced(alone)
    lower, upper = float(value) - float(error), float(value) + float(error)
    return Optimum(policy, *_numbers(lower, upper), None)


@compiled
def _induced(alone: Table) -> tuple[Float[Array, "rows A"], Float[Array, ""], Float[Array, ""]]:
    guess = jnp.zeros((alone.rows, alone.probabilities.shape[-2]))
    found = backward_induction(alone, signal_task(alone), guess)
    first, missing = found.values[0], (alone.initial * found.errors[0]).sum()
    return found.policy, initial_value(alone, first), initial_error(alone, first, missing)


def _numbers(lower: float, upper: float) -> tuple[float, float]:
    """Return a bracket without NaN, which proves nothing."""
    return -np.inf if np.isnan(lower) else lower, np.inf if np.isnan(upper) else upper
