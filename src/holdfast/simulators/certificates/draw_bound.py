"""An upper bound on the worst-case cost where nature draws once an episode, in its first step.

Let f be the cost of an episode given the draw w and all that nature sees when it draws, the first state
and action. Nature's distribution q(w|s₀,a₀) has KL(q‖p) ≤ R, and so has the joint distribution of
(s₀, a₀, w). Hence V* ≤ αR + α·log E_P[exp(f/α)] for every α > 0. By Jensen's inequality the cost of one
episode may replace f. Each draw has one episode, so the draws are the independent samples of the
confidence limit.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast._support.compilation import compiled
from holdfast.simulators.certificates.attack import FrozenPolicy, Prolonged
from holdfast.simulators.certificates.bounded_signal import BoundedSignal
from holdfast.simulators.environment import Step
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.networks import MLP, Normaliser
from holdfast.simulators.training.rollout import (
    Batch,
    Nominal,
    Player,
    Sight,
    Situation,
    rollout,
)

_HIDDEN = (32, 32)
# Full-batch Adam steps with which the regression of the attack settles.
_FIT_STEPS, _FIT_RATE = 500, 1e-2
# Candidates are scored by a network, not simulated, so there are more than in a step-wise attack.
_CANDIDATES = 256


class RegressionKernel(eqx.Module):
    """An attack: the draw is one of 256 nominal candidates, weighted by the cost a network predicts.

    Attributes:
        network: prediction of the cost from nature's features and the disturbance.
        inputs: normaliser of its inputs.
        radius: radius of the KL ball, which the weights keep in every draw.
        size: length of the disturbance.
    """

    network: MLP
    inputs: Normaliser
    radius: Float[Array, ""]
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """Return one disturbance per row."""

        def minus_cost(candidates: Array) -> Array:
            seen = jnp.broadcast_to(
                situation.inputs, (*candidates.shape[:2], situation.inputs.shape[-1])
            )
            x = jnp.concatenate([seen, candidates], axis=-1)
            return -self.network(self.inputs(x))[..., 0]

        tilted = TiltedKernel(self.radius, self.size, _CANDIDATES)
        situation = situation._replace(lookahead=minus_cost)
        # The clock is the last input. Only the first step depends on its disturbance.
        return lax.cond(
            situation.inputs[0, -1] == 0,
            lambda: tilted.draw(key, situation),
            lambda: Nominal(self.size).draw(key, situation),
        )


class _Seen(Nominal):
    """The nominal kernel as another type, so that `rollout` records nature's features."""


class DrawnEpisodes(eqx.Module):
    """Episodes of one draw each.

    Attributes:
        inputs: nature's features of the first step, the clock and the disturbance.
        cost: cost of the episode.
        outside: number of values outside the declared range.
        heard_later: whether a step after the first depended on its disturbance.
    """

    inputs: Float[Array, "episodes n"]
    cost: Float[Array, " episodes"]
    outside: Float[Array, ""]
    heard_later: Array


@compiled
def drawn_episodes(
    frozen: FrozenPolicy,
    signal: BoundedSignal,
    key: Array,
    episodes: int,
    kernel: RegressionKernel | None = None,
) -> DrawnEpisodes:
    """Return episodes under the nominal kernel, or under an attack."""
    player = _player(frozen)
    batch = rollout(player, kernel or _Seen.create(frozen.env), key, episodes)
    cost, outside = _paid(batch, signal)
    first = player.sight.of_nature(batch.nature_features[0], jnp.zeros(()))
    return DrawnEpisodes(
        jnp.concatenate([first, batch.disturbances[0]], axis=-1)[:episodes],
        cost[:episodes],
        outside,
        (batch.heard[1:] & batch.alive[1:]).any(),
    )


@compiled
def nominal_costs(
    frozen: FrozenPolicy, signal: BoundedSignal, key: Array, episodes: int
) -> tuple[Float[Array, " episodes"], Float[Array, ""]]:
    """Return the costs of nominal episodes, and the number of values outside the declared range."""
    cost, outside = _paid(
        rollout(_player(frozen), Nominal.create(frozen.env), key, episodes), signal
    )
    return cost[:episodes], outside


def _player(frozen: FrozenPolicy) -> Player:
    env = Prolonged(frozen.env, frozen.length)  # type: ignore[abstract]
    return frozen.player(env, Sight(frozen.observations, None, None, True))


def _paid(batch: Batch, signal: BoundedSignal) -> tuple[Array, Array]:
    """Return the cost of every episode, and the number of values outside the declared range."""
    left = jnp.full(batch.alive.shape[1], signal.total)

    def step(left: Array, at: tuple) -> tuple[Array, Array]:
        time, values, terminated, alive = at
        there = Step((), jnp.zeros(()), values[:, 0], -values[:, 1:], terminated)
        cost, cut = signal.paid(there, time, left)
        return left - jnp.where(alive, cost, 0.0), (cut & alive).sum()

    times = jnp.arange(len(batch.alive))
    left, outside = lax.scan(step, left, (times, batch.signals, batch.terminated, batch.alive))
    return signal.total - left, outside.sum()


@compiled
def fit_attack(
    inputs: Float[Array, "episodes n"],
    cost: Float[Array, " episodes"],
    radius: Float[Array, ""],
    size: int,
    key: PRNGKeyArray,
) -> RegressionKernel:
    """Return the attack whose network is fitted to nominal episodes by least squares."""
    normaliser = Normaliser.create(inputs.shape[1]).updated(inputs, jnp.ones(len(inputs)))
    x, goal = normaliser(inputs), (cost - cost.mean()) / (cost.std() + 1e-8)
    network = MLP.create(key, (inputs.shape[1], *_HIDDEN, 1))
    adam = optax.adam(optax.cosine_decay_schedule(_FIT_RATE, _FIT_STEPS))

    def update(carry: tuple, _: None) -> tuple[tuple, None]:
        network, state = carry
        slope = jax.grad(lambda net: ((net(x)[..., 0] - goal) ** 2).mean())(network)
        changes, state = adam.update(slope, state, network)
        return (optax.apply_updates(network, changes), state), None

    (network, _), _ = lax.scan(update, (network, adam.init(network)), None, length=_FIT_STEPS)
    return RegressionKernel(network, normaliser, radius, size)


def halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two halves: one for choices, one for confidence limits."""
    middle = len(values) // 2
    return values[:middle], values[middle:]
