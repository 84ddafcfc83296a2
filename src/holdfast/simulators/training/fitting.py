"""Gradient steps on parts of a batch: critics, and the frame that adversaries share with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float

from holdfast._support.devices import spread
from holdfast.simulators.policy.networks import MLP, Critic

Carry = TypeVar("Carry")


def over_minibatches(
    carry: Carry,
    data: Any,
    update: Callable[[Carry, Any], Carry],
    *,
    epochs: int,
    minibatches: int,
) -> Carry:
    """Runs `update` on each part of the data in turn, `epochs` times over.

    Data are arrays (time, episodes, …); a part is whole episodes, as rows (steps, …). Episodes are
    independent of each other, so that any division of them is a random one: no shuffling. The few left
    over by the division are not used.
    """
    episodes = jax.tree.leaves(data)[0].shape[1]
    minibatches = min(minibatches, episodes)
    size = episodes // minibatches

    def divided(leaf: Array) -> Array:
        # Dealt out in turn: where episodes are spread over devices, so is each part.
        steps, more = len(leaf), leaf.shape[2:]
        parts = leaf[:, : size * minibatches].reshape(steps, size, minibatches, *more)
        return jnp.moveaxis(parts, (2, 1), (0, 1)).reshape(minibatches, size * steps, *more)

    parts = spread(jax.tree.map(divided, data), axis=1)

    def epoch(carry: Carry, _: None) -> tuple[Carry, None]:
        return lax.scan(lambda c, part: (update(c, part), None), carry, parts)

    return lax.scan(epoch, carry, None, length=epochs)[0]


def fit_critic(
    critic: Critic,
    optimiser: optax.GradientTransformation,
    state: optax.OptState,
    inputs: Float[Array, "time episodes inputs"],
    targets: Float[Array, "time episodes"],
    alive: Bool[Array, "time episodes"],
    *,
    epochs: int,
    minibatches: int,
) -> tuple[Critic, optax.OptState]:
    """Least squares on λ-returns, in units of their spread."""
    counted = alive.astype(jnp.float32)
    returns = critic.returns.updated(targets[..., None], counted)
    # The last few batches decide: returns grow as the policy learns.
    returns = eqx.tree_at(
        lambda r: r.count, returns, jnp.minimum(returns.count, 10.0 * alive.sum())
    )
    mean, std = returns.mean[0], jnp.sqrt(returns.square[0]) + 1e-8
    goals = (targets - mean) / std

    def loss(network: MLP, part: tuple[Array, Array, Array]) -> Array:
        x, goal, weight = part
        return (weight * (network(x)[..., 0] - goal) ** 2).sum() / jnp.maximum(weight.sum(), 1.0)

    def update(carry: tuple[MLP, optax.OptState], part: Any) -> tuple[MLP, optax.OptState]:
        network, state = carry
        gradient = jax.grad(loss)(network, part)
        changes, state = optimiser.update(gradient, state, network)
        return optax.apply_updates(network, changes), state

    network, state = over_minibatches(
        (critic.network, state),
        (inputs, goals, counted),
        update,
        epochs=epochs,
        minibatches=minibatches,
    )
    return Critic(network, returns), state
