"""Values, occupancies and advantages of a policy under a kernel.

The vocabulary of the paper's section 3: V and Q by a linear solve, d = (1−γ)(I − γP_πᵀ)⁻¹ρ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast.model.table import Table
from holdfast.uncertainty import UncertaintySet

T = TypeVar("T")

# Large models are walked a block of states at a time, so that a block's rows stay in cache.
_BLOCK_ENTRIES = 1 << 14


class Outlook(eqx.Module):
    """What a policy is worth, signal by signal: the reward first, then every constraint.

    Attributes:
        value: from the initial distribution.
        values: V(s).
        advantages: Q(s, a) − V(s).
        occupancy: d(s), under the kernel the signal is evaluated under.
        error: how far `value` may be from the exact one.
        source: the values to which that kernel is nature's response, and
        guess: the dual variables from which the search for that response started.
        multipliers: nature's dual variables at the end, from which the next evaluation starts.
        kernel: the kernel itself, where the method keeps it.
    """

    value: Float[Array, "*n"]
    values: Float[Array, "*n S"]
    advantages: Float[Array, "*n S A"]
    occupancy: Float[Array, "*n S"]
    error: Float[Array, "*n"]
    source: Float[Array, "*n S"]
    guess: Float[Array, "*n S A"]
    multipliers: Float[Array, "*n S A"]
    kernel: Float[Array, "*n S A K"] | None = None


def without_kernel(outlook: Outlook) -> Outlook:
    """The same outlook without the kernel, which may be large."""
    return eqx.tree_at(lambda o: o.kernel, outlook, None, is_leaf=lambda x: x is None)


class Reply(NamedTuple):
    """Nature's worst responses to values V, averaged over the policy's actions.

    Attributes:
        flow: the policy's chain under the responses, as `chain_under` gives it.
        reward: the signal's mean in each state under the responses.
        lower: T̲V, a certified lower bound on the robust Bellman operator at V.
        action_values: min over the set of q·y for each (s, a).
        multipliers: nature's dual variables.
    """

    flow: Float[Array, "..."]
    reward: Float[Array, " S"]
    lower: Float[Array, " S"]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]


class Factors(NamedTuple):
    """I − γP_π = the rows of L·U in the order of `order`."""

    lu: Float[Array, "S S"]
    order: Int[Array, " S"]


def targets(
    table: Table, signal: Float[Array, "S A J"], values: Float[Array, " S"]
) -> Float[Array, "S A K"]:
    """y(s, a, s') = signal(s, a, s') + γV(s')."""
    return jnp.broadcast_to(
        signal + table.discount * table.following(values), table.probabilities.shape
    )


def reply(
    table: Table,
    signal: Float[Array, "S A J"],
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> Reply:
    """Nature's worst response to V in every row, and the chain that it makes with the policy."""

    def answer(p: Array, successors: Array | None, uncertainty, c, pi, guess) -> tuple:  # type: ignore[no-untyped-def]
        following = values if successors is None else values[successors]
        y = jnp.broadcast_to(c + table.discount * following, p.shape)
        response = uncertainty.respond(p, y, guess)
        joint = pi[..., None] * response.kernel
        reward = (pi * c[..., 0]).sum(-1) if c.shape[-1] == 1 else (joint * c).sum((-2, -1))
        lower = (pi * response.lower).sum(-1)
        # Only the chain is kept of a dense kernel: its rows are as wide as the model.
        flow = joint.sum(-2) if successors is None else joint
        return flow, reward, lower, response.value, response.multiplier

    flow, reward, lower, action_values, multipliers = _over_states(
        answer, table, signal, policy, multipliers
    )
    return Reply(flow, reward, lower, action_values, multipliers)


def chain_under(
    table: Table, policy: Float[Array, "S A"], kernel: Float[Array, "S A K"]
) -> Float[Array, "..."]:
    """The chain P_π under a given kernel: (S, S) where dense, else the flow (S, A, K) over lists."""
    joint = policy[..., None] * kernel
    return joint.sum(-2) if table.successors is None else joint


def next_mean(
    table: Table, flow: Float[Array, "..."], values: Float[Array, " S"]
) -> Float[Array, " S"]:
    """P_π·V."""
    if table.successors is None:
        return flow @ values
    return (flow * values[table.successors]).sum((-2, -1))


def mean_signal(
    signal: Float[Array, "S A J"], policy: Float[Array, "S A"], kernel: Float[Array, "S A K"]
) -> Float[Array, " S"]:
    """The signal's mean in each state under a given kernel."""
    return (policy[..., None] * kernel * signal).sum((-2, -1))


def factorise(table: Table, flow: Float[Array, "..."]) -> Factors:
    """Factors I − γP_π once, for the values and the occupancy."""
    transition = flow
    if table.successors is not None:
        states = jnp.arange(table.states)[:, None, None]
        transition = jnp.zeros((table.states, table.states))
        transition = transition.at[states, table.successors].add(flow)
    lu, _, order = lax.linalg.lu(jnp.eye(table.states) - table.discount * transition)
    return Factors(lu, order)


def values_of(factors: Factors, reward: Float[Array, " S"]) -> Float[Array, " S"]:
    """V = (I − γP_π)⁻¹ r_π."""
    permuted = reward[factors.order][:, None]
    lower = lax.linalg.triangular_solve(
        factors.lu, permuted, left_side=True, lower=True, unit_diagonal=True
    )
    return lax.linalg.triangular_solve(factors.lu, lower, left_side=True, lower=False)[:, 0]


def occupancy_of(table: Table, factors: Factors) -> Float[Array, " S"]:
    """D = (1−γ)(I − γP_πᵀ)⁻¹ρ, the discounted share of time in each state."""
    initial = (1 - table.discount) * table.initial[:, None]
    upper = lax.linalg.triangular_solve(
        factors.lu, initial, left_side=True, lower=False, transpose_a=True
    )
    permuted = lax.linalg.triangular_solve(
        factors.lu, upper, left_side=True, lower=True, transpose_a=True, unit_diagonal=True
    )
    return jnp.maximum(jnp.zeros(table.states).at[factors.order].set(permuted[:, 0]), 0.0)


def rounding(table: Table, signal: Array, values: Array) -> Float[Array, ""]:
    """An allowance for floating point, since a certificate must not claim an error of zero."""
    scale = jnp.abs(signal).max() + jnp.abs(values).max()
    return 16 * jnp.finfo(values.dtype).eps * scale / (1 - table.discount)


def per_signal(function: Callable[..., T], table: Table, *arguments: Array) -> T:
    """Applies a function of (signal, …) to every signal, in turn.

    Not side by side: a batched triangular solve is far slower on a CPU than one after the other.
    """
    return lax.map(lambda each: function(*each), (table.signals, *arguments))


@eqx.filter_jit
def outlook_nominal(table: Table, policy: Float[Array, "S A"]) -> Outlook:
    """The policy's values under the nominal kernel."""
    # The chain is the same for every signal, so it is factored once.
    flow = chain_under(table, policy, table.probabilities)
    factors = factorise(table, flow)
    occupancy = occupancy_of(table, factors)

    def evaluate_signal(signal: Array) -> Outlook:
        reward = mean_signal(signal, policy, table.probabilities)
        values = values_of(factors, reward)
        return outlook_from(table, signal, table.probabilities, flow, reward, values, occupancy)

    return per_signal(evaluate_signal, table)


@eqx.filter_jit
def outlook_dense(
    table: Table, policy: Float[Array, "S A"], kernels: Float[Array, "n S A K"]
) -> Outlook:
    """The policy's values under a kernel for each signal."""

    def evaluate_signal(signal: Array, kernel: Array) -> Outlook:
        return _under(table, signal, policy, kernel)

    return per_signal(evaluate_signal, table, kernels)


def certified_under(
    table: Table,
    signal: Float[Array, "S A J"],
    policy: Float[Array, "S A"],
    kernel: Float[Array, "S A K"],
    multipliers: Float[Array, "S A"],
) -> Outlook:
    """The outlook under a member of the set, its error the distance from the worst case."""
    outlook = _under(table, signal, policy, kernel)
    answer = reply(table, signal, policy, outlook.values, multipliers)
    below = jnp.maximum((outlook.values - answer.lower).max(), 0.0)
    return dataclasses.replace(
        outlook,
        error=outlook.error + below / (1 - table.discount),
        guess=answer.multipliers,
        multipliers=answer.multipliers,
        kernel=kernel,
    )


def _under(table: Table, signal: Array, policy: Array, kernel: Array) -> Outlook:
    flow = chain_under(table, policy, kernel)
    reward = mean_signal(signal, policy, kernel)
    factors = factorise(table, flow)
    values = values_of(factors, reward)
    return outlook_from(table, signal, kernel, flow, reward, values, occupancy_of(table, factors))


def outlook_from(
    table: Table,
    signal: Float[Array, "S A J"],
    kernel: Float[Array, "S A K"],
    flow: Float[Array, "..."],
    reward: Float[Array, " S"],
    values: Float[Array, " S"],
    occupancy: Float[Array, " S"],
) -> Outlook:
    """What values and occupancy under one kernel amount to; the error is that of the linear solve."""
    action_values = (kernel * targets(table, signal, values)).sum(-1)
    residual = jnp.abs(reward + table.discount * next_mean(table, flow, values) - values).max()
    return Outlook(
        value=table.initial @ values,
        values=values,
        advantages=action_values - values[:, None],
        occupancy=occupancy,
        error=residual / (1 - table.discount) + rounding(table, signal, values),
        source=values,
        guess=jnp.zeros_like(action_values),
        multipliers=jnp.zeros_like(action_values),
    )


def kernels_of(table: Table, outlook: Outlook) -> Float[Array, "n S A K"]:
    """The kernel of every signal of an outlook."""
    if outlook.kernel is not None:
        return outlook.kernel
    return _response_kernels(table, outlook.source, outlook.guess)


def kernel_of(table: Table, outlook: Outlook, i: int) -> Float[Array, "S A K"]:
    """The kernel of one signal of an outlook."""
    if outlook.kernel is not None:
        return outlook.kernel[i]
    alone = table.with_signals(table.signals[i : i + 1])
    return _response_kernels(alone, outlook.source[i : i + 1], outlook.guess[i : i + 1])[0]


def kernels_are_members(table: Table, outlook: Outlook) -> list[bool]:
    """For every signal, whether its kernel is in the set."""
    if outlook.kernel is not None:
        return _are_members(table, outlook.kernel).tolist()
    return _responses_are_members(table, outlook.source, outlook.guess).tolist()


@eqx.filter_jit
def _response_kernels(table: Table, source: Array, guess: Array) -> Float[Array, "n S A K"]:
    def kernel(signal: Array, source: Array, guess: Array) -> Array:
        def answer(uncertainty: UncertaintySet, p: Array, y: Array, guess: Array) -> Array:
            return uncertainty.respond(p, y, guess).kernel

        return _respond(table, signal, source, guess, answer)

    return per_signal(kernel, table, source, guess)


@eqx.filter_jit
def _are_members(table: Table, kernels: Float[Array, "n S A K"]) -> Bool[Array, " n"]:
    inside = table.uncertainty.contains(table.probabilities, kernels)
    return inside.all((-2, -1))


@eqx.filter_jit
def _responses_are_members(table: Table, source: Array, guess: Array) -> Bool[Array, " n"]:
    """Checked block by block: a large kernel is never stored."""

    def member(signal: Array, source: Array, guess: Array) -> Array:
        def inside(uncertainty: UncertaintySet, p: Array, y: Array, guess: Array) -> Array:
            return uncertainty.respond_and_check(p, y, guess)[1]

        return _respond(table, signal, source, guess, inside).all()

    return per_signal(member, table, source, guess)


def _respond(
    table: Table, signal: Array, source: Array, guess: Array, function: Callable[..., Array]
) -> Array:
    def answer(p, successors, uncertainty, c, guess):  # type: ignore[no-untyped-def]
        following = source if successors is None else source[successors]
        y = jnp.broadcast_to(c + table.discount * following, p.shape)
        return function(uncertainty, p, y, guess)

    return _over_states(answer, table, signal, guess)


def _over_states(function: Callable, table: Table, *arrays):  # type: ignore[no-untyped-def]
    """Applies a function of (p, successors, set, …) for blocks of states to all of them."""
    states = table.states
    block = states
    if jax.default_backend() == "cpu":
        per_state = table.probabilities.size // states
        while block > 1 and block % 2 == 0 and block * per_state > _BLOCK_ENTRIES:
            block //= 2
    if block == states:
        return function(table.probabilities, table.successors, table.uncertainty, *arrays)
    own, shared = table.uncertainty.by_row()
    split = jax.tree.map(
        lambda a: a.reshape(states // block, block, *a.shape[1:]),
        (table.probabilities, table.successors, own, arrays),
    )

    def some(each: tuple) -> Any:
        p, successors, own, arrays = each
        return function(p, successors, eqx.combine(own, shared), *arrays)

    merged = lax.map(some, split)
    return jax.tree.map(lambda a: a.reshape(states, *a.shape[2:]), merged)
