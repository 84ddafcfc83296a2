"""The Gaussian-mixture kernel of the paper's equation (12), inside its radius by construction.

The learned kernels are networks of the state, the action and the clock. Outputs outside the KL ball are
scaled onto it. The scale is a constant for gradients, as in projected gradient descent: the gradient
through the scale is zero along the ray, so with two outcomes or one-dimensional noise the adversary
could not reverse its direction. Training penalises outputs beyond three times the ball (`excess`);
smaller outputs are not penalised, because a long output changes its direction less in one noisy step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.policy.networks import MLP, layers
from holdfast.simulators.training.rollout import Situation
from holdfast.simulators.training.settings import AdversarySettings

# Newton's method on the bound decreases to the root. Six steps reach single precision unless log σ is
# near its bound; `_scale_within` then moves the remainder inside the ball.
_NEWTON_STEPS = 6
# Multiple of the ball up to which `beyond_ball` is zero; see the docstring of this module.
_FREE = 3.0
# Largest multiple of the ball that `beyond_ball` distinguishes. A radius of zero must not let the
# penalty dominate the loss.
_FARTHEST = 11.0
# |log σ| < 3: without a bound, e^{2 log σ} overflows before it is scaled down.
_MOST_LOG_STD = 3.0
# ½(e^{2x} − 1 − 2x) ≥ 0.27·x² for |x| ≤ 3, the bound on log σ.
_LEAST_BEND = 0.27

Radius = Float[Array, ""]
Inputs = Float[Array, "*rows nature"]
LogNominal = Float[Array, "*rows outcomes"]
Rows = Float[Array, "*rows"]
Score = tuple[Rows, Rows]
Worth = Callable[[Array], Float[Array, ""]]
Mixture = tuple[Float[Array, "*rows n"], Float[Array, "*rows n size"], Float[Array, "*rows n size"]]


class GaussianMixture(eqx.Module):
    """Equation (12): w ~ Σφ_i N(μ_i, diag σ_i²), where φ, μ and log σ are outputs of a network.

    The paper's mixture is a distribution of the next state. Here it is one of the disturbance w in
    s' = f(s, a, w), and φ too depends on the action and the clock.

    By convexity Σφ_i KL(N(μ_i, σ_i²)‖N(0, I)) bounds the KL divergence of the mixture. If the bound
    exceeds the radius, (μ, log σ) are scaled towards nominal until it equals the radius.
    """

    network: MLP
    radius: Float[Array, ""]
    components: int = eqx.field(static=True)

    @classmethod
    def create(
        cls, key: PRNGKeyArray, env: Environment, radius: Radius, settings: AdversarySettings
    ) -> Self:
        """Return a kernel close to the nominal one.

        Raises:
            ValueError: the environment's disturbance is not Gaussian.
        """
        if not isinstance(env.disturbance, GaussianNoise):
            raise ValueError(
                f"kernel: a Gaussian mixture needs Gaussian noise, and {env.name} has outcomes; "
                "use 'categorical' or 'tilted'"
            )
        outputs = settings.components * (1 + 2 * env.disturbance.size)
        sizes = (env.nature_feature_size + 1, *layers(env, settings.hidden), outputs)
        # 0.1: close to nominal, and far enough to have a direction from the first update on.
        return cls(MLP.create(key, sizes, last_scale=0.1), radius, settings.components)

    def _raw(self, inputs: Inputs) -> tuple[Mixture, Rows]:
        """Return log φ, μ and log σ as the network has them, and the scale that puts them inside."""
        outputs = self.network(inputs)
        logits, rest = outputs[..., : self.components], outputs[..., self.components :]
        rest = rest.reshape(*rest.shape[:-1], self.components, 2, -1)
        shift = rest[..., 0, :]
        log_std = _MOST_LOG_STD * jnp.tanh(rest[..., 1, :] / _MOST_LOG_STD)
        log_weights = jax.nn.log_softmax(logits)
        scale = _scale_within(self.radius, jnp.exp(log_weights), shift, log_std)
        return (log_weights, shift, log_std), scale

    def mixture(self, inputs: Inputs) -> Mixture:
        """Return log φ, μ and log σ within the radius; the scale is a constant for gradients."""
        return _scaled(*self._raw(inputs))

    def excess(self, inputs: Inputs, log_nominal: LogNominal) -> Rows:
        """Return how far the network's output lies beyond three times the ball."""
        del log_nominal
        return beyond_ball(self._raw(inputs)[1])

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Float[Array, "rows size"]:
        """Return one disturbance per row."""
        log_weights, shift, log_std = self.mixture(situation.inputs)
        which, normal = jax.random.split(key)
        if self.components == 1:
            chosen = jnp.ones_like(log_weights)
        else:
            index = jax.random.categorical(which, log_weights)
            chosen = jax.nn.one_hot(index, self.components)
        mean = jnp.einsum("rn,rnd->rd", chosen, shift)
        std = jnp.exp(jnp.einsum("rn,rnd->rd", chosen, log_std))
        return mean + std * jax.random.normal(normal, mean.shape)

    def score(self, inputs: Inputs, log_nominal: LogNominal, disturbance: Array) -> Score:
        """Return the log-density of the given disturbances, and `excess`."""
        del log_nominal
        raw, scale = self._raw(inputs)
        log_weights, shift, log_std = _scaled(raw, scale)
        z = (disturbance[..., None, :] - shift) * jnp.exp(-log_std)
        each = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        return jax.nn.logsumexp(log_weights + each, axis=-1), beyond_ball(scale)

    def expectation(
        self, key: PRNGKeyArray, inputs: Inputs, log_nominal: LogNominal, worth: Worth
    ) -> Float[Array, ""]:
        """Return an estimate of E[worth(w)] for one row: one draw of each component, weighted by φ."""
        del log_nominal
        log_weights, shift, log_std = self.mixture(inputs)
        drawn = shift + jnp.exp(log_std) * jax.random.normal(key, shift.shape)
        return jnp.exp(log_weights) @ jax.vmap(worth)(drawn)


def _scaled(raw: Mixture, scale: Rows) -> Mixture:
    log_weights, shift, log_std = raw
    scale = lax.stop_gradient(scale)[..., None, None]
    return log_weights, scale * shift, scale * log_std


def beyond_ball(scale: Rows) -> Rows:
    """Return by how much 1/scale, the output in units of the ball, exceeds three; at most eight."""
    return jnp.maximum(1 / jnp.maximum(scale, 1 / _FARTHEST) - _FREE, 0.0)


def exp_minus_tangent(x: Array) -> Array:
    """Return e^x − 1 − x to full relative precision near zero."""
    # The series has a relative error of 2·0.5⁶/8! < 1e-6 at |x| = 0.5; beyond, little cancels.
    small = jnp.abs(x) < 0.5
    z = jnp.where(small, x, 0.0)
    series = z * z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5 * (1 + z / 6 * (1 + z / 7)))))
    return jnp.where(small, series, jnp.expm1(x) - x)


def _bound(scale: Array, weights: Array, shift: Array, log_std: Array) -> tuple[Array, Array]:
    """Return Σφ_i KL_i with scaled μ and log σ, and its derivative in the scale.

    The bound is convex in the scale and zero at zero. Rows come last, φ as (n, *rows) and the others
    as (n, size, *rows): sums over a few components vectorise over thousands of rows.
    """
    t = scale
    each = 0.5 * (exp_minus_tangent(2 * t * log_std) + (t * shift) ** 2).sum(1)
    slope = (log_std * jnp.expm1(2 * t * log_std) + t * shift**2).sum(1)
    return (weights * each).sum(0), (weights * slope).sum(0)


def _rows_last(weights: Array, shift: Array, log_std: Array) -> tuple[Array, Array, Array]:
    """Return the arguments of `_bound` from (*rows, n) and (*rows, n, size)."""
    inner = ((-2, -1), (0, 1))
    return jnp.moveaxis(weights, -1, 0), jnp.moveaxis(shift, *inner), jnp.moveaxis(log_std, *inner)


def _scale_within(radius: Array, weights: Array, shift: Array, log_std: Array) -> Array:
    """Return the largest scale up to one at which the bound does not exceed the radius.

    The bound is convex, increasing and at least quadratic. The root of a quadratic below it is
    therefore an upper bound on its root; Newton's method from there decreases to the root and never
    passes it. t·R/bound(t) then lies inside, again by convexity. The derivative is that of one more
    Newton step with the root held fixed: the derivative of the root itself.
    """
    live = _rows_last(weights, shift, log_std)
    frozen = tuple(lax.stop_gradient(leaf) for leaf in live)
    least = (frozen[0] * (0.5 * frozen[1] ** 2 + _LEAST_BEND * frozen[2] ** 2).sum(1)).sum(0)
    far = least > radius
    t = jnp.where(far, jnp.sqrt(radius / jnp.where(far, least, 1.0)), 1.0)

    def newton(_: int, t: Array) -> Array:
        value, slope = _bound(t, *frozen)
        over = value > radius
        t = jnp.where(over, t - (value - radius) / jnp.where(over, slope, 1.0), t)
        return jnp.maximum(t, 0.0)

    t = lax.fori_loop(0, _NEWTON_STEPS, newton, t)
    value, slope = _bound(t, *live)
    reached, slope = lax.stop_gradient((value, slope))
    correction = jnp.where(
        (t < 1) & (slope > 0), (value - reached) / jnp.where(slope > 0, slope, 1.0), 0.0
    )
    over = reached > radius
    return t * jnp.where(over, radius / jnp.where(over, reached, 1.0), 1.0) - correction
