"""Bounds on rounding errors of values, and the reachable states and signals of a policy.

The derivation is in `docs/explanation/certificates.md`, section "Rounding".
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from holdfast.model.table import Table
from holdfast.uncertainty.rows import EPS, SMALLEST

# Rounding errors of a state's value besides those of its rows and of the sum over actions: two of the
# targets, one of the policy's own sum, and two to spare.
PER_STATE = 5
# The last operations of a bound, differences and a division by 1−γ, round it by less than this.
ROUND_UP = 1 + 8 * EPS


def reached_states(table: Table, policy: Float[Array, "S A"]) -> Bool[Array, " S"]:
    """Return the states that π reaches from the initial distribution under some kernel of the set.

    Values elsewhere change nothing, so that certificates leave them out. In large models, all states.
    """
    if table.is_large:
        return jnp.ones(table.states, bool)
    possible = table.uncertainty.reach(table.probabilities) & (policy > 0)[..., None]
    if table.successors is None:
        leads = possible.any(1)
    else:
        state = jnp.arange(table.states)[:, None, None]
        leads = jnp.zeros((table.states, table.states), bool)
        leads = leads.at[state, table.successors].max(possible)

    def body(found: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, _ = found
        more = reached | (leads & reached[:, None]).any(0)
        return more, (more != reached).any()

    start = table.initial > 0, jnp.array(True)
    return lax.while_loop(lambda found: found[1], body, start)[0]


def is_silent(
    table: Table,
    signal: Float[Array, "S A J"],
    policy: Float[Array, "S A"],
    reached: Bool[Array, " S"],
) -> Bool[Array, ""]:
    """Return whether π never meets a signal other than zero: all its values are then exactly zero."""
    possible = table.uncertainty.reach(table.probabilities) & (policy > 0)[..., None]
    silent = ~((signal != 0) & possible & reached[:, None, None]).any()
    return silent if table.boundary is None else silent & (table.boundary.pays == 0).all()


def initial_value(table: Table, values: Float[Array, " S"]) -> Float[Array, ""]:
    """Return V(ρ) = Σ ρ(s)·V(s), summed by halves, so that its error grows with log₂ S."""
    terms = table.initial * values
    terms = jnp.pad(terms, (0, (1 << (table.states - 1).bit_length()) - table.states))
    while len(terms) > 1:
        half = len(terms) // 2
        terms = terms[:half] + terms[half:]
    return terms[0]


def certified_error(
    table: Table,
    reached: Bool[Array, " S"],
    values: Float[Array, " S"],
    above: Float[Array, " S"],
    below: Float[Array, " S"],
) -> Float[Array, ""]:
    """Return a bound on the error of `initial_value`; infinite if something is NaN.

    Arguments:
        table: the model.
        reached: states that the policy can reach.
        values: V.
        above: upper bound on T̄V − V in every state.
        below: upper bound on V − T̲V in every state.
    """
    largest = jnp.where(reached, jnp.maximum(above, below), 0.0).max()
    # 1 − γ is exact for γ ≥ 1/2 (Sterbenz), and rounded by eps/2 otherwise.
    error = jnp.maximum(largest, 0.0) / (1 - table.discount)
    return initial_error(table, values, error)


def initial_error(
    table: Table, values: Float[Array, " S"], error: Float[Array, ""]
) -> Float[Array, ""]:
    """Return a bound on the error of `initial_value`, given one on the mean error of the values."""
    # Half an eps for every halving, for the products and for ρ's own sum; the rest is for the
    # difference of the value and this error, or a threshold.
    count = (table.states - 1).bit_length() / 2 + 2
    size = (table.initial * jnp.abs(values)).sum()
    underflow = jnp.where(size > 0, 2 * table.states * SMALLEST, 0.0)
    error = (error + EPS * count * size + underflow) * ROUND_UP
    return jnp.where(error >= 0, error, jnp.inf)


def rounding(table: Table, signal: Array, values: Array) -> Float[Array, ""]:
    """Return an allowance for rounding in bounds that hold for all policies at once.

    Every state's value is a sum over K outcomes and A actions of terms of at most |signal| + |V|; the
    sum over the initial distribution has S terms.
    """
    scale = jnp.abs(signal).max() + jnp.abs(values).max()
    states, actions, width = table.probabilities.shape[-3:]
    count = 4 * width + 2 * actions + 64
    return EPS * scale * (count / table.step_share + states)


def state_rounding(
    policy: Float[Array, "S A"], size: Float[Array, "S A"], width: int
) -> Float[Array, " S"]:
    """Return the rounding error of a state's value besides that of its rows.

    Arguments:
        policy: π.
        size: largest |signal| + γ|V| of each row, zero where all are zero.
        width: number of entries of a row.
    """
    some = (policy > 0) & (size > 0)
    # The sum over actions, and what products of small numbers lose to underflow.
    count = (policy > 0).sum(-1) / 2 + PER_STATE
    underflow = jnp.where(some.any(-1), 16.0 * (width + policy.shape[-1]) * SMALLEST, 0.0)
    return EPS * count * (policy * size).sum(-1) + underflow
