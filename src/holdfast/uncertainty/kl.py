"""The Kullback–Leibler ball: KL(q‖p) ≤ radius."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast._support.roots import increasing_root
from holdfast.uncertainty._counts import kl_from_counts
from holdfast.uncertainty._set import Response, UncertaintySet
from holdfast.uncertainty._simplex import project_simplex


class KL(UncertaintySet):
    """All kernels whose rows have KL(q‖p) ≤ radius around the nominal rows p.

    The worst response to targets y tilts the nominal row, q ∝ p·exp(−βy), with the β ≥ 0 at which
    KL(q‖p) is the radius; where the radius is at least −log p(argmin y), q is p conditioned on the
    minimisers. For every β > 0 the dual value −(log Σ p·exp(−βy) + radius)/β is a lower bound, so
    what was found is certified wherever the search for β stopped.

    Arguments:
        radius: a number, or an (S, A) array; 0 leaves a row nominal, inf frees it within its support.
        max_steps: bound on the steps of the search for β. Fewer steps show as a larger gap between
            `value` and `lower`, never as a wrong certificate.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> ball = hf.KL(0.1)
        >>> p, y = np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]])
        >>> q = ball.worst_response(p, y)
        >>> print(np.round(q, 3), np.round(ball.divergence(p, q), 3))
        [[0.72 0.28]] [0.1]
    """

    name: ClassVar[str] = "kl"

    max_steps: int = eqx.field(static=True)

    def __init__(self, radius: ArrayLike, *, max_steps: int = 200) -> None:
        super().__init__(radius)
        if max_steps < 1:
            raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
        self.max_steps = max_steps

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON header and named arrays from which `from_arrays` makes the set again."""
        header, arrays = super().to_arrays()
        return {**header, "max_steps": self.max_steps}, arrays

    @classmethod
    def from_counts(
        cls,
        counts: ArrayLike,
        *,
        confidence: float = 0.95,
        successors: ArrayLike | None = None,
        support: ArrayLike | None = None,
    ) -> tuple[Any, Self]:
        """A nominal kernel and the set around it that holds the true kernel, with this confidence.

        Jointly over all (s, a), by Agrawal's bound on KL(p̂‖p) or the method of types (the interval of
        Clopper and Pearson where there are two successors), and the largest KL(p‖centre) there. The
        centre is a smoothed estimate: a ball around raw frequencies holds no kernel that can do what was
        not seen.
        Unvisited pairs get a uniform row, and radius inf.
        The numbers of visits must not depend on what was seen.

        Arguments:
            counts: (S, A, S) transitions that were seen; or (S, A, K), with `successors`.
            confidence: in (0, 1).
            successors: (S, A, K), the state that each column of the counts is about; the kernel is then
                a `Kernel`.
            support: of the counts' shape, which of them are possible at all; all if left out. The less
                is possible, the smaller the set.

        Example:
            >>> import holdfast as hf
            >>> seen = [[[40, 10], [0, 0]], [[3, 7], [25, 25]]]
            >>> kernel, ball = hf.KL.from_counts(seen, confidence=0.95)
            >>> print(kernel[0, 0].round(2), ball.radius.round(2))
            [0.79 0.21] [[0.06  inf]
             [0.27 0.06]]
        """
        kernel, radius = kl_from_counts(counts, confidence, successors, support)
        return kernel, cls(radius)

    @compiled_float64
    def respond(
        self,
        p: Float[Array, "*rows K"],
        y: Float[Array, "*rows K"],
        guess: Float[Array, "*rows"] | None = None,
    ) -> Response:
        """The worst response to y, with the dual value that certifies it."""
        scaled = _Scaled.of(p, y)
        radius = jnp.broadcast_to(jnp.asarray(self.radius, scaled.u.dtype), scaled.span.shape)
        # −log p(argmin y): with a radius above it nature can reach the minimum itself.
        concentrated = -jnp.log(scaled.mass_at_minimum) <= radius
        trivial = concentrated | (radius == 0) | (scaled.span == 0)
        variance = jnp.maximum(scaled.second - scaled.mean**2, jnp.finfo(y.dtype).tiny)
        start = jnp.sqrt(2 * radius / variance)
        if guess is not None:
            hinted = jnp.clip(guess * scaled.span, start * 1e-2, start * 1e6)
            start = jnp.where(guess > 0, hinted, start)
        start = jnp.where(trivial, 0.0, _clip(start))

        def divergence_and_slope(beta: Array) -> tuple[Array, Array, _Moments]:
            tilt = _Moments.of(p, scaled, beta)
            return tilt.divergence(beta), beta * tilt.variance, tilt

        root = increasing_root(
            divergence_and_slope, radius, start, quadratic=True, max_steps=self.max_steps
        )
        beta, tilt = root.x, root.aux
        # Rounding, or an early stop, may leave q outside. KL is convex in q, so moving q towards p
        # by this share puts it inside.
        divergence = jnp.maximum(tilt.divergence(beta), jnp.finfo(y.dtype).tiny)
        share = jnp.where(trivial, 0.0, jnp.minimum(1.0, radius / divergence))
        at_minimum = concentrated & (radius > 0)
        # q is p times: 1, or the tilt, or a mixture of the two, or the indicator of the minimum.
        plain = jnp.where(at_minimum, 0.0, 1 - share)[..., None]
        tilted = (share * jnp.exp(-tilt.log_mass))[..., None]
        pointed = jnp.where(at_minimum, 1 / scaled.mass_at_minimum, 0.0)[..., None]
        factor = plain + tilted * jnp.exp(-beta[..., None] * scaled.u) + pointed * scaled.at_minimum
        mean = scaled.mean + share * (tilt.mean - scaled.mean)
        dual = jnp.maximum(-(tilt.log_mass + radius) / jnp.where(trivial, 1.0, beta), 0.0)
        return Response(
            kernel=p * factor,
            value=scaled.restore(jnp.where(at_minimum, 0.0, mean)),
            lower=scaled.restore(jnp.where(at_minimum, 0.0, jnp.where(trivial, scaled.mean, dual))),
            multiplier=jnp.where(trivial, 0.0, beta / jnp.where(trivial, 1.0, scaled.span)),
        )

    @compiled_float64
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """KL(q‖p), infinite where q has mass that p has not."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        q = jnp.maximum(q, 0.0)
        # The form Σ q·log(q/p) − q + p has only non-negative terms, so it does not cancel.
        terms = xlogy(q, q / jnp.where(p > 0, p, 1.0)) - q + p
        return jnp.where((q > 0) & (p == 0), jnp.inf, terms).sum(-1)

    @compiled_float64
    def project(
        self,
        p: Float[Array, "*rows K"],
        q: Float[Array, "*rows K"],
        geometry: Literal["euclidean", "kl"] = "euclidean",
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q: in Euclidean distance, or in KL(member‖q).

        In the Euclidean geometry q may be any vector; in the other it has non-negative entries.
        """
        p, q = jnp.asarray(p), jnp.asarray(q)
        if geometry == "kl":
            return self._project_kl(p, q)
        return self._project_euclidean(p, q)

    @compiled_float64
    def tilt(
        self, p: Float[Array, "*rows K"], logit: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member ∝ p·exp(t·logit) with the largest t ≤ 1 that the radius allows."""
        p, logit = jnp.asarray(p), jnp.asarray(logit)
        radius = jnp.broadcast_to(jnp.asarray(self.radius, p.dtype), p.shape[:-1])
        top = jnp.where(p > 0, logit, -jnp.inf).max(-1, keepdims=True)
        exponent = jnp.where(p > 0, logit - top, 0.0)

        def member(strength: Array) -> Array:
            weight = p * jnp.exp(strength[..., None] * exponent)
            return weight / weight.sum(-1, keepdims=True)

        whole = member(jnp.ones_like(radius))
        inside = self.divergence(p, whole) <= radius
        multiplier = jnp.minimum(self.respond(p, -exponent).multiplier, 1.0)
        # No multiplier, but a radius: it is large enough to reach the largest logit itself.
        strength = jnp.where(inside | ((multiplier == 0) & (radius > 0)), 1.0, multiplier)
        tilted = member(strength)
        # Outside by more than rounding only where the search was stopped early: back along a line.
        divergence = self.divergence(p, tilted)
        outside = divergence > radius * (1 + 1e-10) + 1e-15
        share = jnp.where(outside, radius / jnp.where(outside, divergence, 1.0), 1.0)[..., None]
        return (1 - share) * p + share * tilted

    def _project_kl(self, p: Array, q: Array) -> Array:
        """The member is ∝ q^{1−t}·p^t: a tilt of p by log(q/p)."""
        support = (p > 0) & (q > 0)
        tiny = jnp.finfo(p.dtype).tiny
        logit = jnp.where(support, jnp.log(jnp.maximum(q, tiny)) - jnp.log(jnp.maximum(p, tiny)), 0)
        # A projection in KL(·‖q) has no mass where q has none. Relative to p conditioned on q's
        # support, the ball has a radius smaller by −log of the mass that is left there.
        left = jnp.where(support, p, 0.0).sum(-1)
        room = self.radius + jnp.log(jnp.maximum(left, tiny))
        conditioned = jnp.where(support, p, 0.0) / jnp.maximum(left, tiny)[..., None]
        within = eqx.tree_at(lambda ball: ball.radius, self, jnp.maximum(room, 0.0))
        # Where q's support misses the ball there is no projection; p is the member returned.
        return jnp.where((room >= 0)[..., None], within.tilt(conditioned, logit), p)

    def _project_euclidean(self, p: Array, z: Array) -> Array:
        """Min ½‖q − z‖² over the ball: q solves x(q − z) + log(q/p) + μ = 0, 1/x the multiplier."""
        support = p > 0
        nearest = project_simplex(z, support)
        radius = jnp.broadcast_to(jnp.asarray(self.radius, p.dtype), p.shape[:-1])
        inside = self.divergence(p, nearest) <= radius
        offset = jnp.where(support, z - jnp.where(support, z, -jnp.inf).max(-1, keepdims=True), 0.0)
        log_p = jnp.log(jnp.where(support, p, 1.0))

        def member(x: Array) -> Array:
            return _prox_row(log_p, support, offset, x)

        def divergence_and_slope(x: Array) -> tuple[Array, Array, Array]:
            q = member(x)
            gap = jnp.where(support, q - offset, 0.0)
            stiffness = jnp.where(support, q / (1 + x[..., None] * q), 0.0)
            drift = -(stiffness * gap).sum(-1) / stiffness.sum(-1)
            velocity = -stiffness * (gap + drift[..., None])
            log_ratio = jnp.where(q > 0, jnp.log(jnp.where(q > 0, q, 1.0)) - log_p, 0.0)
            return self.divergence(p, q), jnp.maximum((log_ratio * velocity).sum(-1), 0.0), q

        mean = (p * offset).sum(-1)
        variance = (p * (offset - mean[..., None]) ** 2).sum(-1)
        start = jnp.sqrt(2 * radius / jnp.maximum(variance, jnp.finfo(p.dtype).tiny))
        start = jnp.where(inside | (radius == 0), 0.0, _clip(start))
        edge = increasing_root(
            divergence_and_slope, radius, start, quadratic=True, tolerance=1e-14
        ).aux
        edge = jnp.where((start > 0)[..., None], edge, p)
        edge = edge / edge.sum(-1, keepdims=True)
        divergence = jnp.maximum(self.divergence(p, edge), jnp.finfo(p.dtype).tiny)
        edge = p + jnp.minimum(1.0, radius / divergence)[..., None] * (edge - p)
        return jnp.where((radius == 0)[..., None], p, jnp.where(inside[..., None], nearest, edge))


def _clip(start: Array) -> Array:
    """A start whose square neither overflows nor vanishes."""
    limits = jnp.finfo(start.dtype)
    return jnp.clip(start, limits.tiny**0.5, limits.max**0.5)


class _Scaled(NamedTuple):
    """Targets shifted and scaled to u in [0, 1] over the support of p, the minimum at zero."""

    u: Float[Array, "*rows K"]
    at_minimum: Bool[Array, "*rows K"]
    low: Float[Array, "*rows"]
    span: Float[Array, "*rows"]
    mass_at_minimum: Float[Array, "*rows"]
    mean: Float[Array, "*rows"]
    second: Float[Array, "*rows"]

    @classmethod
    def of(cls, p: Array, y: Array) -> _Scaled:
        support = p > 0
        low = jnp.where(support, y, jnp.inf).min(-1)
        span = jnp.where(support, y, -jnp.inf).max(-1) - low
        divisor = jnp.where(span > 0, span, 1.0)[..., None]
        u = jnp.where(support, (y - low[..., None]) / divisor, 0.0)
        at_minimum = support & (y == low[..., None])
        mass = jnp.where(at_minimum, p, 0.0).sum(-1)
        return cls(u, at_minimum, low, span, mass, (p * u).sum(-1), (p * u * u).sum(-1))

    def restore(self, value: Array) -> Array:
        return self.low + self.span * value


class _Moments(NamedTuple):
    """Of u under p·exp(−βu): log of its mass, mean, variance."""

    log_mass: Float[Array, "*rows"]
    mean: Float[Array, "*rows"]
    variance: Float[Array, "*rows"]

    @classmethod
    def of(cls, p: Array, scaled: _Scaled, beta: Array) -> _Moments:
        # For small β the moments are the nominal ones plus a correction built from exp(x) − 1: the
        # divergence is of order β², and plain sums would lose it to rounding. (Further up, log1p is
        # less exact than log.)
        small = beta < 0.4
        exponent = -beta[..., None] * scaled.u
        weight = p * jnp.where(small[..., None], jnp.expm1(exponent), jnp.exp(exponent))
        zeroth = weight.sum(-1)
        first = (weight * scaled.u).sum(-1)
        second = (weight * scaled.u * scaled.u).sum(-1)
        mass = jnp.where(small, 1 + zeroth, zeroth)
        mean = jnp.where(small, scaled.mean + first, first) / mass
        square = jnp.where(small, scaled.second + second, second) / mass
        log_mass = jnp.where(small, jnp.log1p(jnp.where(small, zeroth, 0.0)), jnp.log(mass))
        return cls(log_mass, mean, jnp.maximum(square - mean * mean, 0.0))

    def divergence(self, beta: Array) -> Array:
        return jnp.maximum(-beta * self.mean - self.log_mass, 0.0)


def _prox_row(log_p: Array, support: Array, z: Array, x: Array) -> Array:
    """The row q with x·q + log(q/p) = x·z − μ that sums to one, by Newton in μ.

    Each entry is ω(s)/x with ω the Wright function, ω + log ω = s = x·z − μ + log p + log x. The sum
    decreases and is convex in μ, so Newton from the left does not overshoot.
    """
    scale = x[..., None]
    level = scale * z + log_p
    # At this μ the largest entry alone is at least one, so the sum is: the left of the root.
    start = jnp.where(support, level - scale, -jnp.inf).max(-1)

    def entries(mu: Array) -> Array:
        omega = _wright_omega(level - mu[..., None] + jnp.log(scale))
        return jnp.where(support, omega / scale, 0.0)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        mu, _, step = state
        q = entries(mu)
        newton = (q.sum(-1) - 1) / (q / (1 + scale * q)).sum(-1)
        # The sum falls no faster than exp(−μ), so a step on its logarithm does not overshoot either.
        move = jnp.maximum(newton, jnp.log(q.sum(-1)))
        settled = jnp.abs(move) <= 4 * jnp.finfo(mu.dtype).eps * jnp.maximum(1.0, jnp.abs(mu))
        return jnp.where(settled, mu, mu + move), settled, step + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return ~jnp.all(state[1]) & (state[2] < 200)

    mu, _, _ = lax.while_loop(unfinished, body, (start, jnp.zeros(start.shape, bool), jnp.array(0)))
    return entries(mu)


def _wright_omega(s: Array) -> Array:
    """ω(s) with ω + log ω = s, by Newton on log ω; five steps reach rounding from this start."""
    log_omega = jnp.where(s < 1, s - jnp.exp(jnp.minimum(s, 1.0)) / 2, jnp.log(jnp.maximum(s, 1.0)))
    for _ in range(6):
        omega = jnp.exp(log_omega)
        log_omega = log_omega - (omega + log_omega - s) / (omega + 1)
    return jnp.exp(log_omega)
