"""Adversaries trained against a policy that no longer learns: lower bounds on the worst case."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.compilation import compiled_simulation
from holdfast._support.devices import row, side_by_side
from holdfast.simulators.environment import (
    Action,
    Box,
    Disturbance,
    Environment,
    GaussianNoise,
    State,
    Step,
)
from holdfast.simulators.nature.adversary import Nature, attack
from holdfast.simulators.policy.memory import remembering
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training.rollout import Nominal, Player, Sight, Signal, rollout
from holdfast.simulators.training.settings import AdversarySettings
from holdfast.simulators.wrapped import Wrapped

# 30,000 steps estimate the mean and spread of every feature within about 1 %.
_WARM_UP_STEPS = 30_000
# Discounted sums are played until at most a thousandth of their weight is left: less than the width of
# the confidence intervals of 20,000 episodes, and half as many steps again as for a hundredth.
_REMAINDER = 1e-3
# Steps simulated side by side. A million steps of Point Gather take 0.5 GB.
_STEPS_AT_ONCE = 1_000_000


class Prolonged(Wrapped):
    """An environment whose episodes are cut after `steps` steps."""

    steps: int = eqx.field(static=True)

    @property
    def horizon(self) -> int:
        """The number of steps after which an episode is cut."""
        return self.steps


class Noisier(Wrapped):
    """An environment with scaled Gaussian noise, and normal noise added to every action.

    The action noise is drawn as further entries of the disturbance. The environment treats the changed
    action like any other.

    Arguments:
        inner: the environment.
        factor: factor on its noise; 1 is nominal.
        action_std: standard deviation of the noise added to vector actions.
    """

    factor: Float[Array, ""]
    action_std: Float[Array, ""]

    @property
    def disturbance(self) -> GaussianNoise:
        """The inner disturbance, with one more number for each entry of a vector action."""
        inner, space = self._noise, self.action_space
        extra = space.size if isinstance(space, Box) else 0
        scale: Any = (self.action_std,) * extra
        channel = f"{inner.channel} and action" if extra else inner.channel
        return GaussianNoise(inner.size + extra, channel, (*inner.scale, *scale))

    @property
    def _noise(self) -> GaussianNoise:
        noise = self.inner.disturbance
        assert isinstance(noise, GaussianNoise)
        return noise

    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """Return a step of the inner environment with the changed action and disturbance."""
        return self.inner.step(state, *self._changed(action, disturbance))

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """Return steps of the inner environment with the changed actions and disturbances."""
        return self.inner.step_rows(states, *self._changed(actions, disturbances))

    def _changed(self, action: Array, disturbance: Array) -> tuple[Array, Array]:
        size = self._noise.size
        if isinstance(self.action_space, Box):
            action = action + self.action_std * disturbance[..., size:]
        return action, self.factor * disturbance[..., :size]


class FrozenPolicy(eqx.Module):
    """A policy that no longer learns, with its simulator and the way its signals are summed.

    Attributes:
        env: the simulator.
        policy: the policy.
        observations: normaliser of the policy's observations, or None.
        signals: discounts of the reward and of every cost.
        length: steps for which a measured episode is played, from `played_length`.
        hidden: hidden layers of the critics.
        critic_learning_rate: learning rate of the critics.
        memory: number of past observations and actions that the policy sees.
        deterministic: whether the policy takes its most likely action; traced, so that both ways
            share a compiled program.
    """

    env: Environment
    policy: Policy
    observations: Normaliser | None
    signals: Signal
    length: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    critic_learning_rate: float = eqx.field(static=True)
    memory: int = eqx.field(static=True, default=0)
    deterministic: bool | Bool[Array, ""] = False

    def player(self, env: Environment, sight: Sight) -> Player:
        """Return the policy in a simulator."""
        return Player(remembering(env, self.memory), self.policy, sight, self.deterministic)


def played_length(horizon: int, discounts: Sequence[float], bootstrap: bool) -> int:
    """Return the number of steps for which an episode is played to measure it.

    That is the horizon if it ends the episode. Otherwise an episode is played until at most a
    thousandth of a discounted sum is left, so that no critic enters the reported values.

    Example:
        >>> played_length(15, (0.995, 1.0), bootstrap=False)
        15
        >>> played_length(15, (0.9, 0.9), bootstrap=True)
        66
    """
    if not bootstrap:
        return horizon
    slowest = max(discounts)
    return max(horizon, math.ceil(math.log(_REMAINDER) / math.log(slowest)) if slowest > 0 else 1)


@compiled_simulation
def watch(frozen: FrozenPolicy, key: PRNGKeyArray) -> Sight:
    """Return the inputs of adversaries and critics, with normalisers fitted to nominal episodes."""
    env = frozen.env
    sight = _sight(frozen)
    if env.is_one_hot:
        return sight
    player, episodes = frozen.player(env, sight), -(-_WARM_UP_STEPS // env.horizon)
    batch = rollout(player, _Watched.create(env), key, episodes)
    features, nature = map(Normaliser.create, (env.feature_size, env.nature_feature_size))
    batches = jax.tree.map(lambda leaf: leaf[None], batch)
    fitted = Sight(None, features, nature, sight.clock).updated(batches)
    return Sight(frozen.observations, fitted.features, fitted.nature, sight.clock)


class Targets(NamedTuple):
    """What adversaries attack, along a leading axis.

    Attributes:
        signal: index of the attacked signal; 0 is the reward.
        radius: radius of the adversary's ball.
        deterministic: whether the policy takes its most likely action.
        key: random key.
    """

    signal: Int[Array, "*n"]
    radius: Float[Array, "*n"]
    deterministic: Bool[Array, "*n"]
    key: PRNGKeyArray


@compiled_simulation
def train_attackers(
    frozen: FrozenPolicy,
    sight: Sight,
    targets: Targets,
    settings: AdversarySettings,
    judged_on: int,
) -> tuple[Nature, Float[Array, " n"]]:
    """Train adversaries, each against one signal within one radius, and evaluate them on new episodes.

    The adversaries have a leading axis. Each is returned with the value of its signal.

    Arguments:
        frozen: the policy.
        sight: the inputs from `watch`.
        targets: what each adversary attacks.
        settings: settings of the adversaries, with the total number of `updates`.
        judged_on: number of episodes on which each adversary is evaluated.
    """
    rate = frozen.critic_learning_rate

    def one(target: Targets) -> tuple[Nature, Array]:
        acting = dataclasses.replace(frozen, deterministic=target.deterministic)
        player = acting.player(acting.env, sight)
        start, train, judge = jax.random.split(target.key, 3)
        signal = row(frozen.signals, target.signal)
        nature = Nature.create(start, frozen.env, target.radius, settings, frozen.hidden, rate)

        def update(nature: Nature, now: tuple[Array, Array]) -> tuple[Nature, None]:
            key, factor = now
            return attack(nature, player, signal, key, settings, rate, factor), None

        # The policy stands still, so that smaller and smaller steps average out the noise of a batch.
        factors = 1 - jnp.arange(settings.updates) / settings.updates
        nature, _ = lax.scan(update, nature, (jax.random.split(train, settings.updates), factors))
        returns = _play(acting, judge, judged_on, sight, nature, target.signal)
        return nature, returns[:, target.signal].mean()

    # Networks this small gain nothing from tensor cores, whose products have 10 bits of mantissa.
    with jax.default_matmul_precision("float32"):
        return side_by_side(one, targets)


def _play(
    frozen: FrozenPolicy,
    key: PRNGKeyArray,
    episodes: int,
    sight: Sight | None = None,
    nature: Nature | None = None,
    index: int | Int[Array, ""] = 0,
) -> Float[Array, "episodes signals"]:
    """Return the sum of every signal in each episode, under nominal noise or one adversary.

    The sum is plain up to the horizon if that ends the episode, and otherwise discounted.

    Arguments:
        frozen: the policy.
        key: random key of the episodes.
        episodes: number of episodes.
        sight: inputs from `watch`, for an adversary.
        nature: the adversary, or None for the environment's nominal noise.
        index: index of the signal that the adversary attacks.
    """
    signals = frozen.signals
    env = Prolonged(frozen.env, frozen.length)  # type: ignore[abstract]
    rounds = -(-episodes * env.horizon // _STEPS_AT_ONCE)
    at_once = -(-episodes // rounds)
    player = frozen.player(env, sight or _sight(frozen))

    kernel = Nominal.create(env) if nature is None else nature.kernel
    critic = None if nature is None else nature.critic

    def some(key: Array) -> Float[Array, "episodes signals"]:
        attacked = row(signals, index)
        batch = rollout(player, kernel, key, at_once, critic=critic, signal=attacked)
        if not signals.bootstrap:
            return batch.signals.sum(0)
        powers = signals.discount ** jnp.arange(env.horizon)[:, None, None]
        return (powers * batch.signals).sum(0)

    with jax.default_matmul_precision("float32"):
        returns = lax.map(some, jax.random.split(key, rounds))
    return returns.reshape(rounds * at_once, -1)[:episodes]


play = compiled_simulation(_play)


def _sight(frozen: FrozenPolicy) -> Sight:
    """Return inputs without normalisers for critics and adversaries."""
    return Sight(frozen.observations, None, None, not frozen.signals.bootstrap)


class _Watched(Nominal):
    """The nominal kernel as another type, so that `rollout` records the adversary's features."""
