"""Kernels of a simulator: distributions of the disturbance, each within its radius by construction.

The learned ones are networks of what nature sees (`Environment.nature_features` and the clock). Where a
network's output lies beyond the ball, it is scaled down onto it. A gradient through that scale would
vanish along the ray, and where there is no other way to go (two outcomes, one number of noise) nature
could never change its mind. So the scale counts as a constant, as in projected gradient descent, and
`excess` says by how much the output is too far outside, for whoever trains it to keep it near. Up to
three times the ball is not too far: the farther out, the less a step turns the output, and the less
noise there is in where it points.

Every function works on rows: whoever samples holds thousands of episodes side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from holdfast._support.roots import increasing_root
from holdfast.simulators.environment import Environment, GaussianNoise, Outcomes
from holdfast.simulators.policy.networks import MLP

_NEWTON_STEPS = 6
_CLOSE = 1e-5  # how near to the radius a tilt has to come, relative
_FREE = 3.0  # times the ball, how far out a network's output may lie unpunished
_LOG_2_PI = math.log(2 * math.pi)


class Situation(NamedTuple):
    """What a kernel may depend on, row by row.

    Attributes:
        inputs: `Environment.nature_features` with the clock appended.
        log_nominal: log-probabilities of the outcomes; no columns where the disturbance is Gaussian.
        lookahead: the signal paid on the way plus the discounted value of where the disturbance leads,
            for disturbances with a leading axis of candidates.
    """

    inputs: Float[Array, "rows nature"]
    log_nominal: Float[Array, "rows outcomes"]
    lookahead: Callable[[Array], Float[Array, "candidates rows"]]


class Kernel(Protocol):
    """A distribution of the disturbance given state and action."""

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """One disturbance for each row."""


class LearnedKernel(Kernel, Protocol):
    """One with parameters: `log_density` is what the score function differentiates."""

    def log_density(self, inputs: Array, log_nominal: Array, disturbance: Array) -> Array:
        """Of given disturbances, row by row."""

    def divergence(self, inputs: Array, log_nominal: Array) -> Array:
        """A bound on KL(this‖nominal), row by row."""

    def excess(self, inputs: Array, log_nominal: Array) -> Array:
        """By how much the network's output lies too far beyond the ball; zero inside."""

    def expectation(
        self,
        key: PRNGKeyArray,
        inputs: Array,
        log_nominal: Array,
        worth: Callable[[Array], Array],
    ) -> Array:
        """E[worth(w)] for one row, differentiable in the parameters along the path of w."""


class Nominal(eqx.Module):
    """The environment's own noise."""

    size: int = eqx.field(static=True)

    @classmethod
    def create(cls, env: Environment) -> Self:
        """The nominal kernel of an environment."""
        noise = env.disturbance
        return cls(noise.size if isinstance(noise, GaussianNoise) else 0)

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """Standard normal numbers, or outcomes with their nominal probabilities."""
        return _nominal(key, self.size, situation.log_nominal, ())


def _nominal(
    key: PRNGKeyArray, size: int, log_nominal: Float[Array, "rows K"], shape: tuple[int, ...]
) -> Array:
    if size == 0:
        return jax.random.categorical(key, log_nominal, shape=(*shape, len(log_nominal)))
    return jax.random.normal(key, (*shape, len(log_nominal), size))


class GaussianMixture(eqx.Module):
    """Equation (12): w ~ Σφ_i N(μ_i, diag σ_i²), with φ, μ and log σ networks of what nature sees.

    Σφ_i KL(N(μ_i, σ_i²)‖N(0, I)) bounds the mixture's KL by convexity. Where that bound is over the
    radius, (μ, log σ) are scaled towards nominal until it is the radius.
    """

    network: MLP
    radius: Float[Array, ""]
    components: int = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        key: PRNGKeyArray,
        env: Environment,
        radius: Float[Array, ""],
        hidden: tuple[int, ...],
        components: int,
    ) -> Self:
        """Nearly the nominal kernel."""
        if not isinstance(env.disturbance, GaussianNoise):
            raise ValueError(
                f"kernel: a Gaussian mixture needs Gaussian noise, and {env.name} has outcomes; "
                "use 'categorical' or 'tilted'"
            )
        outputs = components * (1 + 2 * env.disturbance.size)
        sizes = (env.nature_feature_size + 1, *hidden, outputs)
        return cls(MLP.create(key, sizes, last_scale=0.1), radius, components)

    def _raw(
        self, inputs: Float[Array, "*rows nature"]
    ) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n size"], Float[Array, "*rows n size"]]:
        """The logarithm of φ, μ and log σ, as the network has them."""
        outputs = self.network(inputs)
        logits, rest = outputs[..., : self.components], outputs[..., self.components :]
        rest = rest.reshape(*rest.shape[:-1], self.components, 2, -1)
        # Without a bound on log σ, e^{2 log σ} overflows before it is scaled down.
        shift, log_std = rest[..., 0, :], 3 * jnp.tanh(rest[..., 1, :] / 3)
        return jax.nn.log_softmax(logits), shift, log_std

    def mixture(
        self, inputs: Float[Array, "*rows nature"]
    ) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows n size"], Float[Array, "*rows n size"]]:
        """The same within the radius; the scale that puts them there counts as a constant."""
        log_weights, shift, log_std = self._raw(inputs)
        scale = _scale_within(self.radius, jnp.exp(log_weights), shift, log_std)
        scale = lax.stop_gradient(scale)[..., None, None]
        return log_weights, scale * shift, scale * log_std

    def excess(
        self, inputs: Float[Array, "*rows nature"], log_nominal: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """By how much the network's output lies too far beyond the ball."""
        del log_nominal
        log_weights, shift, log_std = self._raw(inputs)
        return _beyond(_scale_within(self.radius, jnp.exp(log_weights), shift, log_std))

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Float[Array, "rows size"]:
        """A component, then a normal number from it."""
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

    def log_density(
        self,
        inputs: Float[Array, "*rows nature"],
        log_nominal: Float[Array, "*rows K"],
        disturbance: Float[Array, "*rows size"],
    ) -> Float[Array, "*rows"]:
        """Of given disturbances."""
        del log_nominal
        log_weights, shift, log_std = self.mixture(inputs)
        z = (disturbance[..., None, :] - shift) * jnp.exp(-log_std)
        each = (-0.5 * z**2 - log_std - 0.5 * _LOG_2_PI).sum(-1)
        return jax.nn.logsumexp(log_weights + each, axis=-1)

    def divergence(
        self, inputs: Float[Array, "*rows nature"], log_nominal: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """The bound Σφ_i KL_i."""
        del log_nominal
        log_weights, shift, log_std = self.mixture(inputs)
        one = jnp.ones(())
        return _bound(one, *_rows_last(jnp.exp(log_weights), shift, log_std))[0]

    def expectation(
        self,
        key: PRNGKeyArray,
        inputs: Float[Array, " nature"],
        log_nominal: Float[Array, " K"],
        worth: Callable[[Array], Float[Array, ""]],
    ) -> Float[Array, ""]:
        """One draw from every component, weighted by φ."""
        del log_nominal
        log_weights, shift, log_std = self.mixture(inputs)
        drawn = shift + jnp.exp(log_std) * jax.random.normal(key, shift.shape)
        return jnp.exp(log_weights) @ jax.vmap(worth)(drawn)


def _beyond(scale: Array) -> Array:
    """1/scale over three, and no more than eight: a radius of zero must not drown everything else."""
    return jnp.maximum(1 / jnp.maximum(scale, 1 / 11) - _FREE, 0.0)


# ½(e^{2x} − 1 − 2x) ≥ this·x² for |x| ≤ 3, the bound on log σ.
_LEAST_BEND = 0.27


def _excess(x: Array) -> Array:
    """e^x − 1 − x, with all its digits near zero."""
    small = jnp.abs(x) < 0.5
    z = jnp.where(small, x, 0.0)
    series = z * z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5 * (1 + z / 6 * (1 + z / 7)))))
    return jnp.where(small, series, jnp.expm1(x) - x)


def _bound(scale: Array, weights: Array, shift: Array, log_std: Array) -> tuple[Array, Array]:
    """Σφ_i KL_i with μ and log σ scaled, and its slope in the scale; convex, zero at zero.

    Rows come last here, φ as (n, *rows) and the others as (n, size, *rows): sums over a handful of
    numbers, for thousands of rows, are vectorised over the rows.
    """
    t = scale
    each = 0.5 * (_excess(2 * t * log_std) + (t * shift) ** 2).sum(1)
    slope = (log_std * jnp.expm1(2 * t * log_std) + t * shift**2).sum(1)
    return (weights * each).sum(0), (weights * slope).sum(0)


def _rows_last(weights: Array, shift: Array, log_std: Array) -> tuple[Array, Array, Array]:
    """What `_bound` takes, from (*rows, n) and (*rows, n, size)."""
    inner = ((-2, -1), (0, 1))
    return jnp.moveaxis(weights, -1, 0), jnp.moveaxis(shift, *inner), jnp.moveaxis(log_std, *inner)


def _scale_within(radius: Array, weights: Array, shift: Array, log_std: Array) -> Array:
    """The largest scale up to one at which the bound is no more than the radius.

    The bound is convex, increasing and at least quadratic, so the root of a quadratic under it is beyond
    its own; Newton's method from there comes down to it and never passes it, and t·R/bound(t) is then
    inside, again by convexity. The derivative is the root's own: that of one more Newton step with the
    root held fixed.
    """
    live = _rows_last(weights, shift, log_std)
    frozen = tuple(lax.stop_gradient(leaf) for leaf in live)
    least = (frozen[0] * (0.5 * frozen[1] ** 2 + _LEAST_BEND * frozen[2] ** 2).sum(1)).sum(0)
    far = least > radius
    t = jnp.where(far, jnp.sqrt(radius / jnp.where(far, least, 1.0)), 1.0)
    outside = _bound(jnp.ones_like(t), *frozen)[0] > radius
    for _ in range(_NEWTON_STEPS):
        value, slope = _bound(t, *frozen)
        over = value > radius
        t = jnp.where(over, t - (value - radius) / jnp.where(over, slope, 1.0), t)
        t = jnp.maximum(t, 0.0)
    value, _ = _bound(t, *frozen)
    t = jnp.where(value > radius, t * radius / jnp.where(value > radius, value, 1.0), t)
    value, slope = _bound(t, *live)
    slope = lax.stop_gradient(slope)
    bends = outside & (slope > 0)
    correction = (value - lax.stop_gradient(value)) / jnp.where(bends, slope, 1.0)
    return t - jnp.where(bends, correction, 0.0)


class CategoricalKernel(eqx.Module):
    """For tables: q ∝ p·exp(t·logit), with t the largest up to one at which KL(q‖p) is in the radius."""

    network: MLP
    radius: Float[Array, ""]

    @classmethod
    def create(
        cls,
        key: PRNGKeyArray,
        env: Environment,
        radius: Float[Array, ""],
        hidden: tuple[int, ...],
        components: int,
    ) -> Self:
        """The nominal kernel, nearly."""
        del components
        if not isinstance(env.disturbance, Outcomes):
            raise ValueError(
                f"kernel: a categorical one needs outcomes, and {env.name} has Gaussian noise; "
                "use 'gaussian-mixture' or 'tilted'"
            )
        sizes = (env.nature_feature_size + 1, *hidden, env.disturbance.count)
        return cls(MLP.create(key, sizes, last_scale=0.01), radius)

    def log_probabilities(
        self, inputs: Float[Array, "*rows nature"], log_nominal: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """Of the outcomes, within the radius; the scale that puts them there counts as a constant."""
        logits = self.network(inputs)
        t = lax.stop_gradient(_tilt_within(self.radius, log_nominal, logits))[..., None]
        return jax.nn.log_softmax(log_nominal + t * logits)

    def excess(
        self, inputs: Float[Array, "*rows nature"], log_nominal: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """By how much the network's output lies too far beyond the ball."""
        return _beyond(_tilt_within(self.radius, log_nominal, self.network(inputs)))

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Int[Array, " rows"]:
        """An outcome."""
        logs = self.log_probabilities(situation.inputs, situation.log_nominal)
        return jax.random.categorical(key, logs)

    def log_density(
        self,
        inputs: Float[Array, "*rows nature"],
        log_nominal: Float[Array, "*rows K"],
        disturbance: Int[Array, "*rows"],
    ) -> Float[Array, "*rows"]:
        """Of given outcomes."""
        logs = self.log_probabilities(inputs, log_nominal)
        return jnp.take_along_axis(logs, disturbance[..., None], axis=-1)[..., 0]

    def divergence(
        self, inputs: Float[Array, "*rows nature"], log_nominal: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """KL(q‖p)."""
        logs = self.log_probabilities(inputs, log_nominal)
        return _kl(logs, log_nominal)

    def expectation(
        self,
        key: PRNGKeyArray,
        inputs: Float[Array, " nature"],
        log_nominal: Float[Array, " K"],
        worth: Callable[[Array], Float[Array, ""]],
    ) -> Float[Array, ""]:
        """The sum over all outcomes."""
        del key
        q = jnp.exp(self.log_probabilities(inputs, log_nominal))
        return q @ jax.vmap(worth)(jnp.arange(len(q)))


def _kl(logs: Array, log_nominal: Array) -> Array:
    """KL between rows of log-probabilities; outcomes that cannot happen count for nothing."""
    possible = ~jnp.isneginf(log_nominal)
    gap = jnp.where(possible, logs - jnp.where(possible, log_nominal, 0.0), 0.0)
    return (jnp.where(possible, jnp.exp(logs), 0.0) * gap).sum(-1)


def _tilted_kl(t: Array, log_nominal: Array, logits: Array) -> tuple[Array, Array]:
    """KL(p·exp(t·logit)‖p), up to normalisation, and its slope t·Var(logit)."""
    logs = jax.nn.log_softmax(log_nominal + t[..., None] * logits)
    q = jnp.exp(logs)
    mean = (q * logits).sum(-1, keepdims=True)
    variance = (q * (logits - mean) ** 2).sum(-1)
    # A small tilt's KL is second order: Σp·(r·log r − r + 1), term by term, keeps its digits.
    p = jax.nn.softmax(log_nominal)
    x = t[..., None] * jnp.where(p > 0, logits - (p * logits).sum(-1, keepdims=True), 0.0)
    small = jnp.abs(x).max(-1) < 0.5
    x = jnp.where(small[..., None], x, 0.0)
    log_ratio = x - jnp.log1p((p * _excess(x)).sum(-1, keepdims=True))
    near = (p * (log_ratio * jnp.expm1(log_ratio) - _excess(log_ratio))).sum(-1)
    return jnp.where(small, near, _kl(logs, log_nominal)), t * variance


def _tilt_within(radius: Array, log_nominal: Array, logits: Array, most: float = 1.0) -> Array:
    """The largest t up to `most` at which the tilted rows are within the radius; differentiable."""
    radius = lax.stop_gradient(radius)
    frozen = (log_nominal, lax.stop_gradient(logits))
    limit = jnp.full(logits.shape[:-1], most)
    outside = _tilted_kl(limit, *frozen)[0] > radius
    # Where nothing has to be found the guess of zero says so.
    guess = jnp.where(outside & (radius > 0), limit, 0.0)
    # Aimed at a little less than the radius, so that whatever meets the tolerance is inside.
    target = jnp.full(guess.shape, (1 - 2 * _CLOSE) * radius)

    def kl_and_slope(t: Array) -> tuple[Array, Array, Array]:
        value, slope = _tilted_kl(t, *frozen)
        return value, slope, value

    root = increasing_root(
        kl_and_slope,
        target,
        guess,
        quadratic=True,
        tolerance=0.0,
        absolute=_CLOSE * radius,
        max_steps=40,
    )
    # Where single precision could not separate the two sides of the radius, stay on the near one.
    excess = root.aux > target
    inside = root.x * jnp.where(excess, jnp.sqrt(target / jnp.where(excess, root.aux, 1.0)), 1.0)
    t = jnp.where(outside, inside, limit)
    value, slope = _tilted_kl(t, log_nominal, logits)
    slope = jnp.where(outside, jnp.maximum(lax.stop_gradient(slope), 1e-12), 1.0)
    correction = (value - lax.stop_gradient(value)) / slope
    return lax.stop_gradient(t) - jnp.where(outside, correction, 0.0)


class TiltedKernel(eqx.Module):
    """Equation (11), sampled: w is one of n nominal candidates, with weights exp(−β·lookahead).

    β is such that KL(weights‖uniform) is the radius; by convexity that bounds the KL of the law of w.
    Nothing is learned here but the critic inside the lookahead.
    """

    radius: Float[Array, ""]
    size: int = eqx.field(static=True)
    candidates: int = eqx.field(static=True)

    @classmethod
    def create(cls, env: Environment, radius: Float[Array, ""], candidates: int) -> Self:
        """A kernel that looks one step ahead."""
        if not env.is_replayable:
            raise ValueError(
                f"kernel: a tilted one looks ahead, and {env.name} cannot be stepped twice from one "
                "state; use 'gaussian-mixture'"
            )
        noise = env.disturbance
        return cls(radius, noise.size if isinstance(noise, GaussianNoise) else 0, candidates)

    def draw(self, key: PRNGKeyArray, situation: Situation) -> Array:
        """One of the candidates."""
        propose, choose = jax.random.split(key)
        drawn = _nominal(propose, self.size, situation.log_nominal, (self.candidates,))
        logs = self.log_weights(situation.lookahead(drawn).T)
        index = jax.random.categorical(choose, logs)
        return jax.vmap(lambda rows, i: rows[i], in_axes=(1, 0))(drawn, index)

    def log_weights(self, lookahead: Float[Array, "rows n"]) -> Float[Array, "rows n"]:
        """Of the candidates, in proportion to exp(−β·lookahead)."""
        centred = lookahead - lookahead.min(-1, keepdims=True)
        spread = centred.max(-1, keepdims=True)
        logits = -centred / jnp.where(spread > 0, spread, 1.0)
        uniform = jnp.full(logits.shape, -math.log(logits.shape[-1]))
        # At β = 1e4 over the spread only ties with the worst candidate are left.
        t = _tilt_within(self.radius, uniform, logits, most=1e4)
        return jax.nn.log_softmax(t[..., None] * logits)
