"""Quick values of dense models by sweeps over their rows.

Passes over the kernel take most of the time of an evaluation, and the exponentials of all entries take
most of a pass. A round therefore computes the exponentials once. It then finds V under the new chain by
sweeps of P_π, which is smaller than the kernel by the number of actions. If sweeps are slow, it
factorises P_π. The values found here are proposals. They prove nothing: `certified` has a pass of its
own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.blocks import by_blocks
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.rounding import is_silent, reached_states
from holdfast.tabular.evaluation.values import (
    chain,
    factorise,
    mean_signal,
    occupancy,
    state_values,
    until_stop,
    with_boundary,
    worst_response,
)
from holdfast.uncertainty import UncertaintySet

# A linear system is solved to this share of its right-hand side, so that it does not limit how fast
# rounds converge: each leaves about a thousandth of the residual, or less.
_SHARE = 1e-6
# A factorisation of S states takes as long as about S/32 sweeps of an (S, S) matrix: 2S³/3 operations at
# some 40 GFlop/s, beside 8·S² bytes at some 10 GB/s. Slower systems are factorised.
_SWEEPS = 32
# Residuals below this many rounding errors of V cannot be reduced further.
_FLOOR = 8
# Limit on the rounds. They converge in three to six; a search that does not is left to policy iteration.
_MOST_ROUNDS = 12


class DenseValues(NamedTuple):
    """Values of a dense model that were found quickly.

    Attributes:
        nominal: V under the nominal kernel.
        values: nearly worst-case V.
        multipliers: nature's dual variables.
        rounds: number of passes over the kernel in the search for the worst case.
    """

    nominal: Float[Array, " S"]
    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    rounds: Int[Array, ""]


class _RowSweep(NamedTuple):
    """One robust sweep: nearly the robust operator at V, better multipliers, and nature's P_π."""

    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    chain: Float[Array, "S S"]


class _DenseRound(NamedTuple):
    values: Float[Array, " S"]
    multipliers: Float[Array, "S A"]
    residual: Float[Array, ""]
    slow: Bool[Array, ""]
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


@compiled
def quick_values(
    table: Table,
    policy: Float[Array, "S A"],
    tolerance: Any,
    start: Float[Array, " S"] | None = None,
    guess: Float[Array, "S A"] | None = None,
) -> DenseValues:
    """Return the nominal values and nearly the worst-case values of a dense table's only signal.

    Nature's policy iteration, in which responses are improved by one Newton step a round: each round
    solves for the change of V that removes the current residual.

    Arguments:
        table: the model with one signal.
        policy: (S, A).
        tolerance: error to reach, relative to the largest |V|.
        start: first guess of V, (S,); default: the nominal values.
        guess: first guess of nature's dual variables, (S, A); default: none.
    """
    signal, policy = table.signals[0], until_stop(table, policy)
    flow = chain(table, policy, table.probabilities)
    reward = with_boundary(table, mean_signal(signal, policy, table.probabilities))
    no = jnp.array(False)
    nominal, slow = _solved(table, flow, reward, no)
    # The second solution removes the residual of the first.
    left, slow = _solved(table, flow, reward + table.discount * (flow @ nominal) - nominal, slow)
    nominal = nominal + left

    def body(now: _DenseRound) -> _DenseRound:
        found = _sweep(table, policy, now.values, now.multipliers)
        residual = with_boundary(table, found.values) - now.values
        size = jnp.abs(residual).max()
        move, slow = _solved(table, found.chain, residual, now.slow)
        rounding = _FLOOR * jnp.finfo(size.dtype).eps
        enough = jnp.maximum(tolerance * (1 - table.discount) / 4, rounding)
        enough = enough * jnp.abs(now.values).max()
        # Assume that the move reduces the residual by at least the factor of the last round.
        expected = size * jnp.minimum(size / now.residual, 1.0)
        return _DenseRound(
            values=now.values + move,
            multipliers=found.multipliers,
            residual=size,
            slow=slow,
            # NaN ends the search.
            done=~(expected > enough) | (now.rounds + 1 >= _MOST_ROUNDS),
            rounds=now.rounds + 1,
        )

    first = _DenseRound(
        values=nominal if start is None else start,
        multipliers=jnp.zeros(policy.shape) if guess is None else guess,
        residual=jnp.array(0.0),
        slow=slow,
        done=no,
        rounds=jnp.array(0),
    )
    last = lax.while_loop(lambda now: ~now.done, body, first)

    def quiet(pair: tuple[Array, Array]) -> tuple[Array, Array]:
        # Rounding in the linear solve would leave traces where the values are exactly zero.
        reached = reached_states(table, policy)
        zero = reached & is_silent(table, signal, policy, reached)
        return jnp.where(zero, 0.0, pair[0]), jnp.where(zero, 0.0, pair[1])

    # Skip these passes if the signal of some possible first step is never zero.
    met = (policy > 0) & (table.initial > 0)[:, None]
    perhaps = ~((signal != 0).all(-1) & met).any()
    nominal, values = lax.cond(perhaps, quiet, lambda pair: pair, (nominal, last.values))
    return DenseValues(nominal, values, last.multipliers, last.rounds)


@compiled
def details(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> tuple[Float[Array, "S A"], Float[Array, " S"]]:
    """Return the advantages and the occupancy of a table's only signal under the worst response to V."""
    response = worst_response(table, table.signals[0], policy, values, multipliers)
    advantages = until_stop(table, response.action_values - values[:, None])
    visits = occupancy(table, factorise(table, response.chain))
    return advantages, until_stop(table, visits)


def _sweep(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> _RowSweep:
    """Return one robust sweep over all states, without boundary values."""

    def respond(uncertainty: UncertaintySet, *rows: Array) -> _RowSweep:
        p, y, _, pi, guess, _ = rows
        found = uncertainty.propose_rows(p, y, guess)
        flow = (pi[..., None] * found.kernel).sum(-2)
        return _RowSweep((pi * found.value).sum(-1), found.multiplier, flow)

    return by_blocks(respond, table, table.signals[0], values, policy, multipliers)


def _solved(
    table: Table, flow: Float[Array, "S S"], constant: Float[Array, " S"], slow: Bool[Array, ""]
) -> tuple[Float[Array, " S"], Bool[Array, ""]]:
    """Return x with x = constant + γP_π·x, and whether sweeps are slower than factors.

    Arguments:
        table: the model.
        flow: P_π.
        constant: right-hand side.
        slow: whether sweeps were slower in an earlier system.
    """
    found = fixed_point(
        lambda x: table.discount * (flow @ x),
        constant,
        constant,
        # Constants are eigenvectors of a chain. Padded states are chains of their own, without residual.
        slow=jnp.where(constant == 0, 0.0, jnp.ones_like(constant)),
        contraction=table.discount,
        norm=lambda residual: jnp.abs(residual).max(),
        target=lambda residual: _SHARE * residual,
        most=jnp.where(slow, 0, max(_SWEEPS, table.states // _SWEEPS)),
    )
    slow = slow | ~found.settled
    return lax.cond(
        slow, lambda: state_values(factorise(table, flow), constant), lambda: found.x
    ), slow
