"""The tilted kernel of the paper's equation (11), sampled."""

from __future__ import annotations

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment
from holdfast.simulators.nature.categorical import tilt_within
from holdfast.simulators.nature.gaussian_mixture import Radius
from holdfast.simulators.training.rollout import Nominal, Situation
from holdfast.simulators.training.settings import AdversarySettings

# Largest β, in units of one over the range of the lookahead. At 1e4 a candidate that is a thousandth of
# the range better than the worst has weight e^{-10}: larger values change no draw.
_LARGEST_TILT = 1e4


class TiltedKernel(eqx.Module):
    """Equation (11), sampled: w is one of n nominal candidates, with weights ∝ exp(−β·lookahead).

    The lookahead signal + γV(s') of the critic replaces −ηᵀφ(s') of (11), and β replaces 1/λ(s, a).
    β makes KL(weights‖uniform) equal to the radius; by convexity that bounds the KL divergence of the
    distribution of w. The kernel has no parameters of its own; only the critic of the lookahead learns.
    """

    radius: Float[Array, ""]
    size: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)

    @classmethod
    def create(
        cls, key: PRNGKeyArray, env: Environment, radius: Radius, settings: AdversarySettings
    ) -> Self:
        """Return the kernel.

        Raises:
            ValueError: the environment cannot be stepped twice from one state.
        """
        if not env.is_replayable:
            raise ValueError(
                f"kernel: a tilted one looks ahead, and {env.name} cannot be stepped twice from one "
                "state; use 'gaussian-mixture'"
            )
        del key
        return cls(radius, Nominal.create(env).size, settings.candidates)

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """Return one of the candidates per row."""
        propose, choose = jax.random.split(key)
        drawn = Nominal(self.size).draw(propose, situation, (self.candidates,))
        logs = self.log_weights(situation.lookahead(drawn).T)
        index = jax.random.categorical(choose, logs)
        return jax.vmap(lambda rows, i: rows[i], in_axes=(1, 0))(drawn, index)

    def log_weights(self, lookahead: Float[Array, "rows n"]) -> Float[Array, "rows n"]:
        """Return the logarithms of the candidates' weights, which are ∝ exp(−β·lookahead)."""
        centred = lookahead - lookahead.min(-1, keepdims=True)
        spread = centred.max(-1, keepdims=True)
        logits = -centred / jnp.where(spread > 0, spread, 1.0)
        uniform = jnp.full(logits.shape, -math.log(logits.shape[-1]))
        t = tilt_within(self.radius, uniform, logits, most=_LARGEST_TILT)
        return jax.nn.log_softmax(t[..., None] * logits)
