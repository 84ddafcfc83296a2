"""The clipped surrogate of PPO, and its ascent by minibatches (Schulman et al., 2017)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float

from holdfast._support.arguments import check_number, check_whole_number
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.steps.descent import Passes, by_steps, descend
from holdfast.simulators.steps.trust_region import Evidence, divergence
from holdfast.simulators.training.learner import Metrics


@dataclasses.dataclass(frozen=True)
class ClippedSettings:
    """Settings of the clipped ascent.

    Arguments:
        clip: largest relative change of an action's density that the surrogate rewards.
        learning_rate: Adam learning rate of the policy.
        epochs: largest number of passes over the batch.
        minibatches: parts of a pass.
        target_kl: KL divergence after which no further pass begins.
    """

    clip: float = 0.2
    learning_rate: float = 3e-4
    epochs: int = 10
    minibatches: int = 64
    target_kl: float = 0.02

    def __post_init__(self) -> None:
        check_number("clip", self.clip, above=True)
        check_number("learning_rate", self.learning_rate, above=True)
        check_whole_number("epochs", self.epochs, least=1)
        check_whole_number("minibatches", self.minibatches, least=1)
        check_number("target_kl", self.target_kl, above=True)


def clipped_surrogate(policy: Policy, evidence: Evidence, clip: float) -> Float[Array, ""]:
    """Return Σ weights·min(ratio·A, clip(ratio, 1 − ε, 1 + ε)·A), with ε the clip range.

    It never exceeds `trust_region.surrogate`, and it has the same gradient where the ratio is one.
    """
    log_density = policy.distribution(evidence.inputs).log_density(evidence.actions)
    ratio = jnp.exp(log_density - evidence.log_density)
    near = jnp.clip(ratio, 1 - clip, 1 + clip)
    gain = jnp.minimum(ratio * evidence.advantages, near * evidence.advantages)
    return (evidence.weights * gain).sum()


def clipped_ascent(
    start: tuple[Policy, optax.OptState],
    evidence: tuple[Evidence, ...],
    shares: Float[Array, " signals"],
    settings: ClippedSettings,
) -> tuple[Policy, optax.OptState, Metrics]:
    """Return the policy after Adam steps up Σ shares_i·(clipped surrogate of signal i).

    Every signal has its own batch and its own clipping.

    Arguments:
        start: the policy that drew the batches, and the state of its optimiser.
        evidence: the batches of the reward and of every cost.
        shares: weights of the signals.
        settings: clip range, learning rate, passes and target.

    Returns:
        The new policy, its optimiser, and the metrics of the update.
    """
    policy, _ = start
    reward = evidence[0]
    old = policy.distribution(reward.inputs)
    parts = by_steps(evidence, settings.minibatches)

    def loss(policy: Policy, part: tuple[Evidence, ...]) -> Array:
        gains = [clipped_surrogate(policy, each, settings.clip) for each in part]
        # A minibatch has 1/minibatches of the sum.
        return -settings.minibatches * (shares * jnp.stack(gains)).sum()

    def another_pass(carry: tuple) -> tuple:
        k, after, _ = carry
        after = descend(after, loss, parts, Passes(settings.learning_rate, 1, settings.minibatches))
        return k + 1, after, divergence(after[0], old, reward.inputs, reward.weights)

    def goes_on(carry: tuple) -> Array:
        k, _, kl = carry
        return (k < settings.epochs) & (kl <= settings.target_kl)

    k, after, kl = lax.while_loop(goes_on, another_pass, (jnp.array(0), start, jnp.array(0.0)))
    return *after, {"kl": kl, "passes": k}


def first_optimiser(policy: Policy, settings: ClippedSettings) -> optax.OptState:
    """Return the initial state of the policy's optimiser."""
    return optax.adam(settings.learning_rate).init(jax.tree.map(jnp.asarray, policy))
