"""The direction search: an adversary of quantities that are drawn once per episode."""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.gaussian_mixture import Radius
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

# Share of the past that each batch of trials replaces. With 0.3 a mean value covers the episodes of
# about three batches: enough to tell directions apart, and short beside the time in which a policy in a
# trust region changes its worst direction.
_FORGOTTEN = 0.3
# Least temperature of the weights, in units of the range of the mean values: a direction in the middle
# of the range has weight e^{-5} of the worst one. If the standard error of the means is larger, it is
# the temperature, so that directions which noise cannot tell apart are used alike. Where a signal is
# linear in two parameters and known exactly, the mean of the draws is I₁(5)/I₀(5) = 0.89 of the worst
# shift (a ratio of Bessel functions).
_TEMPERATURE = 0.1
# Smallest factor on share and temperature, at the end of an attack on a policy that no longer learns.
_LEAST_FACTOR = 0.01
# Episodes, as a sum of shares, from which on a direction counts as tried. In single precision the square
# of a smaller number loses its digits, and its mean value would be that of other directions.
_TRIED = 1e-6


class DirectionSearch(eqx.Module):
    """w ~ Σ_j φ_j·N(√(2R)·u_j, I) over fixed directions u_j, with weights φ from observed values.

    A quantity that is drawn once has one disturbance for each episode, so that a batch has few of them
    and a gradient is mostly noise. This adversary tries all directions in each of its batches instead,
    keeps the mean value that each led to, and draws from the worst. KL(N(μ, I)‖N(0, I)) = ‖μ‖²/2, and
    the divergence of a mixture is at most the mean of those of its parts: the kernel is in the ball.

    The direction does not depend on the state or the action before the draw.

    Attributes:
        directions: unit vectors u_j.
        values: mean value of the signal with each direction, over the last batches; zero if untried.
        counts: number of episodes in each mean, as a sum of shares in [0, 1].
        squares: sum of the squares of these shares.
        variance: mean square of an episode's value less the mean of its directions.
        radius: R.
        temperature: temperature of φ; infinity makes φ uniform.
        rate_factor: factor on the temperature.
    """

    directions: Float[Array, "n size"]
    values: Float[Array, " n"]
    counts: Float[Array, " n"]
    squares: Float[Array, " n"]
    variance: Float[Array, ""]
    radius: Float[Array, ""]
    temperature: Float[Array, ""]
    rate_factor: Float[Array, ""]

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
        return cls(
            directions, zeros, zeros, zeros, jnp.zeros(()), radius, jnp.ones(()), jnp.ones(())
        )

    @property
    def shifts(self) -> Float[Array, "n size"]:
        """The means √(2R)·u_j."""
        return jnp.sqrt(2 * self.radius) * self.directions

    @property
    def tried(self) -> Bool[Array, " n"]:
        """The directions that at least one episode has tried."""
        return self.counts > _TRIED

    @property
    def log_weights(self) -> Float[Array, " n"]:
        """Log φ. Directions that no episode has tried count as the worst."""
        worst = jnp.min(self.values, where=self.tried, initial=jnp.inf)
        above = jnp.where(self.tried, self.values - worst, 0.0)
        return jax.nn.log_softmax(-above / jnp.where(self.temperature > 0, self.temperature, 1.0))

    def log_density(self, draws: Float[Array, "rows size"]) -> Float[Array, " rows"]:
        """Return the log-density of draws relative to N(0, I), up to the constant −R."""
        return jax.nn.logsumexp(self.log_weights + draws @ self.shifts.T, axis=-1)

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

    def forgetting(self, rate_factor: float | Float[Array, ""]) -> Self:
        """Return the kernel whose past counts less, for a policy that has changed since.

        Arguments:
            rate_factor: factor on the forgotten share and on the temperature of the next observation,
                between 0 and 1. A factor that falls to zero averages over all batches and selects the
                worst direction.
        """
        factor = jnp.maximum(rate_factor, _LEAST_FACTOR)
        kept = 1 - factor * _FORGOTTEN
        counts, squares = kept * self.counts, kept * self.squares
        return dataclasses.replace(self, counts=counts, squares=squares, rate_factor=factor)

    def observed(
        self, disturbances: Float[Array, "episodes size"], values: Float[Array, " episodes"]
    ) -> Self:
        """Return the kernel with mean values that include these episodes.

        A draw may come from several directions, and its value is shared among them by their probability
        as if all directions were drawn alike. For draws of `trying` the means are those of the
        directions. Draws of other kernels are added without a correction: most of them come from one
        side, so that neighbours of the directions drawn most count almost like these. The kernel then
        stays longer with what was worst.

        Arguments:
            disturbances: the disturbance of each episode.
            values: value of the signal in each episode.
        """
        # Probability of each direction given w, if all were drawn alike: they have the same length, so
        # that it is ∝ exp(w·μ_j).
        shares = jax.nn.softmax(disturbances @ self.shifts.T)
        counts, squares = self.counts + shares.sum(0), self.squares + (shares**2).sum(0)
        total = self.counts * self.values + shares.T @ values
        # A share may underflow for a direction opposite to all draws; 0/0 is avoided.
        tried = counts > _TRIED
        means = jnp.where(tried, total / jnp.where(tried, counts, 1.0), 0.0)
        new, old = len(values), self.counts.sum()
        missed = (values - shares @ means) ** 2
        variance = (old * self.variance + missed.sum()) / (old + new)
        # Squared standard errors of the means, where there is one.
        errors = jnp.where(tried, variance * squares / jnp.where(tried, counts, 1.0) ** 2, 0.0)
        noise = jnp.sqrt(errors.sum() / jnp.maximum(tried.sum(), 1))
        spread = jnp.max(means, where=tried, initial=-jnp.inf) - jnp.min(
            means, where=tried, initial=jnp.inf
        )
        return dataclasses.replace(
            self,
            values=means,
            counts=counts,
            squares=squares,
            variance=variance,
            temperature=self.rate_factor * jnp.maximum(_TEMPERATURE * spread, noise),
        )


def _spread_out(key: PRNGKeyArray, count: int, size: int) -> Float[Array, "n size"]:
    """Return unit vectors: both signs, equal angles, or all axes and random ones beside them."""
    if size == 1:
        return jnp.array([[1.0], [-1.0]])
    if size == 2:
        count = 4 * max(1, math.ceil(count / 4))  # both axes, both ways
        angles = 2 * math.pi * jnp.arange(count) / count
        return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    axes = jnp.concatenate([jnp.eye(size), -jnp.eye(size)])
    others = jax.random.normal(key, (max(0, count - 2 * size), size))
    return jnp.concatenate([axes, others / jnp.linalg.norm(others, axis=1, keepdims=True)])
