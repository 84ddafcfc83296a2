"""The categorical kernel of tables: the nominal row tilted by a network, inside its radius."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from holdfast._support.roots import increasing_root
from holdfast.simulators.environment import Environment, Outcomes
from holdfast.simulators.nature.gaussian_mixture import (
    Inputs,
    LogNominal,
    Radius,
    Rows,
    Score,
    Worth,
    beyond_ball,
    exp_minus_tangent,
)
from holdfast.simulators.policy.networks import MLP, layers
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

# Relative tolerance of a tilt's KL divergence to the radius. Single precision leaves about 1e-6.
_CLOSE = 1e-5


class CategoricalKernel(eqx.Module):
    """q ∝ p·exp(t·logit), with the largest t up to one at which KL(q‖p) does not exceed the radius."""

    network: MLP
    radius: Float[Array, ""]

    @classmethod
    def create(
        cls, key: PRNGKeyArray, env: Environment, radius: Radius, settings: AdversarySettings
    ) -> Self:
        """Return a kernel close to the nominal one.

        Raises:
            ValueError: the environment's disturbance is not the index of an outcome.
        """
        if not isinstance(env.disturbance, Outcomes):
            raise ValueError(
                f"kernel: a categorical one needs outcomes, and {env.name} has Gaussian noise; "
                "use 'gaussian-mixture' or 'tilted'"
            )
        hidden = layers(env, settings.hidden)
        sizes = (env.nature_feature_size + 1, *hidden, env.disturbance.count)
        return cls(MLP.create(key, sizes, last_scale=0.01), radius)

    def log_probabilities(self, inputs: Inputs, log_nominal: LogNominal) -> LogNominal:
        """Return the log-probabilities of the outcomes; t is a constant for gradients."""
        return self._tilted(inputs, log_nominal)[0]

    def _tilted(self, inputs: Inputs, log_nominal: LogNominal) -> tuple[LogNominal, Rows]:
        """Return the log-probabilities of the outcomes, and t."""
        logits = self.network(inputs)
        t = tilt_within(self.radius, log_nominal, logits)
        tilt = lax.stop_gradient(t)[..., None] * logits
        return jax.nn.log_softmax(log_nominal + tilt), t

    def excess(self, inputs: Inputs, log_nominal: LogNominal) -> Rows:
        """Return how far the network's output lies beyond three times the ball."""
        return beyond_ball(self._tilted(inputs, log_nominal)[1])

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Int[Array, " rows"]:
        """Return one outcome per row."""
        logs = self.log_probabilities(situation.inputs, situation.log_nominal)
        return jax.random.categorical(key, logs)

    def score(self, inputs: Inputs, log_nominal: LogNominal, disturbance: Array) -> Score:
        """Return the log-probability of the given outcomes, and `excess`."""
        logs, t = self._tilted(inputs, log_nominal)
        chosen = jnp.take_along_axis(logs, disturbance[..., None], axis=-1)[..., 0]
        return chosen, beyond_ball(t)

    def expectation(
        self, key: PRNGKeyArray, inputs: Inputs, log_nominal: LogNominal, worth: Worth
    ) -> Float[Array, ""]:
        """Return E[worth(w)] for one row, summed over all outcomes."""
        del key
        q = jnp.exp(self.log_probabilities(inputs, log_nominal))
        return q @ jax.vmap(worth)(jnp.arange(len(q)))


def _kl(logs: Array, log_nominal: Array) -> Array:
    """Return the KL divergence of rows of log-probabilities; impossible outcomes contribute zero."""
    possible = ~jnp.isneginf(log_nominal)
    gap = jnp.where(possible, logs - jnp.where(possible, log_nominal, 0.0), 0.0)
    return (jnp.where(possible, jnp.exp(logs), 0.0) * gap).sum(-1)


def _tilted_kl(t: Array, log_nominal: Array, logits: Array) -> tuple[Array, Array]:
    """Return KL(q‖p) of q ∝ p·exp(t·logit), and its derivative t·Var_q(logit)."""
    logs = jax.nn.log_softmax(log_nominal + t[..., None] * logits)
    q = jnp.exp(logs)
    mean = (q * logits).sum(-1, keepdims=True)
    variance = (q * (logits - mean) ** 2).sum(-1)
    # The KL divergence of a small tilt is of second order. With r = q/p the sum of the non-negative
    # terms p·(r·log r − r + 1) has no cancellation.
    p = jax.nn.softmax(log_nominal)
    x = t[..., None] * jnp.where(p > 0, logits - (p * logits).sum(-1, keepdims=True), 0.0)
    small = jnp.abs(x).max(-1) < 0.5
    x = jnp.where(small[..., None], x, 0.0)
    log_ratio = x - jnp.log1p((p * exp_minus_tangent(x)).sum(-1, keepdims=True))
    near = (p * (log_ratio * jnp.expm1(log_ratio) - exp_minus_tangent(log_ratio))).sum(-1)
    return jnp.where(small, near, _kl(logs, log_nominal)), t * variance


def tilt_within(
    radius: Float[Array, ""], log_nominal: LogNominal, logits: LogNominal, most: float = 1.0
) -> Rows:
    """Return the largest t up to `most` at which the tilted rows lie within the radius.

    The result is differentiable in the logits, by one Newton step with the root held fixed.
    """
    radius = lax.stop_gradient(radius)
    frozen = (log_nominal, lax.stop_gradient(logits))
    limit = jnp.full(logits.shape[:-1], most)
    outside = _tilted_kl(limit, *frozen)[0] > radius
    # A guess of zero marks rows that need no root.
    guess = jnp.where(outside & (radius > 0), limit, 0.0)
    # Any value within the tolerance of this target lies inside the radius.
    target = jnp.full(guess.shape, (1 - 2 * _CLOSE) * radius)

    def kl_and_slope(t: Array) -> tuple[Array, Array, Array]:
        value, slope = _tilted_kl(t, *frozen)
        return value, slope, value

    # 40 steps leave room for bisection to single precision; Newton steps usually end much earlier.
    root = increasing_root(
        kl_and_slope,
        target,
        guess,
        quadratic=True,
        tolerance=0.0,
        absolute=_CLOSE * radius,
        max_steps=40,
    )
    # If single precision cannot separate the two sides of the radius, stay on the inner side.
    excess = root.aux > target
    inside = root.x * jnp.where(excess, jnp.sqrt(target / jnp.where(excess, root.aux, 1.0)), 1.0)
    t = jnp.where(outside, inside, limit)
    value, slope = _tilted_kl(t, log_nominal, logits)
    # 1e-12 is far below the slope at any radius that single precision resolves; it avoids 0/0.
    slope = jnp.where(outside, jnp.maximum(lax.stop_gradient(slope), 1e-12), 1.0)
    correction = (value - lax.stop_gradient(value)) / slope
    return lax.stop_gradient(t) - jnp.where(outside, correction, 0.0)
