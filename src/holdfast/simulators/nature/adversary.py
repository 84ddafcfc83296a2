"""The adversary of one signal: a kernel that descends the gradient of the signal's value, and a critic.

This is Algorithm 1's inner loop, p ← Proj(p − β∇_p V), in the form of equations (22) and (24): gradient
descent on the parameters ξ of a disturbance kernel. The projection is part of every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.categorical import CategoricalKernel
from holdfast.simulators.nature.direction_search import DirectionSearch
from holdfast.simulators.nature.gaussian_mixture import GaussianMixture
from holdfast.simulators.nature.mean_shift import MeanShift
from holdfast.simulators.nature.tilted import TiltedKernel
from holdfast.simulators.policy.networks import MLP, Critic, layers
from holdfast.simulators.steps.descent import Passes, by_episodes, by_steps, descend, in_rows
from holdfast.simulators.training.estimates import critic_inputs, episode_returns, estimate
from holdfast.simulators.training.rollout import (
    Batch,
    DisturbanceKernel,
    Nominal,
    Player,
    Sight,
    Signal,
    rollout,
    worth,
)
from holdfast.simulators.training.settings import AdversarySettings

# Added to sums of weights and to standard deviations before division. All steps of a batch may have
# weight zero; then the quotient is zero too. Weights and advantages of order one are not changed by it.
_TINY = 1e-8
# Up to this number of parameters the directions of a search are dense: the best of 64 has cosine 0.999
# with any other direction of two parameters, and 0.83 of six on average.
_FEW_PARAMETERS = 2
_KERNELS: dict[str, Any] = {
    "gaussian-mixture": GaussianMixture,
    "mean-shift": MeanShift,
    "categorical": CategoricalKernel,
    "tilted": TiltedKernel,
    "direction-search": DirectionSearch,
}


class Nature(eqx.Module):
    """An adversary: the kernel and the critic of one signal, with the state of their optimisers."""

    kernel: DisturbanceKernel
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
        """Return an adversary close to the nominal kernel; without a radius, the nominal kernel.

        Raises:
            ValueError: the kernel of the settings does not fit the environment's disturbance.
        """
        kernel_key, critic_key = jax.random.split(key)
        kernel: Any = Nominal.create(env)
        if radius is not None:
            kind = _KERNELS[kernel_name(env, settings)]
            kernel = kind.create(kernel_key, env, radius, settings)
        critic = Critic.create(critic_key, env.feature_size + 1, layers(env, hidden))
        return cls(
            kernel,
            critic,
            optax.adam(settings.learning_rate).init(getattr(kernel, "network", None)),
            optax.adam(critic_learning_rate).init(critic.network),
        )


def kernel_name(env: Environment, settings: AdversarySettings) -> str:
    """Return the kernel of the settings, with "auto" replaced by the kernel that fits.

    One or two parameters that are drawn once per episode are searched; a mixture learns the other
    Gaussian kernels, also wherever a pathwise gradient is wanted.
    """
    if settings.kernel != "auto":
        return settings.kernel
    if not isinstance(env.disturbance, GaussianNoise):
        return "categorical"
    few = env.draws_once and env.disturbance.size <= _FEW_PARAMETERS
    return "direction-search" if few and settings.gradient == "score" else "gaussian-mixture"


def attack(
    nature: Nature,
    player: Player,
    signal: Signal,
    key: PRNGKeyArray,
    settings: AdversarySettings,
    critic_learning_rate: float,
    rate_factor: float | Float[Array, ""] = 1.0,
) -> Nature:
    """Return the adversary after one update (22) against the player, on a batch of its own.

    The gradient of (22) is that of `_score` or, with `gradient="pathwise"`, of `_pathwise`. Adam takes
    the step on ξ, and the kernel itself projects (`gaussian_mixture._scale_within`, for instance).
    A `DirectionSearch` has no gradient: it remembers what its directions led to.

    Arguments:
        nature: the adversary.
        player: the policy in its simulator.
        signal: the signal whose value the adversary lowers.
        key: random key of the batch.
        settings: settings of the adversary.
        critic_learning_rate: Adam learning rate of its critic.
        rate_factor: factor on the learning rate of its kernel.
    """
    learned, searches = (hasattr(nature.kernel, name) for name in ("network", "trying"))
    pathwise = learned and settings.gradient == "pathwise"
    drawing: Any = nature.kernel
    batch = rollout(
        player,
        drawing.trying() if searches else drawing,
        key,
        settings.episodes(player.env.horizon),
        critic=nature.critic,
        signal=signal,
        keep_states=pathwise,
    )
    found = estimate(batch, nature.critic, player.sight, signal, of_nature=True)
    # Steps that ignore their disturbance are masked out of the adversary's loss.
    weights = found.weights * batch.heard
    inputs = critic_inputs(batch, player.sight)[:-1]
    critic_passes = Passes(critic_learning_rate, settings.epochs, settings.minibatches)
    after = fit_critic(nature, inputs, found.targets, batch.alive, critic_passes)
    if searches:
        last_values = nature.critic(critic_inputs(batch, player.sight)[-1])
        returns = episode_returns(batch, signal, last_values)
        kernel = drawing.forgetting(rate_factor).observed(batch.disturbances[0], returns)
        return eqx.tree_at(lambda n: n.kernel, after, kernel)
    if not learned:
        return after
    if pathwise:
        loss, data = _pathwise(nature, player, signal, batch, weights, key)
    else:
        loss, data = _score(nature, batch, player.sight, found.advantages, weights, settings.clip)
    kernel = drawing
    network, optimiser = descend(
        (kernel.network, nature.kernel_optimiser),
        lambda network, part: loss(eqx.tree_at(lambda k: k.network, kernel, network), part),
        by_episodes(data, settings.minibatches),
        critic_passes._replace(rate=rate_factor * settings.learning_rate),
    )
    kernel = eqx.tree_at(lambda k: k.network, kernel, network)
    return Nature(kernel, after.critic, optimiser, after.critic_optimiser)


def _nature_inputs(batch: Batch, sight: Sight) -> Float[Array, "time episodes nature"]:
    horizon = len(batch.alive)
    return jax.vmap(sight.of_nature)(batch.nature_features, jnp.arange(horizon) / horizon)


def _mean(weights: Array, values: Array, least: float = _TINY) -> Array:
    return (weights * values).sum() / jnp.maximum(weights.sum(), least)


def _score(
    nature: Nature, batch: Batch, sight: Sight, advantages: Array, weights: Array, clip: float
) -> tuple[Callable, tuple]:
    """Return the loss whose gradient is E[∇log q(w|s,a)·A], clipped as in PPO, and its data."""
    kernel: Any = nature.kernel
    inputs = _nature_inputs(batch, sight)
    mean = _mean(weights, advantages)
    deviation = jnp.sqrt(_mean(weights, (advantages - mean) ** 2))
    # Only the direction counts here, so that advantages may be rescaled by their spread.
    units = jnp.where(weights > 0, (advantages - mean) / (deviation + _TINY), 0.0)
    old, _ = kernel.score(inputs, batch.log_nominal, batch.disturbances)

    def loss(changed: Any, part: tuple) -> Array:
        x, log_nominal, drawn, before, units, weight = part
        log_density, excess = changed.score(x, log_nominal, drawn)
        ratio = jnp.exp(log_density - before)
        near = jnp.clip(ratio, 1 - clip, 1 + clip)
        each = jnp.maximum(ratio * units, near * units) + excess**2
        return _mean(weight, each)

    return loss, (inputs, batch.log_nominal, batch.disturbances, old, units, weights)


def _pathwise(
    nature: Nature,
    player: Player,
    signal: Signal,
    batch: Batch,
    weights: Array,
    key: PRNGKeyArray,
) -> tuple[Callable, tuple]:
    """Return the loss E[signal + γV(s')], differentiable through dynamics and critic, and its data."""
    env, sight, critic = player.env, player.sight, nature.critic
    # Values in units of their spread, like the advantages of the score function.
    unit = critic.returns.spread[0]
    horizon = len(batch.alive)
    times = jnp.broadcast_to((jnp.arange(horizon)[:, None] + 1) / horizon, batch.alive.shape)
    keys = jax.random.split(jax.random.fold_in(key, 1), batch.alive.shape)

    def lookahead(state: Any, action: Array, time: Array, disturbance: Array) -> Array:
        there = env.step(state, action, disturbance)
        inputs = sight.of_critic(env.features(there.state), time)
        return worth(there, inputs, time, critic, sight, signal)

    def loss(changed: Any, part: tuple) -> Array:
        states, actions, x, log_nominal, time, weight, key = part

        def expected(state: Any, action: Array, x: Array, logs: Array, t: Array, k: Array) -> Array:
            return changed.expectation(k, x, logs, lambda w: lookahead(state, action, t, w))

        each = jax.vmap(expected)(states, actions, x, log_nominal, time, key)
        return _mean(weight, each / unit + changed.excess(x, log_nominal) ** 2)

    actions = player.policy.to_environment(batch.actions)
    inputs = _nature_inputs(batch, sight)
    return loss, (batch.states, actions, inputs, batch.log_nominal, times, weights, keys)


def fit_critic(
    nature: Nature,
    inputs: Float[Array, "time episodes inputs"],
    targets: Float[Array, "time episodes"],
    alive: Bool[Array, "time episodes"],
    passes: Passes,
) -> Nature:
    """Return the adversary with its critic fitted to λ-returns by least squares.

    The loss is in units of the returns' running mean and spread.
    """
    critic, counted = nature.critic, alive.astype(jnp.float32)
    returns = critic.returns.updated(targets[..., None], counted)
    # Returns grow as the policy learns, so that the running moments forget all but ten batches.
    returns = eqx.tree_at(
        lambda r: r.count, returns, jnp.minimum(returns.count, 10.0 * alive.sum())
    )
    mean, std = returns.mean[0], jnp.sqrt(returns.square[0]) + _TINY

    def loss(network: MLP, part: tuple[Array, Array, Array]) -> Array:
        x, goal, weight = part
        return _mean(weight, (network(x)[..., 0] - goal) ** 2, least=1.0)

    rows = jax.tree.map(in_rows, (inputs, (targets - mean) / std, counted))
    parts = by_steps(rows, passes.minibatches)
    network, optimiser = descend((critic.network, nature.critic_optimiser), loss, parts, passes)
    return Nature(nature.kernel, Critic(network, returns), nature.kernel_optimiser, optimiser)
