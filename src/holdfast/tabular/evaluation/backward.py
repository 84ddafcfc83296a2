"""Values with a horizon: one backward pass for the values, one forward pass for the occupancies.

With V_H given by the boundary values, or zero,

    V_t(s) = Σ_a π_t(a|s)·min over the set of q·(signal_t + γV_{t+1}),   d_{t+1} = γ·P_tᵀ d_t,

and nature chooses every row anew at every step. These are the values of the time-unrolled model, which
is not built: steps are further rows of policies and values, (H·S, A) and (H·S,).

The error is certified along the way. If V_{t+1} is within E_{t+1}(s) of the exact value, then V_t(s) is
within the distance to the bracket of its own row, plus the policy's mean of the largest γE_{t+1}(s')
that a member of the set can reach.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.blocks import by_blocks
from holdfast.tabular.evaluation.interval_columns import IntervalColumns
from holdfast.tabular.evaluation.rounding import (
    PER_STATE,
    ROUND_UP,
    initial_error,
    initial_value,
    rounding,
    state_rounding,
)
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    RowBrackets,
    bracketed_rows,
    targets,
    worst_response,
)
from holdfast.uncertainty import UncertaintySet
from holdfast.uncertainty.rows import EPS, SMALLEST

# Entries of a block of rows. A block's search ends with its slowest row. Values change from step to
# step, so that some rows start far from their answer, and small blocks keep the others from waiting.
_BLOCK_ENTRIES = 1 << 11
# Kernels are stored up to this many entries: 2²⁵ doubles are 256 MiB.
_MAX_KEPT = 1 << 25
# Actions whose values differ by less than this, relative to 1 + |best|, are tied: a few hundred rounding
# errors, as the worst responses are computed to about 1e-13.
TIE = 1e-13


class SignalTask(NamedTuple):
    """One signal with its boundary values and its discount.

    Attributes:
        signal: (S, A, J), or (H, S, A, J).
        stops: states with a boundary value.
        pays: the boundary values; zero elsewhere.
        discount: γ; one for the probability to reach states.
    """

    signal: Float[Array, "*H S A J"]
    stops: Bool[Array, " S"]
    pays: Float[Array, " S"]
    discount: Float[Array, ""]

    def at_step(self, step: Int[Array, ""]) -> Float[Array, "S A J"]:
        """Return the signal of one step."""
        return self.signal[step] if self.signal.ndim == 4 else self.signal


class Induction(NamedTuple):
    """The largest worst-case values by backward induction, for the steps 0 … H.

    Attributes:
        policy: the greedy policy, (H·S, A).
        values: V_t(s).
        errors: bound on the distance of V_t(s) from the largest worst-case value. V_t(s) less this bound
            is a lower bound on the policy's own worst-case value.
        multipliers: nature's dual variables.
    """

    policy: Float[Array, "rows A"]
    values: Float[Array, "steps S"]
    errors: Float[Array, "steps S"]
    multipliers: Float[Array, "rows A"]


def signal_task(table: Table) -> SignalTask:
    """Return a table's only signal with its boundary values."""
    if table.boundary is None:
        nowhere = jnp.zeros(table.states)
        return SignalTask(table.signals[0], nowhere.astype(bool), nowhere, table.discount)
    stops, pays = table.boundary.stops, table.boundary.pays
    # The probability to reach a state within the horizon is not discounted.
    return SignalTask(table.signals[0], stops, pays, jnp.where(stops.any(), 1.0, table.discount))


@compiled
def worst_values(
    table: Table, policy: Float[Array, "rows A"], multipliers: Float[Array, "rows A"]
) -> PolicyValues:
    """Return the worst case of a table's only signal, with a certified error.

    Kernels of up to 2²⁵ entries are stored.

    Arguments:
        table: the model with one signal.
        policy: (H·S, A).
        multipliers: first guess of nature's dual variables, zero where there is none.
    """
    pi, task = _by_step(table, policy), signal_task(table)

    def step(state: tuple, now: tuple) -> tuple:
        following, error, last = state
        t, pi, guess = now
        here = _at_step(table, task, t)
        row = _bracketed(here, pi, following, jnp.where(guess > 0, guess, last))
        missed = row.error + here.discount * (pi * _largest_error(here, error)).sum(-1)
        values = jnp.where(task.stops, task.pays, row.value)
        error = jnp.where(task.stops, 0.0, missed * (1 + (pi.shape[-1] + 8) * EPS))
        kept = values, error, row.action_values, row.multipliers, row.kernel
        return (values, error, row.multipliers), kept

    start = task.pays, jnp.zeros(table.states), jnp.zeros(pi.shape[1:])
    xs = jnp.arange(table.horizon), pi, _by_step(table, multipliers)
    found: tuple = lax.scan(step, start, xs, reverse=True)[1]
    values, errors, action_values, duals, kernel = found
    error = initial_error(table, values[0], (table.initial * errors[0]).sum())
    return PolicyValues(
        value=initial_value(table, values[0]),
        values=values.reshape(-1),
        advantages=_advantages(task, action_values, values),
        occupancy=_occupancy(table, task, pi, kernel),
        error=jnp.where(error >= 0, error, jnp.inf),
        kernel=_flat(kernel) if kernel.size <= _MAX_KEPT else None,
        multipliers=_flat(duals),
    )


@compiled
def values_under(
    table: Table, policy: Float[Array, "rows A"], kernel: Float[Array, "*kernel A K"]
) -> PolicyValues:
    """Return the values of a table's only signal under a kernel, of one step or of all."""
    pi, task = _by_step(table, policy), signal_task(table)
    kernel = kernel.reshape(-1, table.states, *kernel.shape[-2:])
    kernel = jnp.broadcast_to(kernel, (table.horizon, *kernel.shape[1:]))

    def step(following: Array, now: tuple) -> tuple:
        t, pi, q = now
        here = _at_step(table, task, t)
        action_values = (q * targets(here, here.signals[0], following)).sum(-1)
        values = jnp.where(task.stops, task.pays, (pi * action_values).sum(-1))
        return values, (values, action_values)

    xs = jnp.arange(table.horizon), pi, kernel
    found: tuple = lax.scan(step, task.pays, xs, reverse=True)[1]
    values, action_values = found
    return PolicyValues(
        value=initial_value(table, values[0]),
        values=values.reshape(-1),
        advantages=_advantages(task, action_values, values),
        occupancy=_occupancy(table, task, pi, kernel),
        error=rounding(table, task.signal, values),
    )


@compiled
def worst_kernel(
    table: Table, values: Float[Array, " rows"], multipliers: Float[Array, "rows A"]
) -> Float[Array, "rows A K"]:
    """Return nature's worst responses to the values of a table's only signal."""
    task = signal_task(table)
    following = jnp.concatenate([_by_step(table, values)[1:], task.pays[None]])

    def respond(now: tuple) -> Array:
        t, following, guess = now
        here = _at_step(table, task, t)
        # The response does not depend on the policy.
        nobody = jnp.zeros_like(guess)
        response = worst_response(here, here.signals[0], nobody, following, guess, keep_kernel=True)
        assert response.kernel is not None
        return response.kernel

    guesses = _by_step(table, multipliers)
    return _flat(lax.map(respond, (jnp.arange(table.horizon), following, guesses)))


@compiled
def backward_induction(
    table: Table,
    task: SignalTask,
    multipliers: Float[Array, "rows A"],
    boundary: tuple[Float[Array, "steps S"], Float[Array, "steps S"]] | None = None,
) -> Induction:
    """Return the largest worst-case values of one signal, and a policy that attains them.

    Arguments:
        table: the model.
        task: the signal.
        multipliers: first guess of nature's dual variables.
        boundary: boundary values that differ by step, and the errors of these, for the steps 0 … H; in
            place of the signal's own.
    """
    horizon = table.horizon
    assert horizon is not None
    everywhere = jnp.broadcast_to(task.pays, (horizon + 1, table.states))
    pays, missing = (everywhere, jnp.zeros_like(everywhere)) if boundary is None else boundary
    last_values = jnp.where(task.stops, pays[-1], 0.0)
    last_error = jnp.where(task.stops, missing[-1], 0.0)
    columns = IntervalColumns.of(table)

    def step(state: tuple, now: tuple) -> tuple:
        following, error, last = state
        t, guess, pay, missed = now
        here = _at_step(table, task, t)
        if columns is None:
            rows = bracketed_rows(
                here, following, jnp.where(guess > 0, guess, last.T), _BLOCK_ENTRIES
            )
            rows = jax.tree.map(jnp.transpose, rows)
            inherited = here.discount * _largest_error(here, error).T
        else:
            rows = columns.brackets(here, following)
            inherited = here.discount * columns.largest(error)
        # Reductions over the first axis are vector operations over the states.
        greedy = first_of_tied(rows.value)
        rounded = row_rounding(rows, here.probabilities.shape[-1])
        lower, upper = rows.lower - rounded - inherited, rows.upper + rounded + inherited
        value, lower = (jnp.where(greedy, each, 0.0).sum(0) for each in (rows.value, lower))
        excess = jnp.maximum(jnp.maximum(upper.max(0) - value, value - lower), 0.0)
        excess = excess + 8 * EPS * (excess + jnp.abs(value))
        values = jnp.where(task.stops, pay, value)
        error = jnp.where(task.stops, missed, jnp.where(jnp.isnan(excess), jnp.inf, excess))
        return (values, error, rows.multipliers), (greedy, values, error, rows.multipliers)

    clock, guesses = jnp.arange(horizon), _by_step(table, multipliers)
    start = last_values, last_error, jnp.zeros(guesses.shape[:0:-1])
    xs = clock, guesses, pays[:-1], missing[:-1]
    kept: tuple = lax.scan(step, start, xs, reverse=True)[1]
    greedy, values, errors, found = kept
    policy, found = greedy.swapaxes(1, 2).astype(values.dtype), found.swapaxes(1, 2)
    return Induction(
        _flat(policy),
        jnp.concatenate([values, last_values[None]]),
        jnp.concatenate([errors, last_error[None]]),
        _flat(found),
    )


def first_of_tied(values: Float[Array, "A S"]) -> Bool[Array, "A S"]:
    """Return the first action whose value is the best one up to rounding, so that ties are stable."""
    best, action = values.max(0), jnp.arange(len(values))[:, None]
    tied = values >= best - TIE * (1 + jnp.abs(best))
    return action == jnp.where(tied, action, len(values)).min(0)


def upper_values(rows: RowBrackets, width: int) -> Float[Array, "..."]:
    """Return upper bounds on the worst responses in all rows of `width` entries, rounding included."""
    return rows.upper + row_rounding(rows, width)


def row_rounding(rows: RowBrackets, width: int) -> Float[Array, "..."]:
    """Return the rounding errors of rows of `width` entries besides those of their brackets."""
    underflow = jnp.where(rows.size > 0, 16 * width * SMALLEST, 0.0)
    return PER_STATE * EPS * rows.size + underflow


class _StepRow(NamedTuple):
    """The value of every state, a bound on its error, and nature's responses."""

    value: Float[Array, " S"]
    error: Float[Array, " S"]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    kernel: Float[Array, "S A K"]


def _bracketed(here: Table, policy: Array, following: Array, guess: Array) -> _StepRow:
    """Return the values of one step before given values, bracketed from both sides."""

    def respond(uncertainty: UncertaintySet, *rows: Array) -> _StepRow:
        p, y, _, pi, guess, size = rows
        response, lower, upper = uncertainty.bracket(p, y, guess)
        rounded = state_rounding(pi, size, p.shape[-1]) * ROUND_UP
        value = (pi * response.value).sum(-1)
        above = (pi * upper).sum(-1) + rounded - value
        below = value - (pi * lower).sum(-1) + rounded
        error = jnp.maximum(jnp.maximum(above, below), 0.0) * ROUND_UP
        return _StepRow(value, error, response.value, response.multiplier, response.kernel)

    return by_blocks(respond, here, here.signals[0], following, policy, guess, _BLOCK_ENTRIES)


def _largest_error(here: Table, error: Float[Array, " S"]) -> Float[Array, "S A"]:
    """Return the largest error of a next state that a member of the set can reach, for every row."""
    reached = here.uncertainty.reach(here.probabilities)
    return jnp.where(reached, here.following(error), 0.0).max(-1)


def _advantages(task: SignalTask, action_values: Array, values: Array) -> Float[Array, "rows A"]:
    """Return A_t(s, a), which is zero in states where the value does not depend on the policy."""
    found = jnp.where(task.stops[:, None], 0.0, action_values - values[..., None])
    return found.reshape(-1, found.shape[-1])


def _occupancy(
    table: Table, task: SignalTask, policy: Array, kernel: Array
) -> Float[Array, " rows"]:
    """Return d_t(s) = γ^t·P(s_t = s, not stopped)/Σ_t γ^t.

    The weights sum to one for a sum of the signal. With boundary values they are those of the visits
    before the end, in the same unit.
    """

    def step(visits: Array, now: tuple) -> tuple[Array, Array]:
        t, pi, q = now
        here = _at_step(table, task, t)
        flow = task.discount * visits[:, None, None] * pi[..., None] * q
        if here.successors is None:
            arriving = flow.sum((0, 1))
        else:
            arriving = jnp.zeros_like(visits).at[here.successors].add(flow)
        return jnp.where(task.stops, 0.0, arriving), visits

    start = jnp.where(task.stops, 0.0, table.initial) * table.step_share
    return lax.scan(step, start, (jnp.arange(table.horizon), policy, kernel))[1].reshape(-1)


def _at_step(table: Table, task: SignalTask, step: Array) -> Table:
    """Return the table of one step with the signal and the discount of a task."""
    here = table.at_step(step).with_signals(task.at_step(step)[None])
    return dataclasses.replace(here, discount=task.discount)


def _by_step(table: Table, array: Float[Array, "..."]) -> Float[Array, "..."]:
    return array.reshape(table.horizon, table.states, *array.shape[1:])


def _flat(array: Float[Array, "..."]) -> Float[Array, "..."]:
    return array.reshape(-1, *array.shape[2:])
