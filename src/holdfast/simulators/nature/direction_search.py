"""The direction search: an adversary of quantities that are drawn once per episode."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.gaussian_mixture import Radius
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

# Share of the past that an update of the policy makes obsolete. With 0.3 a mean value covers the
# episodes of about three batches: enough to tell directions apart, and short beside the time in which a
# policy in a trust region changes its worst direction.
_FORGOTTEN = 0.3
# Temperature of the weights, in units of the range of the mean values. At 0.1 a direction in the middle
# of the range has weight e^{-5} of the worst one, and two that noise cannot tell apart are used alike.
_TEMPERATURE = 0.1
# Smallest factor on the two numbers above, at the end of an attack on a policy that no longer learns.
_LEAST_FACTOR = 0.01


class DirectionSearch(eqx.Module):
    """w ~ Σ_j φ_j·N(√(2R)·u_j, I) over fixed directions u_j, with weights φ from observed values.

    A quantity that is drawn once has one disturbance for each episode, so that a batch has few of them
    and a gradient is mostly noise. This adversary tries all directions in each of its batches instead,
    keeps the mean value that each led to, and draws from the worst. KL(N(μ, I)‖N(0, I)) = ‖μ‖²/2, and
    the divergence of a mixture is at most the mean of those of its parts: the kernel is in the ball.

    The direction does not depend on the state or the action before the draw.

    Attributes:
        directions: unit vectors u_j.
        values: mean value of the signal with each direction, over the last batches.
        counts: number of episodes in each mean.
        radius: R.
        temperature: temperature of φ in units of the range of `values`; infinity makes φ uniform.
    """

    directions: Float[Array, "n size"]
    values: Float[Array, " n"]
    counts: Float[Array, " n"]
    radius: Float[Array, ""]
    temperature: Float[Array, ""]

    @classmethod
    def create(
        cls, key: PRNGKeyArray, env: Environment, radius: Radius, settings: AdversarySettings
    ) -> Self:
        """Return a kernel that draws all directions alike.

        Raises:
            ValueError: the environment's disturbance is not Gaussian, or not drawn once per episode.
        """
        noise = env.disturbance
        if not isinstance(noise, GaussianNoise) or not env.draws_once:
            raise ValueError(
                "kernel: a direction search needs Gaussian parameters that are drawn once per "
                f"episode, and {env.name} has none; use 'mean-shift' or 'auto'"
            )
        directions = _spread_out(key, settings.candidates, noise.size)
        zeros = jnp.zeros(len(directions))
        return cls(directions, zeros, zeros, radius, jnp.asarray(_TEMPERATURE))

    @property
    def shifts(self) -> Float[Array, "n size"]:
        """The means √(2R)·u_j."""
        return jnp.sqrt(2 * self.radius) * self.directions

    @property
    def log_weights(self) -> Float[Array, " n"]:
        """Log φ. Directions that no episode has tried count as the worst."""
        worst = self.values.min()
        spread = self.values.max() - worst
        above = jnp.where(self.counts > 0, self.values - worst, 0.0)
        return jax.nn.log_softmax(-above / jnp.where(spread > 0, self.temperature * spread, 1.0))

    def trying(self) -> Self:
        """Return the kernel that draws all directions alike."""
        return dataclasses.replace(self, temperature=jnp.asarray(jnp.inf))

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Float[Array, "rows size"]:
        """Return one disturbance per row. Rows are stratified: each direction has its share of them."""
        rows = len(situation.inputs)
        phase, order, noise = jax.random.split(key, 3)
        # Quantiles (i + u)/rows of the distribution φ, in random order: rows may differ in their
        # actions.
        quantiles = (jax.random.permutation(order, rows) + jax.random.uniform(phase)) / rows
        upper = jnp.cumsum(jnp.exp(self.log_weights))
        chosen = jnp.minimum(jnp.searchsorted(upper, quantiles), len(upper) - 1)
        return self.shifts[chosen] + jax.random.normal(noise, (rows, self.directions.shape[1]))

    def observed(
        self,
        disturbances: Float[Array, "episodes size"],
        values: Float[Array, " episodes"],
        rate_factor: float | Float[Array, ""],
    ) -> Self:
        """Return the kernel with mean values that include the episodes of one more batch of `trying`.

        Arguments:
            disturbances: the disturbance of each episode.
            values: value of the signal in each episode.
            rate_factor: factor on the forgotten share and on the temperature, between 0 and 1. A factor
                that falls to zero averages over all batches and selects the worst direction.
        """
        factor = jnp.maximum(rate_factor, _LEAST_FACTOR)
        # Probability of each direction given w: all have the same length, so that it is ∝ exp(w·μ_j).
        shares = jax.nn.softmax(disturbances @ self.shifts.T)
        kept = (1 - factor * _FORGOTTEN) * self.counts
        counts = kept + shares.sum(0)
        total = kept * self.values + shares.T @ values
        # A share may underflow to zero for a direction opposite to all draws; 0/0 is avoided.
        means = jnp.where(counts > 0, total / jnp.where(counts > 0, counts, 1.0), 0.0)
        temperature = _TEMPERATURE * factor
        return dataclasses.replace(self, values=means, counts=counts, temperature=temperature)


def _spread_out(key: PRNGKeyArray, count: int, size: int) -> Float[Array, "n size"]:
    """Return unit vectors: both signs, equal angles, or all axes and random ones beside them."""
    if size == 1:
        return jnp.array([[1.0], [-1.0]])
    if size == 2:
        angles = 2 * math.pi * jnp.arange(count) / count
        return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    axes = jnp.concatenate([jnp.eye(size), -jnp.eye(size)])
    others = jax.random.normal(key, (max(0, count - 2 * size), size))
    return jnp.concatenate([axes, others / jnp.linalg.norm(others, axis=1, keepdims=True)])
