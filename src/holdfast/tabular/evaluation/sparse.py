"""Evaluation of large models given as successor lists, without a matrix or any array of size S².

V and the occupancy are found by sweeps over the lists (`iterative`). The certificate is the one of
`worst_case`: it holds at whatever V the sweeps stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.rounding import certified_error, initial_value
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    chain,
    collect,
    mean_signal,
    next_values,
    stacked,
    until_stop,
    with_boundary,
    worst_response,
)

# Default certified error, relative to max(1, largest |V|). Ten times that of dense factors: sweeps
# lose a digit to rounding in the residual.
TOLERANCE = 1e-10
# Values under a kernel that is not yet the worst one are found to this share of the current residual. A
# smaller share spends sweeps on values that the next round replaces.
_INEXACT = 1e-3
# Error of an occupancy, summed over all states. No certificate depends on it.
_OCCUPANCY_ERROR = 1e-8
# Residuals below this many rounding errors cannot be reduced by further sweeps.
_LEAST_RESIDUAL = 8
# Values that differ by less than this share of the largest have stopped changing: a few rounding errors.
_STALLED = 1e-15


def values_under(
    table: Table,
    policy: Float[Array, "S A"],
    kernels: Sequence[Float[Array, "S A K"]] | Float[Array, "n S A K"],
    start: PolicyValues | None,
) -> PolicyValues:
    """Return the values of a policy with each signal under its own given kernel."""
    found: list[PolicyValues] = []
    for i, (signal, kernel) in enumerate(zip(table.signals, kernels, strict=True)):
        one = table.only(i)
        # Signals that share a kernel share its occupancy, unless one stops somewhere.
        if i == 0 or table.boundaries is not None or kernel is not kernels[i - 1]:
            first = table.initial if start is None else start.occupancy[i]
            visits = _occupancy(one, _chain(one, until_stop(one, policy), kernel), first)
        guess = jnp.zeros(table.states) if start is None else start.values[i]
        found.append(_under(one, signal, policy, kernel, guess, visits))
    return stacked(found)


def by_policy_iteration(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, "n S"],
    multipliers: Float[Array, "n S A"],
    visits: Float[Array, "n S"],
    tolerance: float,
    max_rounds: int,
) -> PolicyValues:
    """Return the worst case of every signal by nature's policy iteration, as `worst_case` does."""
    starts = zip(table.signals, values, multipliers, visits, strict=True)
    return stacked(
        [
            _worst(table.only(i), policy, *start, tolerance, max_rounds)
            for i, start in enumerate(starts)
        ]
    )


def _worst(
    table: Table,
    policy: Array,
    signal: Array,
    source: Array,
    guess: Array,
    visits: Array,
    tolerance: float,
    max_rounds: int,
) -> PolicyValues:
    response = _respond(table, signal, policy, source, guess)
    for _ in range(max_rounds):
        values = _values(table, response.chain, response.reward, source, tolerance, _INEXACT)
        following = _respond(table, signal, policy, values, response.multipliers)
        swept = response.reward + table.discount * _next_values(table, response.chain, values)
        error = _error(table, values, swept - values, values - following.lower)
        size = float(jnp.abs(values).max())
        stalled = float(jnp.abs(values - source).max()) <= _STALLED * size
        if float(error) <= tolerance * max(1.0, size) or stalled:
            break
        source, response = values, following
    return PolicyValues(
        value=_initial_value(table, values),
        values=values,
        advantages=until_stop(table, following.action_values - values[:, None]),
        occupancy=_occupancy(table, response.chain, visits),
        error=error,
        multipliers=following.multipliers,
    )


_respond = compiled(worst_response)
_chain = compiled(chain)
_next_values = compiled(next_values)
_initial_value = compiled(initial_value)


@compiled
def _error(
    table: Table, values: Float[Array, " S"], above: Float[Array, " S"], below: Float[Array, " S"]
) -> Float[Array, ""]:
    everywhere = jnp.ones(table.states, bool)
    return certified_error(table, everywhere, values, above, below)


@compiled
def _under(
    table: Table, signal: Array, policy: Array, kernel: Array, start: Array, visits: Array
) -> PolicyValues:
    policy = until_stop(table, policy)
    flow = chain(table, policy, kernel)
    reward = with_boundary(table, mean_signal(signal, policy, kernel))
    values = _values(table, flow, reward, start, TOLERANCE, 0.0)
    return collect(table, signal, kernel, flow, reward, values, visits)


@compiled
def _values(
    table: Table,
    flow: Float[Array, "S A K"],
    reward: Float[Array, " S"],
    start: Float[Array, " S"],
    tolerance: float,
    inexact: float,
) -> Float[Array, " S"]:
    """Return V = (I − γP_π)⁻¹ r_π, to a quarter of the tolerance or a share of the first residual."""

    def operator(values: Array) -> Array:
        return table.discount * next_values(table, flow, values)

    least = _LEAST_RESIDUAL * jnp.finfo(start.dtype).eps
    share = jnp.maximum(tolerance * (1 - table.discount) / 4, least)
    enough = share * jnp.maximum(1.0, jnp.abs(start).max())
    return fixed_point(
        operator,
        reward,
        start,
        slow=jnp.ones_like(start),  # constants are eigenvectors of a chain
        contraction=table.discount,
        norm=lambda residual: jnp.abs(residual).max(),
        target=lambda residual: jnp.maximum(enough, inexact * residual),
    ).x


@compiled
def _occupancy(
    table: Table, flow: Float[Array, "S A K"], start: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Return d = (1−γ)(I − γP_πᵀ)⁻¹ρ."""

    def operator(weights: Array) -> Array:
        arriving = table.discount * flow * weights[:, None, None]
        return jnp.zeros_like(weights).at[table.successors].add(arriving)

    least = _LEAST_RESIDUAL * jnp.finfo(start.dtype).eps
    enough = jnp.maximum(_OCCUPANCY_ERROR * (1 - table.discount), least)
    found = fixed_point(
        operator,
        (1 - table.discount) * table.initial,
        start,
        slow=start,
        contraction=table.discount,
        norm=lambda residual: jnp.abs(residual).sum(),
        target=lambda _: enough,
    ).x
    found = jnp.maximum(found, 0.0)
    # A chain that stops somewhere has less than one in all.
    return found / found.sum() if table.boundary is None else until_stop(table, found)
