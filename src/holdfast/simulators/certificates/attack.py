"""Fresh adversaries against a frozen policy: how bad can it get within a radius?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.devices import compiled, side_by_side
from holdfast.simulators.environment import (
    Action,
    Box,
    Discrete,
    Disturbance,
    Environment,
    GaussianNoise,
    Outcomes,
    State,
    Step,
)
from holdfast.simulators.nature.adversary import Nature, attack, layers
from holdfast.simulators.nature.kernels import Kernel, Nominal, Situation
from holdfast.simulators.policy.networks import Critic, Normaliser, Policy
from holdfast.simulators.training.learner import looked_at
from holdfast.simulators.training.rollout import Sight, Signal, rollout
from holdfast.simulators.training.settings import AdversarySettings

_WARM_UP_STEPS = 30_000
# Discounted sums are played on until what is left counts for no more than this.
_FORGOTTEN = 1e-3
# Steps held in memory side by side; more are played in turn.
_STEPS_AT_ONCE = 1_000_000


class Frozen(eqx.Module):
    """A policy that learns no more, in its simulator, and how its signals are added up.

    Attributes:
        env: the simulator.
        policy: the policy.
        observations: the normaliser of what it sees, if any.
        signals: how the reward and every cost are added up.
        length: steps for which an episode is played where it is measured, from `played_length`.
        hidden: layers of critics.
        critic_learning_rate: of their Adam.
        deterministic: whether the policy takes its most likely action.
    """

    env: Environment
    policy: Policy
    observations: Normaliser | None
    signals: Signal
    length: int = eqx.field(static=True)
    hidden: tuple[int, ...] = eqx.field(static=True)
    critic_learning_rate: float = eqx.field(static=True)
    deterministic: bool = eqx.field(static=True)


class Attackers(NamedTuple):
    """Trained adversaries, and what their own signals came to; leading axis: one each."""

    natures: Nature
    values: Float[Array, " n"]


def played_length(horizon: int, discounts: Sequence[float], bootstrap: bool) -> int:
    """Steps for which an episode has to be played to be measured.

    Up to the horizon where that is an end; otherwise until no more than a thousandth of a discounted sum
    is left, so that no critic has a say in what is reported.

    Example:
        >>> played_length(15, (0.995, 1.0), bootstrap=False)
        15
        >>> played_length(15, (0.9, 0.9), bootstrap=True)
        66
    """
    if not bootstrap:
        return horizon
    slowest = max(discounts)
    return max(horizon, math.ceil(math.log(_FORGOTTEN) / math.log(slowest)) if slowest > 0 else 1)


@compiled
def watch(frozen: Frozen, key: PRNGKeyArray) -> Sight:
    """What adversaries and critics see, with normalisers that have seen the policy at work."""
    env = frozen.env
    clock = not frozen.signals.bootstrap
    if env.is_one_hot:
        return Sight(frozen.observations, None, None, clock)
    blank = Sight(frozen.observations, None, None, clock)
    episodes = -(-_WARM_UP_STEPS // env.horizon)
    batch = rollout(
        env,
        frozen.policy,
        blank,
        _Watched(Nominal.create(env)),
        _no_critic(env),
        0,
        1.0,
        key,
        episodes,
        deterministic=frozen.deterministic,
    )
    seen = looked_at(
        Sight(
            None,
            Normaliser.create(env.feature_size),
            Normaliser.create(env.nature_feature_size),
            clock,
        ),
        jax.tree.map(lambda leaf: leaf[None], batch),
    )
    return Sight(frozen.observations, seen.features, seen.nature, clock)


@compiled
def train_attackers(
    frozen: Frozen,
    sight: Sight,
    indices: Int[Array, " n"],
    radii: Float[Array, " n"],
    keys: Array,
    settings: AdversarySettings,
    judged_on: int,
) -> Attackers:
    """Adversaries, each against one signal within one radius, and what they leave on fresh episodes.

    Arguments:
        frozen: the policy.
        sight: from `watch`.
        indices: the signal of each; 0 is the reward.
        radii: one for each.
        keys: one for each.
        settings: how hard they work; `updates` in all.
        judged_on: episodes on which each is judged.
    """
    rate = frozen.critic_learning_rate
    hidden = layers(frozen.env, frozen.hidden)

    def one(index: Array, radius: Array, key: Array) -> Attackers:
        start, train, judge = jax.random.split(key, 3)
        signal = jax.tree.map(lambda leaf: leaf[index], frozen.signals)
        nature = Nature.create(start, frozen.env, radius, settings, hidden, rate)

        def update(nature: Nature, key: Array) -> tuple[Nature, None]:
            after = attack(
                nature,
                frozen.env,
                frozen.policy,
                sight,
                signal,
                index,
                key,
                settings,
                rate,
                deterministic=frozen.deterministic,
            )
            return after, None

        nature, _ = lax.scan(update, nature, jax.random.split(train, settings.updates))
        returns = play(frozen, sight, nature.kernel, nature.critic, index, judge, judged_on)
        return Attackers(nature, returns[:, index].mean())

    # Small networks: nothing is gained by the short products of tensor cores.
    with jax.default_matmul_precision("float32"):
        return side_by_side(one, indices, radii, keys)


@compiled
def play_attack(
    frozen: Frozen,
    sight: Sight,
    nature: Nature,
    index: Int[Array, ""],
    key: PRNGKeyArray,
    episodes: int,
) -> Float[Array, "episodes signals"]:
    """What each episode pays in every signal under one trained adversary."""
    with jax.default_matmul_precision("float32"):
        return play(frozen, sight, nature.kernel, nature.critic, index, key, episodes)


@compiled
def play_nominal(
    frozen: Frozen, key: PRNGKeyArray, episodes: int
) -> Float[Array, "episodes signals"]:
    """What each episode pays in every signal under the nominal noise of the environment."""
    env = frozen.env
    sight = Sight(frozen.observations, None, None, not frozen.signals.bootstrap)
    kernel, critic = Nominal.create(env), _no_critic(env)
    with jax.default_matmul_precision("float32"):
        return play(frozen, sight, kernel, critic, jnp.array(0), key, episodes)


def play(
    frozen: Frozen,
    sight: Sight,
    kernel: Kernel,
    critic: Critic,
    index: Int[Array, ""],
    key: PRNGKeyArray,
    episodes: int,
) -> Float[Array, "episodes signals"]:
    """What each episode pays in every signal, under a kernel that works against one of them.

    That is the plain sum up to the horizon where that is an end, and otherwise the discounted sum.
    """
    signals = frozen.signals
    env = PlayedOn(frozen.env, frozen.length)
    rounds = -(-episodes * env.horizon // _STEPS_AT_ONCE)
    at_once = -(-episodes // rounds)

    def some(key: Array) -> Float[Array, "episodes signals"]:
        batch = rollout(
            env,
            frozen.policy,
            sight,
            kernel,
            critic,
            index,
            signals.discount[index],
            key,
            at_once,
            deterministic=frozen.deterministic,
        )
        if not signals.bootstrap:
            return batch.signals.sum(0)
        powers = signals.discount ** jnp.arange(env.horizon)[:, None, None]
        return (powers * batch.signals).sum(0)

    returns = lax.map(some, jax.random.split(key, rounds))
    return returns.reshape(rounds * at_once, -1)[:episodes]


def _no_critic(env: Environment) -> Critic:
    """One for kernels that ask none."""
    return Critic.create(jax.random.PRNGKey(0), env.feature_size + 1, ())


class _Watched(eqx.Module):
    """The nominal kernel under another name, for which `rollout` keeps what nature sees."""

    nominal: Nominal

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """As the nominal kernel does."""
        return self.nominal.draw(key, situation)


class _Wrapped(Environment):
    """Another environment, but for what a subclass changes."""

    inner: Environment

    @property
    def name(self) -> str:
        """The inner one's."""
        return self.inner.name

    @property
    def horizon(self) -> int:
        """The inner one's."""
        return self.inner.horizon

    @property
    def observation_size(self) -> int:
        """The inner one's."""
        return self.inner.observation_size

    @property
    def feature_size(self) -> int:
        """The inner one's."""
        return self.inner.feature_size

    @property
    def nature_feature_size(self) -> int:
        """The inner one's."""
        return self.inner.nature_feature_size

    @property
    def action_space(self) -> Box | Discrete:
        """The inner one's."""
        return self.inner.action_space

    @property
    def disturbance(self) -> GaussianNoise | Outcomes:
        """The inner one's."""
        return self.inner.disturbance

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The inner one's."""
        return self.inner.cost_names

    @property
    def is_one_hot(self) -> bool:
        """The inner one's."""
        return self.inner.is_one_hot

    @property
    def discount(self) -> float | None:
        """The inner one's."""
        return self.inner.discount

    @property
    def is_hosted(self) -> bool:
        """The inner one's."""
        return self.inner.is_hosted

    @property
    def is_replayable(self) -> bool:
        """The inner one's."""
        return self.inner.is_replayable

    @property
    def most_copies(self) -> int | None:
        """The inner one's."""
        return self.inner.most_copies

    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " observation"]]:
        """The inner one's."""
        return self.inner.reset(key)

    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """The inner one's."""
        return self.inner.step(state, action, disturbance)

    def reset_rows(self, keys: PRNGKeyArray) -> tuple[State, Float[Array, "rows observation"]]:
        """The inner one's."""
        return self.inner.reset_rows(keys)

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """The inner one's."""
        return self.inner.step_rows(states, actions, disturbances)

    @property
    def failure(self) -> BaseException | None:
        """The inner one's."""
        return self.inner.failure

    def forget_failure(self) -> None:
        """The inner one's."""
        self.inner.forget_failure()

    def close(self) -> None:
        """The inner one's."""
        self.inner.close()

    def listens(self, state: State) -> Bool[Array, ""]:
        """The inner one's."""
        return self.inner.listens(state)

    def features(self, state: State) -> Float[Array, " features"]:
        """The inner one's."""
        return self.inner.features(state)

    def nature_features(self, state: State, action: Action) -> Float[Array, " nature"]:
        """The inner one's."""
        return self.inner.nature_features(state, action)

    def outcome_probabilities(self, state: State, action: Action) -> Float[Array, " outcomes"]:
        """The inner one's."""
        return self.inner.outcome_probabilities(state, action)


class PlayedOn(_Wrapped):
    """An environment whose episodes are cut later."""

    steps: int = eqx.field(static=True)

    @property
    def horizon(self) -> int:
        """The later cut."""
        return self.steps


class Noisier(_Wrapped):
    """An environment with its Gaussian noise times a factor, and normal noise added to every action.

    What is added to actions is drawn as further entries of the disturbance; the environment then does
    with the action what it always does.

    Arguments:
        inner: the environment.
        factor: on its noise; 1 is nominal.
        action_std: standard deviation of what is added to actions that are vectors.
    """

    factor: Float[Array, ""]
    action_std: Float[Array, ""]

    @property
    def disturbance(self) -> GaussianNoise:
        """The inner one's, and one more number for each entry of the action."""
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
        """A step of the inner environment with what noise has changed."""
        return self.inner.step(state, *self._changed(action, disturbance))

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """Steps of the inner environment with what noise has changed."""
        return self.inner.step_rows(states, *self._changed(actions, disturbances))

    def _changed(self, action: Array, disturbance: Array) -> tuple[Array, Array]:
        size = self._noise.size
        if isinstance(self.action_space, Box):
            action = action + self.action_std * disturbance[..., size:]
        return action, self.factor * disturbance[..., :size]
