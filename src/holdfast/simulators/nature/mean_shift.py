"""The mean-shift kernel: an adversary that always spends its whole KL divergence on the mean."""

from __future__ import annotations

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.nature.gaussian_mixture import (
    Inputs,
    LogNominal,
    Radius,
    Rows,
    Score,
    Worth,
    beyond_ball,
)
from holdfast.simulators.policy.networks import MLP, layers
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

# Below this length an output has no direction in single precision; the shift is then shorter than √(2R).
_SHORTEST = 1e-6


class MeanShift(eqx.Module):
    """w ~ N(√(2R)·u/‖u‖, I), where u is the output of a network.

    KL(N(μ, I)‖N(0, I)) = ‖μ‖²/2, so the kernel lies on the boundary of its ball at every state and
    action: only the direction is learned. If the lookahead is linear in w, this is the worst case.

    The length of u does not matter. As in `GaussianMixture`, the scale is a constant for gradients, so
    that u can pass through zero and reverse its direction, which a gradient along the sphere cannot do
    if the noise has one dimension.
    """

    network: MLP
    radius: Float[Array, ""]

    @classmethod
    def create(
        cls, key: PRNGKeyArray, env: Environment, radius: Radius, settings: AdversarySettings
    ) -> Self:
        """Return a kernel with small outputs, whose directions turn quickly.

        Raises:
            ValueError: the environment's disturbance is not Gaussian.
        """
        if not isinstance(env.disturbance, GaussianNoise):
            raise ValueError(
                f"kernel: a mean shift needs Gaussian noise, and {env.name} has outcomes; "
                "use 'categorical' or 'tilted'"
            )
        hidden = layers(env, settings.hidden)
        sizes = (env.nature_feature_size + 1, *hidden, env.disturbance.size)
        return cls(MLP.create(key, sizes, last_scale=0.1), radius)

    def _raw(self, inputs: Inputs) -> tuple[Float[Array, "*rows size"], Rows]:
        """Return the network's output, and the scale that gives it the length √(2R)."""
        outputs = self.network(inputs)
        length = jnp.sqrt((outputs**2).sum(-1) + _SHORTEST**2)
        return outputs, jnp.sqrt(2 * self.radius) / length

    def shift(self, inputs: Inputs) -> Float[Array, "*rows size"]:
        """Return the mean of the disturbance; the scale is a constant for gradients."""
        outputs, scale = self._raw(inputs)
        return lax.stop_gradient(scale)[..., None] * outputs

    def excess(self, inputs: Inputs, log_nominal: LogNominal) -> Rows:
        """Return how far the network's output lies beyond three times the ball."""
        del log_nominal
        return beyond_ball(self._raw(inputs)[1])

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Float[Array, "rows size"]:
        """Return one disturbance per row."""
        shift = self.shift(situation.inputs)
        return shift + jax.random.normal(key, shift.shape)

    def score(self, inputs: Inputs, log_nominal: LogNominal, disturbance: Array) -> Score:
        """Return the log-density of the given disturbances, and `excess`."""
        z = disturbance - self.shift(inputs)
        log_density = (-0.5 * z**2 - 0.5 * math.log(2 * math.pi)).sum(-1)
        return log_density, self.excess(inputs, log_nominal)

    def expectation(
        self, key: PRNGKeyArray, inputs: Inputs, log_nominal: LogNominal, worth: Worth
    ) -> Float[Array, ""]:
        """Return an estimate of E[worth(w)] for one row, from one draw."""
        del log_nominal
        shift = self.shift(inputs)
        return worth(shift + jax.random.normal(key, shift.shape))
