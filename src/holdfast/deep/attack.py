"""Fresh adversaries against a frozen policy: how bad can it get within a radius?"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from holdfast.deep._devices import side_by_side
from holdfast.deep.adversary import Nature, attack, layers
from holdfast.deep.configuration import AdversarySettings
from holdfast.deep.environment import Environment
from holdfast.deep.kernels import Kernel
from holdfast.deep.learner import looked_at
from holdfast.deep.networks import Critic, Normaliser, Policy
from holdfast.deep.rollout import Sight, Signal, critic_inputs, episode_returns, rollout

_WARM_UP_STEPS = 30_000


class Frozen(eqx.Module):
    """A policy that learns no more, in its simulator, and how its signals are added up."""

    env: Environment
    policy: Policy
    observations: Normaliser | None
    signals: Signal
    hidden: tuple[int, ...] = eqx.field(static=True)
    deterministic: bool = eqx.field(static=True)


class Attackers(NamedTuple):
    """Trained adversaries, with what they see; leading axis: one for each radius and restart."""

    natures: Nature
    values: Float[Array, " n"]


def watch(frozen: Frozen, settings: AdversarySettings, key: PRNGKeyArray) -> Sight:
    """What adversaries and critics see, with normalisers that have seen the policy at work."""
    env = frozen.env
    clock = not frozen.signals.bootstrap
    if env.is_one_hot:
        return Sight(frozen.observations, None, None, clock)
    blank = Sight(
        frozen.observations,
        Normaliser.create(env.feature_size),
        Normaliser.create(env.nature_feature_size),
        clock,
    )
    nature = _nature(frozen, settings, jnp.zeros(()), key, 1e-3)
    episodes = -(-_WARM_UP_STEPS // env.horizon)
    sight = Sight(blank.observations, None, None, clock)
    batch = rollout(
        env, frozen.policy, sight, nature.kernel, nature.critic, 0, 1.0, key, episodes
    )
    seen = looked_at(Sight(None, blank.features, blank.nature, clock), jax.tree.map(lambda leaf: leaf[None], batch))
    return Sight(frozen.observations, seen.features, seen.nature, clock)


def _nature(
    frozen: Frozen,
    settings: AdversarySettings,
    radius: Float[Array, ""],
    key: PRNGKeyArray,
    critic_learning_rate: float,
) -> Nature:
    return Nature.create(
        key,
        frozen.env,
        radius,
        settings,
        layers(frozen.env, frozen.hidden),
        critic_learning_rate,
    )


def train_attackers(
    frozen: Frozen,
    sight: Sight,
    index: Int[Array, ""],
    radii: Float[Array, " n"],
    keys: Array,
    settings: AdversarySettings,
    critic_learning_rate: float,
    judged_on: int,
) -> Attackers:
    """An adversary for each radius and key, against one signal; and what it leaves, on fresh episodes.

    Arguments:
        frozen: the policy.
        sight: from `watch`.
        index: the signal; 0 is the reward.
        radii: one for each.
        keys: one for each.
        settings: how hard it works; `updates` in all.
        critic_learning_rate: of its critic.
        judged_on: episodes on which it is judged.
    """
    signal = jax.tree.map(lambda leaf: leaf[index], frozen.signals)

    def one(radius: Array, key: Array) -> Attackers:
        start, train, judge = jax.random.split(key, 3)
        nature = _nature(frozen, settings, radius, start, critic_learning_rate)

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
                critic_learning_rate,
                deterministic=frozen.deterministic,
            )
            return after, None

        nature, _ = lax.scan(update, nature, jax.random.split(train, settings.updates))
        returns = play(frozen, sight, nature.kernel, nature.critic, index, judge, judged_on)
        return Attackers(nature, returns[:, index].mean())

    return side_by_side(one, radii, keys)


def play(
    frozen: Frozen,
    sight: Sight,
    kernel: Kernel,
    critic: Critic,
    index: Int[Array, ""],
    key: PRNGKeyArray,
    episodes: int,
) -> Float[Array, "episodes signals"]:
    """What each episode pays in every signal, under a kernel that works against one of them."""
    batch = rollout(
        frozen.env,
        frozen.policy,
        sight,
        kernel,
        critic,
        index,
        frozen.signals.discount[index],
        key,
        episodes,
        deterministic=frozen.deterministic,
    )
    last = critic(critic_inputs(batch, sight)[-1])


    def returns(signal: Signal, i: Array) -> Array:
        # Another signal's tail is not known to this critic; it is left out.
        return episode_returns(batch, signal, i, jnp.where(i == index, last, 0.0))

    count = len(frozen.signals.discount)
    return jax.vmap(returns, out_axes=1)(frozen.signals, jnp.arange(count))
