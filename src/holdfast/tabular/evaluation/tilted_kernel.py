"""The paper's parametric kernel (11), and gradient descent on its parameters, (22) and (24).

    p^ξ(s'|s, a) ∝ p⁰(s'|s, a)·exp(ηᵀφ(s')/λ(s, a)),   ξ = (η, λ).

The sign of η is free, and λ(s, a) is chosen such that each row lies on the surface of the KL ball.
This is the projection of (22): the parameters never leave the set.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    certified_values,
    targets,
)

# Total weight of an even spread over all rows in the fit of η. Rows that the policy never visits do not
# change the value, but the certificate is a maximum over all states.
_EVEN_WEIGHT = 1e-3
# Directions of the features whose curvature is below this share of the largest are rounding.
_RANK_TOLERANCE = 1e-12
# A step shortened to this share of itself can no longer lower the value: the search has converged.
_SHORTEST_STEP = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Tilted:
    """The paper's parametric kernel (11), p·exp(ηᵀφ/λ(s, a)), for KL sets.

    η follows natural gradient steps: a least-squares fit of the targets by the features, shortened until
    the value falls. Features of the next state alone contain the worst case if the signal depends on
    (s, a) or on s' alone; features of (s, a, s') always can. The certified error says how far the
    family is from the worst case.

    Arguments:
        features: features of the next state, (S, m), or of (s, a, s') in the kernel's own layout with a
            last axis m. Default: a one-hot vector of the next state, and the signal itself where it
            depends on the next state. These always contain the worst case.
        tolerance: certified error to reach, relative to max(1, largest |V|).
        max_iterations: limit on the number of steps; if it is reached, the error may exceed `tolerance`.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.environments.gambler()
        >>> rough = hf.Tilted(features=np.linspace(0, 1, 17)[:, None])   # the balance alone
        >>> found = hf.evaluate(model, np.zeros(17, int), worst_case=rough).reward
        >>> exact = hf.evaluate(model, np.zeros(17, int)).reward
        >>> found.worst - found.error <= exact.worst <= found.worst + exact.error
        True
    """

    features: Any = None
    tolerance: float = 1e-9
    max_iterations: int = 100


@compiled
def by_tilting(
    table: Table,
    policy: Float[Array, "S A"],
    features: Float[Array, "..."] | None,
    tolerance: float,
    max_iterations: int,
) -> PolicyValues:
    """Return the worst case of a table's only signal in the family (11), by descent, (22) and (24)."""
    p, uncertainty = table.probabilities, table.uncertainty
    signal = table.signals[0]
    phi = _features(table, signal, features)

    def kernel(eta: Array) -> Array:
        """Equation (11)."""
        return uncertainty.respond(p, phi @ -eta).kernel

    def natural_gradient(found: PolicyValues) -> Array:
        """Return the η for which −ηᵀφ fits y best, with the mean of each row removed from both."""
        assert found.kernel is not None
        q = found.kernel
        y = targets(table, signal, found.values)
        visits = found.occupancy[:, None] * policy + _EVEN_WEIGHT / policy.size
        weight = (visits[..., None] * q).reshape(-1)
        flat = (phi - (q[..., None] * phi).sum(-2, keepdims=True)).reshape(-1, phi.shape[-1])
        centred = (y - (q * y).sum(-1, keepdims=True)).reshape(-1)
        gram = flat.T @ (weight[:, None] * flat)
        inverse = jnp.linalg.pinv(gram, rtol=_RANK_TOLERANCE, hermitian=True)
        return -inverse @ (flat.T @ (weight * centred))

    def body(
        state: tuple[Array, PolicyValues, Array, Array],
    ) -> tuple[Array, PolicyValues, Array, Array]:
        eta, found, share, count = state
        proposal = eta + share * (natural_gradient(found) - eta)
        assert found.multipliers is not None
        moved = certified_values(table, policy, kernel(proposal), found.multipliers)
        better = moved.value <= found.value
        eta, found = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), (proposal, moved), (eta, found)
        )
        share = jnp.where(better, jnp.minimum(1.0, 2 * share), share / 4)
        return eta, found, share, count + 1

    def unfinished(state: tuple[Array, PolicyValues, Array, Array]) -> Array:
        _, found, share, count = state
        accepted = tolerance * jnp.maximum(1.0, jnp.abs(found.values).max())
        return (found.error > accepted) & (share > _SHORTEST_STEP) & (count < max_iterations)

    nominal = certified_values(table, policy, p, jnp.zeros_like(policy))
    start = (jnp.zeros(phi.shape[-1]), nominal, jnp.array(1.0), jnp.array(0))
    return lax.while_loop(unfinished, body, start)[1]


def _features(table: Table, signal: Array, features: Array | None) -> Float[Array, "S A K m"]:
    shape = table.probabilities.shape
    if features is None:
        indicator = jnp.broadcast_to(table.following(jnp.eye(table.states)), (*shape, table.states))
        if signal.shape[-1] == 1:
            return indicator
        own = signal / jnp.maximum(jnp.abs(signal).max(), jnp.finfo(signal.dtype).tiny)
        return jnp.concatenate([indicator, own[..., None]], axis=-1)
    if features.ndim == 2:
        padded = jnp.zeros((table.states, features.shape[-1])).at[: len(features)].set(features)
        return jnp.broadcast_to(table.following(padded), (*shape, features.shape[-1]))
    return features
