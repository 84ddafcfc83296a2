"""Learning the worst case: a kernel that follows the gradient of its own signal's value downwards."""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.kernels import (
    CategoricalKernel,
    GaussianMixture,
    Kernel,
    Nominal,
    TiltedKernel,
)
from holdfast.simulators.policy.networks import MLP, Critic, Policy
from holdfast.simulators.training.fitting import fit_critic, over_minibatches
from holdfast.simulators.training.rollout import (
    Batch,
    Sight,
    Signal,
    critic_inputs,
    estimate,
    rollout,
)
from holdfast.simulators.training.settings import AdversarySettings


class Nature(eqx.Module):
    """One signal's side of the world: its kernel, its critic, and what trains them."""

    kernel: Kernel
    critic: Critic
    kernel_optimiser: optax.OptState
    critic_optimiser: optax.OptState

    @classmethod
    def create(
        cls,
        key: PRNGKeyArray,
        env: Environment,
        radius: Float[Array, ""] | None,
        settings: AdversarySettings,
        hidden: tuple[int, ...],
        critic_learning_rate: float,
    ) -> Self:
        """The nominal kernel where there is no radius, and one close to it where there is."""
        kernel_key, critic_key = jax.random.split(key)
        kernel: Kernel = Nominal.create(env)
        if radius is not None:
            kernel = create_kernel(kernel_key, env, radius, settings)
        critic = Critic.create(critic_key, env.feature_size + 1, layers(env, hidden))
        network = getattr(kernel, "network", None)
        return cls(
            kernel,
            critic,
            optax.adam(settings.learning_rate).init(network),
            optax.adam(critic_learning_rate).init(critic.network),
        )


def layers(env: Environment, hidden: tuple[int, ...]) -> tuple[int, ...]:
    """On a table one affine function of the indicators is everything; elsewhere, what was asked for."""
    return () if env.is_one_hot else hidden


def kernel_name(env: Environment, settings: AdversarySettings) -> str:
    """The kind of kernel that "auto" stands for."""
    if settings.kernel != "auto":
        return settings.kernel
    return "gaussian-mixture" if isinstance(env.disturbance, GaussianNoise) else "categorical"


def create_kernel(
    key: PRNGKeyArray, env: Environment, radius: Float[Array, ""], settings: AdversarySettings
) -> Kernel:
    """A kernel of the kind that the settings name."""
    name = kernel_name(env, settings)
    if name == "tilted":
        return TiltedKernel.create(env, radius, settings.candidates)
    kind = GaussianMixture if name == "gaussian-mixture" else CategoricalKernel
    return kind.create(key, env, radius, layers(env, settings.hidden), settings.components)


def attack(
    nature: Nature,
    env: Environment,
    policy: Policy,
    sight: Sight,
    signal: Signal,
    index: Int[Array, ""],
    key: PRNGKeyArray,
    settings: AdversarySettings,
    critic_learning_rate: float,
    *,
    deterministic: bool = False,
) -> Nature:
    """One update of a signal's kernel against a policy, on a batch of its own; its critic follows."""
    episodes = settings.episodes(env.horizon)
    pathwise = settings.gradient == "pathwise" and hasattr(nature.kernel, "network")
    batch = rollout(
        env,
        policy,
        sight,
        nature.kernel,
        nature.critic,
        index,
        signal.discount,
        key,
        episodes,
        deterministic=deterministic,
        keep_states=pathwise,
    )
    found = estimate(batch, nature.critic, sight, signal, index)
    # Where nothing was heard, nature learns nothing: what it said is noise.
    counted = found.weights * batch.heard
    critic, critic_optimiser = fit_critic(
        nature.critic,
        optax.adam(critic_learning_rate),
        nature.critic_optimiser,
        critic_inputs(batch, sight)[:-1],
        found.targets,
        batch.alive,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
    )
    kernel, optimiser = nature.kernel, nature.kernel_optimiser
    if pathwise:
        kernel, optimiser = _pathwise(
            nature, env, policy, sight, signal, index, batch, counted, key, settings
        )
    elif hasattr(kernel, "network"):
        kernel, optimiser = _by_score(nature, batch, sight, found.advantages, counted, settings)
    return Nature(kernel, critic, optimiser, critic_optimiser)


def _nature_inputs(batch: Batch, sight: Sight) -> Float[Array, "time episodes nature"]:
    horizon = len(batch.alive)
    return jax.vmap(sight.of_nature)(batch.nature_features, jnp.arange(horizon) / horizon)


def _by_score(
    nature: Nature,
    batch: Batch,
    sight: Sight,
    advantages: Array,
    weights: Array,
    settings: AdversarySettings,
) -> tuple[Kernel, optax.OptState]:
    """Down the score-function gradient E[∇log q(w|s,a)·A], clipped where the density has moved far."""
    kernel: Any = nature.kernel
    inputs = _nature_inputs(batch, sight)
    total = jnp.maximum(weights.sum(), 1e-9)
    mean = (weights * advantages).sum() / total
    spread = jnp.sqrt((weights * (advantages - mean) ** 2).sum() / total)
    # Only nature's own direction counts, so its advantages may have any unit.
    units = jnp.where(weights > 0, (advantages - mean) / (spread + 1e-8), 0.0)
    old = kernel.log_density(inputs, batch.log_nominal, batch.disturbances)

    def loss(network: MLP, part: tuple) -> Array:
        x, log_nominal, drawn, before, units, weight = part
        changed = eqx.tree_at(lambda k: k.network, kernel, network)
        ratio = jnp.exp(changed.log_density(x, log_nominal, drawn) - before)
        near = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
        each = jnp.maximum(ratio * units, near * units) + changed.excess(x, log_nominal) ** 2
        return (weight * each).sum() / jnp.maximum(weight.sum(), 1e-9)

    data = (inputs, batch.log_nominal, batch.disturbances, old, units, weights)
    return _descend(nature, loss, data, settings)


def _pathwise(
    nature: Nature,
    env: Environment,
    policy: Policy,
    sight: Sight,
    signal: Signal,
    index: Int[Array, ""],
    batch: Batch,
    weights: Array,
    key: PRNGKeyArray,
    settings: AdversarySettings,
) -> tuple[Kernel, optax.OptState]:
    """Down the gradient of E[signal + γV(s')] through the dynamics and the critic."""
    kernel: Any = nature.kernel
    critic = nature.critic
    # Values in units of their spread, as the advantages of the score function are.
    unit = critic.returns.spread[0]
    horizon = len(batch.alive)
    times = jnp.broadcast_to((jnp.arange(horizon)[:, None] + 1) / horizon, batch.alive.shape)
    keys = jax.random.split(jax.random.fold_in(key, 1), batch.alive.shape)

    def lookahead(state: Any, action: Array, time: Array, disturbance: Array) -> Array:
        there = env.step(state, action, disturbance)
        worth = jnp.concatenate([there.reward[None], -there.costs])[index]
        value = critic(sight.of_critic(env.features(there.state), time))
        over = there.terminated | (sight.clock & (time >= 1))
        return worth + jnp.where(over, 0.0, signal.discount * value)

    def loss(network: MLP, part: tuple) -> Array:
        states, actions, x, log_nominal, time, weight, key = part
        changed = eqx.tree_at(lambda k: k.network, kernel, network)

        def expected(state: Any, action: Array, x: Array, logs: Array, t: Array, k: Array) -> Array:
            return changed.expectation(k, x, logs, lambda w: lookahead(state, action, t, w))

        each = jax.vmap(expected)(states, actions, x, log_nominal, time, key)
        each = each / unit + changed.excess(x, log_nominal) ** 2
        return (weight * each).sum() / jnp.maximum(weight.sum(), 1e-9)

    data = (
        batch.states,
        policy.to_environment(batch.actions),
        _nature_inputs(batch, sight),
        batch.log_nominal,
        times,
        weights,
        keys,
    )
    return _descend(nature, loss, data, settings)


def _descend(
    nature: Nature, loss: Any, data: tuple, settings: AdversarySettings
) -> tuple[Kernel, optax.OptState]:
    kernel: Any = nature.kernel
    adam = optax.adam(settings.learning_rate)

    def update(carry: tuple[MLP, optax.OptState], part: Any) -> tuple[MLP, optax.OptState]:
        network, state = carry
        changes, state = adam.update(jax.grad(loss)(network, part), state, network)
        return optax.apply_updates(network, changes), state

    network, optimiser = over_minibatches(
        (kernel.network, nature.kernel_optimiser),
        data,
        update,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
    )
    return eqx.tree_at(lambda k: k.network, kernel, network), optimiser
