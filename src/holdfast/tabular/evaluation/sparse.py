"""The same evaluation for large models given as successor lists: no matrix, and nothing of size S².

V and the occupancy are found by sweeps over the lists (`iterative`), to an error well
below the one asked for. What is certified, and how, does not change: the error that is reported holds
at whatever V the sweeps stopped.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.iterative import fixed_point
from holdfast.tabular.evaluation.values import (
    Outlook,
    chain_under,
    mean_signal,
    next_mean,
    outlook_from,
    reply,
    rounding,
)

# Up to this many states dense factors are faster.
DENSE_STATES = 1024
# The certified error to reach where none is asked for, relative to max(1, largest |V|).
TOLERANCE = 1e-10
# Values under a kernel that is not yet the worst one are found to this share of what is missing.
_INEXACT = 1e-3
# How far an occupancy may be off, in all states together. Nothing that is certified rests on it.
_OCCUPANCY_ERROR = 1e-8


def is_sparse(table: Table) -> bool:
    """Whether a model is large, and given as lists."""
    return table.successors is not None and table.states > DENSE_STATES


def outlook_nominal(
    table: Table, policy: Float[Array, "S A"], start: Outlook | None = None
) -> Outlook:
    """The policy's values under the nominal kernel, from a first guess."""
    count = len(table.signals)
    values = jnp.zeros((count, table.states)) if start is None else start.values
    first = table.initial if start is None else start.occupancy[0]
    # The chain is the same for every signal, so its occupancy is found once.
    flow = _chain_under(table, policy, table.probabilities)
    occupancy = _occupancy(table, flow, first)
    return _stack(
        [
            _under(table, table.signals[i], policy, table.probabilities, values[i], occupancy)
            for i in range(count)
        ]
    )


def outlook_under(
    table: Table, policy: Float[Array, "S A"], kernels: Float[Array, "n S A K"], start: Outlook
) -> Outlook:
    """The policy's values under a kernel for each signal, from a first guess."""
    outlooks = []
    for i, kernel in enumerate(kernels):
        flow = _chain_under(table, policy, kernel)
        occupancy = _occupancy(table, flow, start.occupancy[i])
        signal, values = table.signals[i], start.values[i]
        outlooks.append(_under(table, signal, policy, kernel, values, occupancy))
    return _stack(outlooks)


def by_dual(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, "n S"],
    multipliers: Float[Array, "n S A"],
    occupancy: Float[Array, "n S"],
    tolerance: float,
    max_rounds: int,
) -> Outlook:
    """Nature's policy iteration, as `holdfast.tabular.evaluation.policy_iteration.by_dual` has it."""
    starts = zip(table.signals, values, multipliers, occupancy, strict=True)
    return _stack([_worst(table, policy, *start, tolerance, max_rounds) for start in starts])


def _worst(
    table: Table,
    policy: Array,
    signal: Array,
    source: Array,
    guess: Array,
    occupancy: Array,
    tolerance: float,
    max_rounds: int,
) -> Outlook:
    answer = _reply(table, signal, policy, source, guess)
    for _ in range(max_rounds):
        values = _values(table, answer.flow, answer.reward, source, tolerance, _INEXACT)
        found = answer.multipliers
        following = _reply(table, signal, policy, values, found)
        error = float(_error(table, signal, values, answer.flow, answer.reward, following.lower))
        size = float(jnp.abs(values).max())
        stalled = float(jnp.abs(values - source).max()) <= 1e-15 * size
        if error <= tolerance * max(1.0, size) or stalled:
            break
        source, guess, answer = values, found, following
    return Outlook(
        value=table.initial @ values,
        values=values,
        advantages=following.action_values - values[:, None],
        occupancy=_occupancy(table, answer.flow, occupancy),
        error=jnp.asarray(error),
        source=source,
        guess=guess,
        multipliers=following.multipliers,
    )


_reply = eqx.filter_jit(reply)
_chain_under = eqx.filter_jit(chain_under)


@eqx.filter_jit
def _under(
    table: Table, signal: Array, policy: Array, kernel: Array, start: Array, occupancy: Array
) -> Outlook:
    flow = chain_under(table, policy, kernel)
    reward = mean_signal(signal, policy, kernel)
    values = _values(table, flow, reward, start, TOLERANCE, 0.0)
    return outlook_from(table, signal, kernel, flow, reward, values, occupancy)


@eqx.filter_jit
def _values(
    table: Table,
    flow: Float[Array, "S A K"],
    reward: Float[Array, " S"],
    start: Float[Array, " S"],
    tolerance: float,
    inexact: float,
) -> Float[Array, " S"]:
    """V = (I − γP_π)⁻¹ r_π, to a quarter of the error asked for or a share of what is missing."""

    def operator(values: Array) -> Array:
        return table.discount * next_mean(table, flow, values)

    # No sweep tells residuals apart that are smaller than rounding.
    share = jnp.maximum(tolerance * (1 - table.discount) / 4, 8 * jnp.finfo(start.dtype).eps)
    enough = share * jnp.maximum(1.0, jnp.abs(start).max())
    return fixed_point(
        operator,
        reward,
        start,
        slow=jnp.ones_like(start),  # a chain leaves constants as they are
        contraction=table.discount,
        norm=lambda residual: jnp.abs(residual).max(),
        target=lambda missing: jnp.maximum(enough, inexact * missing),
    ).x


@eqx.filter_jit
def _occupancy(
    table: Table, flow: Float[Array, "S A K"], start: Float[Array, " S"]
) -> Float[Array, " S"]:
    """D = (1−γ)(I − γP_πᵀ)⁻¹ρ."""

    def operator(weights: Array) -> Array:
        arriving = table.discount * flow * weights[:, None, None]
        return jnp.zeros_like(weights).at[table.successors].add(arriving)

    enough = jnp.maximum(_OCCUPANCY_ERROR * (1 - table.discount), 8 * jnp.finfo(start.dtype).eps)
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
    return found / found.sum()


@eqx.filter_jit
def _error(
    table: Table, signal: Array, values: Array, flow: Array, reward: Array, lower: Array
) -> Float[Array, ""]:
    residual = reward + table.discount * next_mean(table, flow, values) - values
    above, below = jnp.maximum(residual.max(), 0.0), jnp.maximum((values - lower).max(), 0.0)
    return (above + below) / (1 - table.discount) + rounding(table, signal, values)


def _stack(outlooks: list[Outlook]) -> Outlook:
    return jax.tree.map(lambda *parts: jnp.stack(parts), *outlooks)
