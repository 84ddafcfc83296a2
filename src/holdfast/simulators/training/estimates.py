"""Returns, advantages and critics' targets, estimated from a batch of episodes."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from holdfast.simulators.policy.networks import Critic
from holdfast.simulators.training.rollout import Batch, Sight, Signal


class SignalEstimate(NamedTuple):
    """The estimates of one signal from a batch drawn under its kernel.

    Attributes:
        value: mean return of an episode; see `episode_returns`.
        error: standard error of that mean.
        advantages: generalised advantage of every step, zero after the end of the episode.
        weights: decay^t of live steps. If decay is the discount, Σ weights·ratio·advantages, averaged
            over episodes, is the first-order change of the return.
        targets: λ-returns for the critic.
    """

    value: Float[Array, ""]
    error: Float[Array, ""]
    advantages: Float[Array, "time episodes"]
    weights: Float[Array, "time episodes"]
    targets: Float[Array, "time episodes"]


def critic_inputs(batch: Batch, sight: Sight) -> Float[Array, "time+1 episodes inputs"]:
    """Return the critic's inputs at every step."""
    horizon = len(batch.alive)
    times = jnp.arange(horizon + 1) / horizon
    return jax.vmap(sight.of_critic)(batch.features, times)


def episode_returns(
    batch: Batch, signal: Signal, last_values: Float[Array, " episodes"]
) -> Float[Array, " episodes"]:
    """Return the plain sum of each episode, or with `bootstrap` the discounted sum and last value."""
    paid = batch.signals[..., signal.index]
    if not signal.bootstrap:
        return paid.sum(0)
    powers = signal.discount ** jnp.arange(len(paid))[:, None]
    cut = batch.alive[-1] & ~batch.terminated[-1]
    return (powers * paid).sum(0) + jnp.where(cut, signal.discount ** len(paid) * last_values, 0.0)


def estimate(
    batch: Batch, critic: Critic, sight: Sight, signal: Signal, *, of_nature: bool = False
) -> SignalEstimate:
    """Return the estimates of one signal, with its advantages A^π_p under the batch's kernel.

    Arguments:
        batch: the episodes.
        critic: critic of the signal.
        sight: normalisers of the critic's inputs.
        signal: the signal.
        of_nature: whether the advantages are those of the disturbance. λ is then 1 before steps that
            do not use their disturbance. The advantage of a mass that is drawn once thus covers the
            whole episode.
    """
    values = critic(critic_inputs(batch, sight))
    paid = batch.signals[..., signal.index]
    going_on = batch.alive & ~batch.terminated
    # The step after which the horizon cuts the episode.
    cut = jnp.zeros_like(batch.alive).at[-1].set(True)
    bootstrapped = going_on & (~cut | signal.bootstrap)
    ahead = jnp.where(bootstrapped, signal.discount * values[1:], 0.0)
    residuals = paid + ahead - values[:-1]
    residuals = jnp.where(batch.alive, residuals, 0.0)

    follows = (going_on & ~cut) * signal.gae
    if of_nature:
        heard_next = jnp.concatenate([batch.heard[1:], batch.heard[-1:]])
        follows = (going_on & ~cut) * jnp.where(heard_next, signal.gae, 1.0)

    def back(advantage: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        residual, share = at
        advantage = residual + signal.discount * share * advantage
        return advantage, advantage

    zero = jnp.zeros(paid.shape[1])
    _, advantages = lax.scan(back, zero, (residuals, follows), reverse=True)
    advantages = jnp.where(batch.alive, advantages, 0.0)
    powers = signal.decay ** jnp.arange(len(paid))[:, None]
    returns = episode_returns(batch, signal, values[-1])
    return SignalEstimate(
        value=returns.mean(),
        error=returns.std() / jnp.sqrt(len(returns)),
        advantages=advantages,
        weights=powers * batch.alive,
        targets=advantages + values[:-1],
    )
