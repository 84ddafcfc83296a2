"""The paper's parametric kernel, p·exp(ηᵀφ/λ(s, a)), learnt by natural gradient."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import Outlook, certified_under, per_signal, targets


@eqx.filter_jit
def by_tilting(
    table: Table,
    policy: Float[Array, "S A"],
    features: Float[Array, "..."] | None,
    tolerance: float,
    max_iterations: int,
) -> Outlook:
    """The worst case of every signal within the family p·exp(ηᵀφ/λ), λ on the ball's surface."""
    p, uncertainty = table.probabilities, table.uncertainty

    def evaluate_signal(signal: Array) -> Outlook:
        phi = _features(table, signal, features)

        def tilt(eta: Array) -> Array:
            return uncertainty.respond(p, phi @ -eta).kernel

        def natural_gradient(outlook: Outlook) -> Array:
            """η whose tilt −ηᵀφ is the best fit of y, each row's mean left out of both."""
            assert outlook.kernel is not None
            q = outlook.kernel
            y = targets(table, signal, outlook.values)
            # Rows that are hardly visited count a little too: their tilt matters to the certificate.
            visits = outlook.occupancy[:, None] * policy + 1e-3 / policy.size
            weight = (visits[..., None] * q).reshape(-1)
            flat = (phi - (q[..., None] * phi).sum(-2, keepdims=True)).reshape(-1, phi.shape[-1])
            centred = (y - (q * y).sum(-1, keepdims=True)).reshape(-1)
            gram = flat.T @ (weight[:, None] * flat)
            return -jnp.linalg.pinv(gram, rtol=1e-12, hermitian=True) @ (
                flat.T @ (weight * centred)
            )

        def body(state: tuple[Array, Outlook, Array, Array]) -> tuple[Array, Outlook, Array, Array]:
            eta, outlook, share, count = state
            proposal = eta + share * (natural_gradient(outlook) - eta)
            moved = certified_under(table, signal, policy, tilt(proposal), outlook.multipliers)
            better = moved.value <= outlook.value
            keep = lambda new, old: jnp.where(better, new, old)  # noqa: E731
            outlook = Outlook(
                *(
                    keep(getattr(moved, f.name), getattr(outlook, f.name))
                    for f in dataclasses.fields(Outlook)
                )
            )
            share = jnp.where(better, jnp.minimum(1.0, 2 * share), share / 4)
            return keep(proposal, eta), outlook, share, count + 1

        def unfinished(state: tuple[Array, Outlook, Array, Array]) -> Array:
            _, outlook, share, count = state
            accepted = tolerance * jnp.maximum(1.0, jnp.abs(outlook.values).max())
            return (outlook.error > accepted) & (share > 1e-6) & (count < max_iterations)

        nominal = certified_under(table, signal, policy, p, jnp.zeros_like(policy))
        start = (jnp.zeros(phi.shape[-1]), nominal, jnp.array(1.0), jnp.array(0))
        return lax.while_loop(unfinished, body, start)[1]

    return per_signal(evaluate_signal, table)


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
