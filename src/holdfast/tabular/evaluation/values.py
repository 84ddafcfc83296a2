"""Values, advantages and occupancies of a policy, and nature's worst response to given values.

The definitions of the paper's section 3. Under a kernel p and a policy π, with the chain P_π and
the mean signal r_π,

    V = (I − γP_π)⁻¹ r_π,   A(s, a) = Q(s, a) − V(s),   d = (1−γ)(I − γP_πᵀ)⁻¹ρ.

The linear systems are solved by dense factors here, and by sweeps over successor lists in `sparse`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.blocks import BLOCK_ENTRIES, by_blocks
from holdfast.tabular.evaluation.rounding import (
    ROUND_UP,
    initial_value,
    state_rounding,
)
from holdfast.tabular.evaluation.rounding import rounding as rounding
from holdfast.uncertainty import UncertaintySet

T = TypeVar("T")


class PolicyValues(eqx.Module):
    """Values of a policy for every signal: the reward first, then the constraints as utilities.

    Each signal has a kernel of its own: its worst-case kernel, or the nominal one.

    Attributes:
        value: expected discounted sum from the initial distribution, V(ρ).
        values: V(s).
        advantages: A(s, a) = Q(s, a) − V(s).
        occupancy: d(s).
        error: bound on the numerical error of `value`; in a worst case, on its distance from the
            minimum over the set.
        kernel: the worst-case kernel that the values belong to. None under the nominal kernel, and in
            large and wide models, whose kernels are too large to keep (`worst_case.worst_kernels`
            recomputes them).
        multipliers: nature's dual variables, from which the next search for a worst case may start;
            None where no worst case was searched for.
    """

    value: Float[Array, "*n"]
    values: Float[Array, "*n S"]
    advantages: Float[Array, "*n S A"]
    occupancy: Float[Array, "*n S"]
    error: Float[Array, "*n"]
    kernel: Float[Array, "*n S A K"] | None = None
    multipliers: Float[Array, "*n S A"] | None = None


class WorstResponse(NamedTuple):
    """Nature's worst response to values V in every row, and its mean over the policy's actions.

    Attributes:
        chain: P_π under the response, in the form of `chain`.
        reward: mean signal in each state under the response.
        lower: T̲V, a lower bound on the robust Bellman operator at V, from the set's dual value, rounding
            included.
        rounding: the part of `lower` that allows for rounding.
        action_values: min over the set of q·y.
        multipliers: nature's dual variables.
        kernel: the response itself, or None.
    """

    chain: Float[Array, "..."]
    reward: Float[Array, " S"]
    lower: Float[Array, " S"]
    rounding: Float[Array, " S"]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    kernel: Float[Array, "S A K"] | None


class Factors(NamedTuple):
    """The factorisation I − γP_π = L·U, with rows in the order of `order`."""

    lu: Float[Array, "S S"]
    order: Int[Array, " S"]


def targets(
    table: Table, signal: Float[Array, "S A J"], values: Float[Array, " S"]
) -> Float[Array, "S A K"]:
    """Return y(s, a, s') = signal(s, a, s') + γV(s')."""
    return jnp.broadcast_to(
        signal + table.discount * table.following(values), table.probabilities.shape
    )


def chain(
    table: Table, policy: Float[Array, "S A"], kernel: Float[Array, "S A K"]
) -> Float[Array, "..."]:
    """Return P_π: a matrix (S, S) for a dense table, π(a|s)·p(s, a, k) for successor lists."""
    joint = policy[..., None] * kernel
    return joint.sum(-2) if table.successors is None else joint


def next_values(
    table: Table, chain: Float[Array, "..."], values: Float[Array, " S"]
) -> Float[Array, " S"]:
    """Return P_π·V."""
    if table.successors is None:
        return chain @ values
    return (chain * values[table.successors]).sum((-2, -1))


def mean_signal(
    signal: Float[Array, "S A J"], policy: Float[Array, "S A"], kernel: Float[Array, "S A K"]
) -> Float[Array, " S"]:
    """Return r_π(s), the mean of a signal in each state."""
    if signal.shape[-1] == 1:
        return (policy * signal[..., 0]).sum(-1)
    return (policy[..., None] * kernel * signal).sum((-2, -1))


def factorise(table: Table, chain: Float[Array, "..."]) -> Factors:
    """Return the factors of I − γP_π, which serve the values and the occupancy."""
    transition = chain
    if table.successors is not None:
        states = jnp.arange(table.states)[:, None, None]
        transition = jnp.zeros((table.states, table.states))
        transition = transition.at[states, table.successors].add(chain)
    lu, _, order = lax.linalg.lu(jnp.eye(table.states) - table.discount * transition)
    return Factors(lu, order)


def state_values(factors: Factors, reward: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return V = (I − γP_π)⁻¹ r_π."""
    permuted = reward[factors.order][:, None]
    lower = lax.linalg.triangular_solve(
        factors.lu, permuted, left_side=True, lower=True, unit_diagonal=True
    )
    return lax.linalg.triangular_solve(factors.lu, lower, left_side=True, lower=False)[:, 0]


def advantages(
    table: Table,
    signal: Float[Array, "S A J"],
    kernel: Float[Array, "S A K"],
    values: Float[Array, " S"],
) -> Float[Array, "S A"]:
    """Return A(s, a) = Q(s, a) − V(s) under a kernel."""
    return (kernel * targets(table, signal, values)).sum(-1) - values[:, None]


def occupancy(table: Table, factors: Factors) -> Float[Array, " S"]:
    """Return d = (1−γ)(I − γP_πᵀ)⁻¹ρ, the state occupancy measure."""
    initial = (1 - table.discount) * table.initial[:, None]
    upper = lax.linalg.triangular_solve(
        factors.lu, initial, left_side=True, lower=False, transpose_a=True
    )
    permuted = lax.linalg.triangular_solve(
        factors.lu, upper, left_side=True, lower=True, transpose_a=True, unit_diagonal=True
    )
    return jnp.maximum(jnp.zeros(table.states).at[factors.order].set(permuted[:, 0]), 0.0)


def per_signal(function: Callable[..., T], table: Table, *arguments: Array) -> T:
    """Apply a compiled function of (table with one signal, …) to every signal, and stack the results.

    One program serves all signals, so that it does not depend on their number.
    """
    results = []
    for i in range(len(table.signals)):
        signals, boundaries, own = _entry(table.signals, table.boundaries, arguments, i)
        results.append(function(table.with_signals(signals, boundaries), *own))
    return stacked(results)


@jax.jit
def _entry(signals: Array, boundaries: Any, arguments: Any, i: int | Array) -> Any:
    """Return signal i and its boundary with their leading axis, and entry i of every argument."""
    own = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, i, 1), (signals, boundaries))
    return *own, jax.tree.map(lambda a: a[i], arguments)


@jax.jit
def stacked(results: list[T]) -> T:
    """Return one tree with the leaves of several, along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


@compiled
def signal_values(
    table: Table, policy: Float[Array, "S A"], kernel: Float[Array, "S A K"]
) -> PolicyValues:
    """Return the values of a table's only signal under a given kernel."""
    signal, policy = table.signals[0], until_stop(table, policy)
    flow = chain(table, policy, kernel)
    reward = with_boundary(table, mean_signal(signal, policy, kernel))
    factors = factorise(table, flow)
    values = state_values(factors, reward)
    return collect(table, signal, kernel, flow, reward, values, occupancy(table, factors))


def until_stop(table: Table, array: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return a policy, occupancies or advantages with zeros where a table's only signal stops.

    With a policy of zeros in these states, their value is the boundary value.
    """
    return array if table.boundary is None else table.boundary.outside(array)


def with_boundary(table: Table, values: Float[Array, " S"]) -> Float[Array, " S"]:
    """Return values with the boundary values added, which are zero elsewhere."""
    return values if table.boundary is None else values + table.boundary.pays


def collect(
    table: Table,
    signal: Float[Array, "S A J"],
    kernel: Float[Array, "S A K"],
    flow: Float[Array, "..."],
    reward: Float[Array, " S"],
    values: Float[Array, " S"],
    visits: Float[Array, " S"],
) -> PolicyValues:
    """Return the record of values and occupancy found under one kernel.

    The error is that of the linear solve: a residual r of V = r_π + γP_πV moves V by at most r/(1−γ).
    """
    residual = jnp.abs(reward + table.discount * next_values(table, flow, values) - values).max()
    return PolicyValues(
        value=initial_value(table, values),
        values=values,
        advantages=until_stop(table, advantages(table, signal, kernel, values)),
        occupancy=until_stop(table, visits),
        error=residual / table.step_share + rounding(table, signal, values),
    )


def worst_response(
    table: Table,
    signal: Float[Array, "S A J"],
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
    *,
    keep_kernel: bool = False,
) -> WorstResponse:
    """Return nature's worst response to V in every row: argmin over the set of q·y.

    Arguments:
        table: the model with one signal, whose boundary values are used.
        signal: the signal, in the layout of the table.
        policy: π, (S, A).
        values: V, (S,).
        multipliers: dual variables from which the search starts, (S, A).
        keep_kernel: whether to return the response itself, (S, A, K).
    """

    def respond(uncertainty: UncertaintySet, *rows: Array) -> WorstResponse:
        p, y, c, pi, guess, size = rows
        response = uncertainty.respond(p, y, guess)
        joint = pi[..., None] * response.kernel
        rounded = uncertainty.lower_rounding(p, y, response)
        rounded = ((pi * rounded).sum(-1) + state_rounding(pi, size, p.shape[-1])) * ROUND_UP
        return WorstResponse(
            chain=joint.sum(-2) if table.successors is None else joint,
            reward=(pi * c[..., 0]).sum(-1) if c.shape[-1] == 1 else (joint * c).sum((-2, -1)),
            lower=(pi * response.lower).sum(-1) - rounded,
            rounding=rounded,
            action_values=response.value,
            multipliers=response.multiplier,
            kernel=response.kernel if keep_kernel else None,
        )

    found = by_blocks(respond, table, signal, values, until_stop(table, policy), multipliers)
    reward, lower = with_boundary(table, found.reward), with_boundary(table, found.lower)
    return found._replace(reward=reward, lower=lower)


def certified_values(
    table: Table,
    policy: Float[Array, "S A"],
    kernel: Float[Array, "S A K"],
    multipliers: Float[Array, "S A"],
) -> PolicyValues:
    """Return the values of a table's only signal under a member of the set.

    Their error bounds the excess over the minimum.
    """
    found = signal_values(table, policy, kernel)
    response = worst_response(table, table.signals[0], policy, found.values, multipliers)
    below = jnp.maximum((found.values - response.lower).max(), 0.0)
    error = found.error + below / table.step_share * ROUND_UP
    return dataclasses.replace(
        found,
        error=jnp.where(error >= 0, error, jnp.inf),
        kernel=kernel,
        multipliers=response.multipliers,
    )


class RowBrackets(NamedTuple):
    """Nature's worst response to values V in every row, bracketed from both sides.

    Attributes:
        value: min over the set of q·y.
        lower: lower bound on it, rounding in the row included.
        upper: upper bound on it, by a proved member of the set.
        multipliers: nature's dual variables.
        size: largest |signal| + γ|V| of each row, zero where all are zero.
    """

    value: Float[Array, "S A"]
    lower: Float[Array, "S A"]
    upper: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    size: Float[Array, "S A"]


@compiled
def bracketed_rows(
    table: Table,
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
    most_entries: int = BLOCK_ENTRIES,
) -> RowBrackets:
    """Return brackets of the worst response to V, for a table's only signal."""

    def respond(uncertainty: UncertaintySet, *rows: Array) -> RowBrackets:
        p, y, _, _, guess, size = rows
        response, lower, upper = uncertainty.bracket(p, y, guess)
        return RowBrackets(response.value, lower, upper, response.multiplier, size)

    signal = table.signals[0]
    return by_blocks(respond, table, signal, values, multipliers, multipliers, most_entries)
