"""The same evaluation for large models given as successor lists: sparse factors, on the host.

A dense chain of S² numbers is out of reach for tens of thousands of states, while its sparse LU factors
often are not much larger than the lists. SciPy has them, JAX has not; so here the rounds are a loop
in Python around the same compiled responses.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Array, Float

from holdfast.tabular.table import Table
from holdfast.tabular.values import (
    Outlook,
    chain_under,
    mean_signal,
    next_mean,
    outlook_from,
    reply,
    rounding,
)

# Up to this many states the dense factors are faster.
DENSE_STATES = 1024


def is_sparse(table: Table) -> bool:
    """Whether a model is large, and given as lists."""
    return table.successors is not None and table.states > DENSE_STATES


class SparseChain:
    """I − γP_π, factored."""

    def __init__(self, table: Table, flow: Float[Array, "S A K"]) -> None:
        states = table.states
        weights = np.asarray(flow).reshape(states, -1)
        successors = np.asarray(table.successors).reshape(states, -1)
        rows = np.broadcast_to(np.arange(states)[:, None], weights.shape)
        chain = scipy.sparse.csc_array(
            (weights.ravel(), (rows.ravel(), successors.ravel())), shape=(states, states)
        )
        self._discount = float(table.discount)
        self._initial = np.asarray(table.initial)
        identity = scipy.sparse.eye_array(states, format="csc")
        self._factors = scipy.sparse.linalg.splu(identity - self._discount * chain)

    def values(self, reward: Float[Array, " S"]) -> Float[Array, " S"]:
        """V = (I − γP_π)⁻¹ r_π."""
        return jnp.asarray(self._factors.solve(np.asarray(reward)))

    def occupancy(self) -> Float[Array, " S"]:
        """D = (1−γ)(I − γP_πᵀ)⁻¹ρ."""
        found = self._factors.solve((1 - self._discount) * self._initial, trans="T")
        return jnp.asarray(np.maximum(found, 0.0))


def outlook_nominal(table: Table, policy: Float[Array, "S A"]) -> Outlook:
    """The policy's values under the nominal kernel."""
    flow = chain_under(table, policy, table.probabilities)
    chain = SparseChain(table, flow)
    return _stack([_under(table, s, policy, table.probabilities, chain) for s in table.signals])


def outlook_under(
    table: Table, policy: Float[Array, "S A"], kernels: Float[Array, "n S A K"]
) -> Outlook:
    """The policy's values under a kernel for each signal."""
    pairs = zip(table.signals, kernels, strict=True)
    return _stack([_under(table, signal, policy, kernel) for signal, kernel in pairs])


def by_dual(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, "n S"],
    multipliers: Float[Array, "n S A"],
    tolerance: float,
    max_rounds: int,
) -> Outlook:
    """Nature's policy iteration, as `holdfast.tabular.dual.by_dual` has it."""
    starts = zip(table.signals, values, multipliers, strict=True)
    return _stack([_worst(table, policy, *start, tolerance, max_rounds) for start in starts])


def _worst(
    table: Table,
    policy: Array,
    signal: Array,
    source: Array,
    guess: Array,
    tolerance: float,
    max_rounds: int,
) -> Outlook:
    answer = _reply(table, signal, policy, source, guess)
    for _ in range(max_rounds):
        chain = SparseChain(table, answer.flow)
        values = chain.values(answer.reward)
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
        occupancy=chain.occupancy(),
        error=jnp.asarray(error),
        source=source,
        guess=guess,
        multipliers=following.multipliers,
    )


_reply = eqx.filter_jit(reply)


@eqx.filter_jit
def _error(
    table: Table, signal: Array, values: Array, flow: Array, reward: Array, lower: Array
) -> Float[Array, ""]:
    residual = reward + table.discount * next_mean(table, flow, values) - values
    above, below = jnp.maximum(residual.max(), 0.0), jnp.maximum((values - lower).max(), 0.0)
    return (above + below) / (1 - table.discount) + rounding(table, signal, values)


def _under(
    table: Table, signal: Array, policy: Array, kernel: Array, chain: SparseChain | None = None
) -> Outlook:
    flow = chain_under(table, policy, kernel)
    chain = SparseChain(table, flow) if chain is None else chain
    reward = mean_signal(signal, policy, kernel)
    return outlook_from(
        table, signal, kernel, flow, reward, chain.values(reward), chain.occupancy()
    )


def _stack(outlooks: list[Outlook]) -> Outlook:
    return jax.tree.map(lambda *parts: jnp.stack(parts), *outlooks)
