"""Nature's policy iteration: values under a kernel, worst responses to them, and again."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import (
    Factors,
    Outlook,
    Reply,
    factorise,
    next_mean,
    occupancy_of,
    per_signal,
    reply,
    rounding,
    values_of,
)


class _Round(NamedTuple):
    """One round of nature's policy iteration: V under a kernel, and the response to V.

    The kernel is the response to `source`, its search started from `guess`.
    """

    values: Float[Array, " S"]
    source: Float[Array, " S"]
    guess: Float[Array, "S A"]
    factors: Factors
    residual: Float[Array, ""]
    action_values: Float[Array, "S A"]
    multipliers: Float[Array, "S A"]
    error: Float[Array, ""]
    done: Bool[Array, ""]
    rounds: Int[Array, ""]


@eqx.filter_jit
def by_dual(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, "n S"],
    multipliers: Float[Array, "n S A"],
    tolerance: float,
    max_rounds: int,
) -> Outlook:
    """The worst case of every signal, from a first guess at values and multipliers."""
    eps = jnp.finfo(table.initial.dtype).eps

    def evaluate_signal(signal: Array, values: Array, multipliers: Array) -> Outlook:
        def body(last: _Round) -> _Round:
            answer = reply(table, signal, policy, last.values, last.multipliers)
            size = jnp.abs(last.values).max()
            below = jnp.maximum((last.values - answer.lower).max(), 0.0)
            error = (last.residual + below) / (1 - table.discount)
            error = error + rounding(table, signal, last.values)
            stalled = jnp.abs(last.source - last.values).max() <= 4 * eps * size
            # In the first round V is no more than a guess: nothing is known of it yet.
            done = (last.rounds > 0) & (
                (error <= tolerance * jnp.maximum(1.0, size))
                | stalled
                | (last.rounds >= max_rounds)
            )
            certified = last._replace(
                action_values=answer.action_values,
                multipliers=answer.multipliers,
                error=error,
                done=done,
            )
            return lax.cond(done, lambda: certified, lambda: advance(last, answer))

        def advance(last: _Round, answer: Reply) -> _Round:
            factors = factorise(table, answer.flow)
            values = values_of(factors, answer.reward)
            residual = answer.reward + table.discount * next_mean(table, answer.flow, values)
            residual = residual - values
            return last._replace(
                values=values,
                source=last.values,
                guess=last.multipliers,
                factors=factors,
                residual=jnp.maximum(residual.max(), 0.0),
                multipliers=answer.multipliers,
                rounds=last.rounds + 1,
            )

        zero = jnp.array(0.0)
        start = _Round(
            values=values,
            source=values,
            guess=multipliers,
            factors=Factors(jnp.eye(table.states), jnp.arange(table.states, dtype=jnp.int32)),
            residual=zero,
            action_values=jnp.zeros_like(policy),
            multipliers=multipliers,
            error=zero,
            done=jnp.array(False),
            rounds=jnp.array(0),
        )
        last = lax.while_loop(lambda state: ~state.done, body, start)
        return Outlook(
            value=table.initial @ last.values,
            values=last.values,
            advantages=last.action_values - last.values[:, None],
            occupancy=occupancy_of(table, last.factors),
            error=last.error,
            source=last.source,
            guess=last.guess,
            multipliers=last.multipliers,
        )

    return per_signal(evaluate_signal, table, values, multipliers)
