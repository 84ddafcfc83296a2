"""An upper bound on the worst-case cost where nature draws once an episode, in its first step.

Let f be the cost of an episode given the draw w and all that nature sees when it draws, the first state
and action. Nature's distribution q(w|s₀,a₀) has KL(q‖p) ≤ R, and so has the joint distribution of
(s₀, a₀, w). Hence V* ≤ αR + α·log E_P[exp(f/α)] for every α > 0. By Jensen's inequality the mean cost of
n episodes that share s₀, a₀ and w may replace f. The draws are the independent samples of the confidence
limit, whatever n is. A larger n removes more of the noise that nature does not control.
"""

from __future__ import annotations

import dataclasses
from typing import Any

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
from holdfast.simulators.certificates.step_bound import in_parts
from holdfast.simulators.environment import State, Step
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.networks import MLP, Normaliser, Policy
from holdfast.simulators.training.rollout import (
    Batch,
    DisturbanceKernel,
    Nominal,
    Player,
    Sight,
    Situation,
    rollout,
)

_HIDDEN = (32, 32)
# Episodes played side by side where the simulator sets no limit: 250 steps of a robot take 1 GB.
MOST_AT_ONCE = 20_000
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


class _SharedStarts(Prolonged):
    """The simulator with one initial state for every group of `group` rows."""

    group: int = eqx.field(static=True)

    def reset_rows(self, keys: PRNGKeyArray) -> tuple[State, Float[Array, "rows observation"]]:
        """Return initial states and observations that groups share."""
        return super().reset_rows(_of_groups(keys, self.group))


class _SharedDraws(eqx.Module):
    """A kernel with one disturbance for every group of rows."""

    kernel: DisturbanceKernel
    group: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """Return one disturbance per row. Only those of the first step matter."""
        return _of_groups(self.kernel.draw(key, situation), self.group)


class _SharedFirstActions(eqx.Module):
    """A policy whose first action is the same for every group of rows."""

    policy: Policy
    group: int = eqx.field(static=True)

    def act(self, inputs: Array, key: PRNGKeyArray, time: Array, deterministic: Any) -> Array:
        """Return one action per row, in the policy's units."""
        actions = self.policy.act(inputs, key, time, deterministic)
        return jnp.where(time == 0, _of_groups(actions, self.group), actions)

    def to_environment(self, actions: Array) -> Array:
        """Return actions in the simulator's units."""
        return self.policy.to_environment(actions)


def _of_groups(rows: Array, group: int) -> Array:
    """Return rows in which the first of every group replaces the others."""
    return jnp.repeat(rows[::group], group, axis=0)


class DrawnEpisodes(eqx.Module):
    """Draws, with the mean over the episodes of each.

    Attributes:
        inputs: nature's features of the first step, the clock and the disturbance.
        cost: mean cost of the episodes that share them.
        outside: number of values outside the declared range.
        heard_later: whether a step after the first depended on its disturbance.
    """

    inputs: Float[Array, "draws n"]
    cost: Float[Array, " draws"]
    outside: Float[Array, ""]
    heard_later: Array


@compiled
def drawn_episodes(
    frozen: FrozenPolicy,
    signal: BoundedSignal,
    key: Array,
    draws: int,
    kernel: RegressionKernel | None = None,
    repeats: int = 1,
) -> DrawnEpisodes:
    """Return draws of the nominal kernel, or of an attack, each with the mean of its episodes.

    Arguments:
        frozen: the policy in its simulator.
        signal: the cost.
        key: random key of everything that is drawn.
        draws: number of draws.
        kernel: the attack; None for the nominal kernel.
        repeats: episodes that share first state, first action and draw. The simulator plays all of them
            side by side, so `most_copies` of it has to be at least draws·repeats, or repeats 1.
    """
    player, nature = _player(frozen), kernel or _Seen.create(frozen.env)
    if repeats > 1:
        env = _SharedStarts(frozen.env, frozen.length, repeats)  # type: ignore[abstract]
        policy: Any = _SharedFirstActions(player.policy, repeats)
        player = dataclasses.replace(player, env=env, policy=policy)
        nature = _SharedDraws(nature, repeats)  # type: ignore[assignment]
    batch = rollout(player, nature, key, draws * repeats)
    cost, outside = _paid(batch, signal)
    first = player.sight.of_nature(batch.nature_features[0], jnp.zeros(()))
    inputs = jnp.concatenate([first, batch.disturbances[0]], axis=-1)[: draws * repeats : repeats]
    return DrawnEpisodes(
        inputs,
        cost[: draws * repeats].reshape(draws, repeats).mean(1),
        outside,
        (batch.heard[1:] & batch.alive[1:]).any(),
    )


def all_draws(
    frozen: FrozenPolicy, signal: BoundedSignal, key: Array, draws: int, repeats: int
) -> DrawnEpisodes:
    """Return `drawn_episodes` under the nominal kernel, in parts of at most 20,000 episodes."""
    most = (
        min(frozen.env.most_copies or MOST_AT_ONCE, MOST_AT_ONCE) if repeats > 1 else MOST_AT_ONCE
    )
    sizes = in_parts(draws, max(1, most // repeats))
    # All parts have one size, so that they share a program.
    found = [
        drawn_episodes(frozen, signal, each, max(sizes), None, repeats)
        for each in jax.random.split(key, len(sizes))
    ]
    return DrawnEpisodes(
        jnp.concatenate([each.inputs for each in found])[:draws],
        jnp.concatenate([each.cost for each in found])[:draws],
        jnp.stack([each.outside for each in found]).sum(),
        jnp.stack([each.heard_later for each in found]).any(),
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
