"""Evaluation of large models given as successor lists, without a matrix or any array of size S².

V is first proposed by quick sweeps (`columns`). If the proposal is not accurate enough, nature's policy
iteration in double precision continues from it. V and the occupancy under a given kernel are found by
sweeps over the lists (`iterative`). The certificate is that of `certified`: it holds at any V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.certified import error_of
from holdfast.tabular.evaluation.columns import WIDEST, quick_values
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.rounding import certified_error, initial_value
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    WorstResponse,
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
    starts = zip(values, multipliers, visits, strict=True)
    return stacked(
        [
            _worst(table.only(i), policy, *start, tolerance, max_rounds)
            for i, start in enumerate(starts)
        ]
    )


class LargeValues(NamedTuple):
    """Worst-case values of every signal of a large model, without advantages and occupancies.

    Attributes:
        nominal: values under the nominal kernel, from the initial distribution.
        worst: worst-case values, likewise.
        error: certified bound on the error of each worst-case value.
        values: worst-case V of each signal, (S,).
        multipliers: nature's dual variables for each signal, (S, A), in single precision.
    """

    nominal: list[float]
    worst: list[float]
    error: list[float]
    values: list[Float[Array, " S"]]
    multipliers: list[Float[Array, "S A"]]


def evaluate(
    table: Table, policy: Float[Array, "S A"], tolerance: float, max_rounds: int
) -> LargeValues:
    """Return the nominal and worst-case values of a policy, one signal after the other."""
    found = LargeValues([], [], [], [], [])
    for i in range(len(table.signals)):
        one = table.only(i)
        nominal = _nominal(one, policy)
        values, multipliers = _proposed(one, policy, nominal, None, tolerance)
        error = float(error_of(one, policy, values, multipliers))
        if not error <= tolerance * max(1.0, float(jnp.abs(values).max())):
            last = _rounds(one, policy, values, multipliers, tolerance, max_rounds)
            values = last.values
            multipliers = last.response.multipliers.astype(jnp.float32)
            error = float(error_of(one, policy, values, multipliers))
        found.nominal.append(float(_initial_value(one, nominal)))
        found.worst.append(float(_initial_value(one, values)))
        found.error.append(error)
        found.values.append(values)
        found.multipliers.append(multipliers)
    return found


def details(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> tuple[Float[Array, "S A"], Float[Array, " S"]]:
    """Return the advantages and the occupancy of a table's only signal under the worst response to V."""
    response = _respond(table, table.signals[0], policy, values, multipliers.astype(float))
    advantages = until_stop(table, response.action_values - values[:, None])
    return advantages, _occupancy(table, response.chain, table.initial)


def _nominal(table: Table, policy: Array) -> Array:
    """Return V of a table's only signal under the nominal kernel."""
    values = jnp.zeros(table.states)
    if table.probabilities.shape[-1] <= WIDEST:
        found = _quick(table, policy, TOLERANCE, robust=False)
        if found.settled:
            return found.values
        values = jnp.where(jnp.isfinite(found.values).all(), found.values, values)
    return _under(table, table.signals[0], policy, table.probabilities, values, values).values


def _proposed(
    table: Table, policy: Array, values: Array, multipliers: Array | None, tolerance: float
) -> tuple[Array, Array]:
    """Return approximate worst-case values, and multipliers in single precision."""
    if multipliers is not None:
        multipliers = multipliers.astype(jnp.float32)
    if table.probabilities.shape[-1] <= WIDEST:
        found = _quick(table, policy, tolerance, values, multipliers)
        # A search that met an overflow proposes nothing.
        if jnp.isfinite(found.values).all():
            return found.values, found.multipliers
    if multipliers is None:
        multipliers = jnp.zeros(policy.shape, jnp.float32)
    return values, multipliers


class _LastRound(NamedTuple):
    values: Array
    response: WorstResponse
    error: Array


def _rounds(
    table: Table,
    policy: Array,
    values: Array,
    guess: Array,
    tolerance: float,
    max_rounds: int,
) -> _LastRound:
    """Return the last round of nature's policy iteration from V, in double precision."""
    signal = table.signals[0]
    source, guess = jnp.full_like(values, jnp.inf), guess.astype(values.dtype)
    for count in range(max_rounds + 1):
        response = _respond(table, signal, policy, values, guess)
        swept = response.reward + table.discount * _next_values(table, response.chain, values)
        error = _error(table, values, swept - values, values - response.lower)
        size = float(jnp.abs(values).max())
        stalled = float(jnp.abs(values - source).max()) <= _STALLED * size
        if float(error) <= tolerance * max(1.0, size) or stalled or count == max_rounds:
            break
        source, guess = values, response.multipliers
        values = _values(table, response.chain, response.reward, source, tolerance, _INEXACT)
    return _LastRound(values, response, error)


def _worst(
    table: Table,
    policy: Array,
    values: Array,
    guess: Array,
    visits: Array,
    tolerance: float,
    max_rounds: int,
) -> PolicyValues:
    values, guess = _proposed(table, policy, values, guess, tolerance)
    values, response, error = _rounds(table, policy, values, guess, tolerance, max_rounds)
    return PolicyValues(
        value=_initial_value(table, values),
        values=values,
        advantages=until_stop(table, response.action_values - values[:, None]),
        occupancy=_occupancy(table, response.chain, visits),
        error=error,
        multipliers=response.multipliers,
    )


_quick = compiled(quick_values)
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
