"""The Kullback–Leibler ball: KL(q‖p) ≤ radius."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast._support.roots import increasing_root
from holdfast.uncertainty.counts import Estimate, FromCounts, VisitCounts, kl_around
from holdfast.uncertainty.kl_columns import kl_proposal
from holdfast.uncertainty.kl_rows import kl_row_proposal
from holdfast.uncertainty.rows import (
    EPS,
    SMALLEST,
    Columns,
    PerRow,
    Proposal,
    Response,
    RowProposal,
    Rows,
    RowScale,
)
from holdfast.uncertainty.simplex import project_simplex

# Below this β the mass of the tilt is computed as 1 + Σ p·(exp(−βu) − 1). There log1p is accurate;
# above, the mass can be below 0.67, where log is more exact.
_SMALL = 0.4
# Ratios q/p that differ from one by less than this use the series of the logarithm, up to the power
# 2·_SERIES − 1 of z: the next term is 1e-18 of the sum.
_NEAR, _SERIES = 0.1, 7


class KL(FromCounts):
    """All kernels with KL(q‖p) ≤ radius around the nominal rows p.

    `respond` computes the worst response. For targets y it is the tilt q ∝ p·exp(−βy), with the β ≥ 0
    at which KL(q‖p) equals the radius. If the radius is at least −log p(argmin y), it is p conditioned
    on the minimisers. The dual value −(log Σ p·exp(−βy) + radius)/β is a lower bound for every β > 0.

    Arguments:
        radius: a number or an (S, A) array; 0 admits only the nominal row, inf any row on its support.
        max_steps: limit on the steps of the search for β. A search that stops early has a larger gap
            between `value` and `lower`; the certificate stays valid.

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
    merges: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    max_steps: int = eqx.field(static=True)

    def __init__(self, radius: ArrayLike, *, max_steps: int = 200) -> None:
        super().__init__(radius)
        if max_steps < 1:
            raise ValueError(f"max_steps: expected at least 1, got {max_steps}")
        self.max_steps = max_steps

    @classmethod
    def _around(cls, given: VisitCounts) -> tuple[Estimate, Self]:
        rows, radius = kl_around(given)
        return rows, cls(radius)

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        p, y = jnp.broadcast_arrays(jnp.asarray(p), jnp.asarray(y))
        scaled = _UnitTargets.of(p, y)
        radius = self.row_radius(p)
        # With a radius of at least −log p(argmin y) nature reaches the minimum itself.
        concentrated = -jnp.log(scaled.mass_at_minimum) <= radius
        trivial = concentrated | (radius == 0) | (scaled.span == 0)
        variance = jnp.maximum(scaled.second - scaled.mean**2, jnp.finfo(y.dtype).tiny)
        # KL ≈ β²·variance/2 for small β.
        start = jnp.sqrt(2 * radius / variance)
        if guess is not None:
            # A guess from another problem is used within a range around the expansion.
            hinted = jnp.clip(guess * scaled.span, start * 1e-2, start * 1e6)
            start = jnp.where(guess > 0, hinted, start)
        start = jnp.where(trivial, 0.0, _clip(start))

        def divergence_and_slope(beta: Array) -> tuple[Array, Array, _TiltedMoments]:
            tilt = _TiltedMoments.of(p, scaled, beta)
            return tilt.divergence(beta), beta * tilt.variance, tilt

        # A gap of some 20 eps, above the rounding error of the divergence, which grows with its terms.
        root = increasing_root(
            divergence_and_slope,
            radius,
            start,
            quadratic=True,
            tolerance=4e-15 + EPS * p.shape[-1] / 16,
            max_steps=self.max_steps,
        )
        beta, tilt = root.x, root.aux
        # Rounding or an early stop may leave q outside. KL is convex in q, so this share of the way
        # from p to q lies inside.
        divergence = jnp.maximum(tilt.divergence(beta), jnp.finfo(y.dtype).tiny)
        share = jnp.where(trivial, 0.0, jnp.minimum(1.0, radius / divergence))
        at_minimum = concentrated & (radius > 0)
        # q/p is one, the tilt, a mixture of the two, or the indicator of the minimum. One exponent for
        # tilt and mass: each factor alone may underflow or overflow.
        plain = jnp.where(at_minimum, 0.0, 1 - share)[..., None]
        tilted = jnp.exp(-tilt.log_mass[..., None] - beta[..., None] * scaled.u)
        pointed = jnp.where(at_minimum, 1 / scaled.mass_at_minimum, 0.0)[..., None]
        factor = plain + share[..., None] * tilted + pointed * scaled.at_minimum
        mean = scaled.mean + share * (tilt.mean - scaled.mean)
        dual = jnp.maximum(-(tilt.log_mass + radius) / jnp.where(trivial, 1.0, beta), 0.0)
        return Response(
            kernel=p * factor,
            value=scaled.restore(jnp.where(at_minimum, 0.0, mean)),
            lower=scaled.restore(jnp.where(at_minimum, 0.0, jnp.where(trivial, scaled.mean, dual))),
            multiplier=jnp.where(trivial, 0.0, beta / jnp.where(trivial, 1.0, scaled.span)),
        )

    def propose(self, p: Columns, y: Columns, guess: PerRow) -> Proposal:
        """Return a quick worst response to y, in columns, as a proposal that another pass certifies."""
        radius = jnp.broadcast_to(jnp.asarray(self.radius, guess.dtype), guess.shape)
        return kl_proposal(p, y, radius, guess)

    def propose_rows(self, p: Rows, y: Rows, guess: PerRow) -> RowProposal:
        """Return a quick worst response to y, as a proposal that another pass certifies."""
        return kl_row_proposal(p, y, self.row_radius(p), guess)

    @compiled_float64
    def lower_rounding(self, p: Rows, y: Rows, response: Response) -> PerRow:
        """Return a bound on the rounding error of `response.lower`.

        The error of log Σ p·exp(−βu) is divided by β. Below `_SMALL` it is proportional to β itself.
        """
        scale = RowScale.of(p > 0, y)
        beta = response.multiplier * scale.span
        growth = jnp.where(beta > 0.99 * _SMALL, jnp.maximum(1.0, 1 / beta), 1.0)
        return EPS * (((scale.terms / 2 + 5) * growth + 6) * scale.span + 2 * scale.size)

    @compiled_float64
    def member_share(self, p: Rows, q: Rows) -> PerRow:
        """Return a share t in [0, 1] such that p + t·(q − p) is a proved member of the set."""
        # The divergence has a relative error only, and loses at most the smallest number to underflow.
        return self._share_of_divergence(p, q, SMALLEST * p.shape[-1])

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return KL(q‖p); infinite if q has mass where p has none."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        q = jnp.maximum(q, 0.0)
        # The terms p·φ(q/p), φ(x) = x·log x − x + 1, are non-negative, so their sum does not cancel.
        safe = jnp.where(p > 0, p, 1.0)
        far = q * jnp.log(jnp.where(q > 0, q / safe, 1.0)) - q + p
        # Near x = 1 the plain form cancels. With z = (x − 1)/(x + 1), log x = 2·(z + z³/3 + z⁵/5 + …).
        ratio = (q - p) / safe
        near = jnp.abs(ratio) < _NEAR
        z = jnp.where(near, ratio, 0.0) / (2 + ratio)
        square = z * z
        series = jnp.zeros_like(z)
        for k in range(_SERIES, 1, -1):
            series = series * square + 1 / (2 * k - 1)
        close = p * (2 * square * (1 + (1 + z) * z * series) / (1 - z))
        # Products with zero and one: compiled code would branch on a choice between long expressions,
        # and not use vector instructions.
        terms = jnp.where(near, 1.0, 0.0) * close + jnp.where(near, 0.0, 1.0) * far
        return (terms + jnp.where((q > 0) & (p == 0), jnp.inf, 0.0)).sum(-1)

    @compiled_float64
    def project(self, p: Rows, q: Rows, geometry: Literal["euclidean", "kl"] = "euclidean") -> Rows:
        """Return the member nearest to q in Euclidean distance, or in KL(member‖q).

        In the Euclidean geometry q may be any vector. In the other its entries are non-negative.
        """
        p, q = jnp.asarray(p), jnp.asarray(q)
        if geometry == "kl":
            return self._project_kl(p, q)
        return self._project_euclidean(p, q)

    @compiled_float64
    def tilt(self, p: Rows, logit: Rows) -> Rows:
        """Return the member ∝ p·exp(t·logit) with the largest t ≤ 1 that the radius allows."""
        p, logit = jnp.asarray(p), jnp.asarray(logit)
        radius = self.row_radius(p)
        top = jnp.where(p > 0, logit, -jnp.inf).max(-1, keepdims=True)
        exponent = jnp.where(p > 0, logit - top, 0.0)

        def member(strength: Array) -> Array:
            weight = p * jnp.exp(strength[..., None] * exponent)
            return weight / weight.sum(-1, keepdims=True)

        whole = member(jnp.ones_like(radius))
        inside = self.divergence(p, whole) <= radius
        multiplier = jnp.minimum(self.respond(p, -exponent).multiplier, 1.0)
        # A zero multiplier with a positive radius means that the largest logit itself is in reach.
        strength = jnp.where(inside | ((multiplier == 0) & (radius > 0)), 1.0, multiplier)
        tilted = member(strength)
        # Only a search that stopped early leaves the ball by more than rounding; move back towards p.
        divergence = self.divergence(p, tilted)
        outside = divergence > radius * (1 + 1e-10) + 1e-15
        share = jnp.where(outside, radius / jnp.where(outside, divergence, 1.0), 1.0)[..., None]
        return (1 - share) * p + share * tilted

    def _project_kl(self, p: Array, q: Array) -> Array:
        """Return the member ∝ q^{1−t}·p^t, which is a tilt of p by log(q/p)."""
        support = (p > 0) & (q > 0)
        tiny = jnp.finfo(p.dtype).tiny
        logit = jnp.where(support, jnp.log(jnp.maximum(q, tiny)) - jnp.log(jnp.maximum(p, tiny)), 0)
        # A projection in KL(·‖q) keeps the support of q. Relative to p conditioned on that support,
        # the radius is smaller by −log of the mass of p on it.
        left = jnp.where(support, p, 0.0).sum(-1)
        room = self.radius + jnp.log(jnp.maximum(left, tiny))
        conditioned = jnp.where(support, p, 0.0) / jnp.maximum(left, tiny)[..., None]
        within = eqx.tree_at(lambda ball: ball.radius, self, jnp.maximum(room, 0.0))
        # If no member has the support of q, there is no projection, and p is returned.
        return jnp.where((room >= 0)[..., None], within.tilt(conditioned, logit), p)

    def _project_euclidean(self, p: Array, z: Array) -> Array:
        """Return argmin ‖q − z‖ over the ball: x(q − z) + log(q/p) + μ = 0, with 1/x the multiplier."""
        support = p > 0
        nearest = project_simplex(z, support)
        radius = self.row_radius(p)
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
    """Return a starting point whose square neither overflows nor underflows."""
    limits = jnp.finfo(start.dtype)
    return jnp.clip(start, limits.tiny**0.5, limits.max**0.5)


class _UnitTargets(NamedTuple):
    """Targets shifted and scaled to u in [0, 1] on the support of p, with their moments under p.

    Attributes:
        u: scaled targets; zero outside the support.
        at_minimum: whether an outcome has the smallest target.
        low: the smallest target.
        span: the largest target minus the smallest.
        mass_at_minimum: p(argmin y).
        mean: mean of u.
        second: mean of u².
    """

    u: Rows
    at_minimum: Bool[Array, "*rows K"]
    low: PerRow
    span: PerRow
    mass_at_minimum: PerRow
    mean: PerRow
    second: PerRow

    @classmethod
    def of(cls, p: Array, y: Array) -> _UnitTargets:
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


class _TiltedMoments(NamedTuple):
    """Log of the mass of p·exp(−βu), and mean and variance of u under it."""

    log_mass: PerRow
    mean: PerRow
    variance: PerRow

    @classmethod
    def of(cls, p: Array, scaled: _UnitTargets, beta: Array) -> _TiltedMoments:
        # For small β the divergence is of order β², and plain sums would lose it to rounding. There
        # the moments are the nominal ones plus a correction from exp(x) − 1.
        small = beta < _SMALL
        # The mass of p·exp(−βu) is at least exp(−β) and at least p(argmin). Multiplied by one over the
        # larger of the two it is at least one, so that nothing that matters underflows.
        lift = jnp.where(small, 0.0, jnp.minimum(beta, -jnp.log(scaled.mass_at_minimum)))
        exponent = lift[..., None] - beta[..., None] * scaled.u
        weight = p * jnp.where(small[..., None], jnp.expm1(exponent), jnp.exp(exponent))
        zeroth = weight.sum(-1)
        first = (weight * scaled.u).sum(-1)
        second = (weight * scaled.u * scaled.u).sum(-1)
        mass = jnp.where(small, 1 + zeroth, zeroth)
        mean = jnp.where(small, scaled.mean + first, first) / mass
        square = jnp.where(small, scaled.second + second, second) / mass
        log_mass = jnp.where(small, jnp.log1p(jnp.where(small, zeroth, 0.0)), jnp.log(mass) - lift)
        return cls(log_mass, mean, jnp.maximum(square - mean * mean, 0.0))

    def divergence(self, beta: Array) -> Array:
        return jnp.maximum(-beta * self.mean - self.log_mass, 0.0)


def _prox_row(log_p: Array, support: Array, z: Array, x: Array) -> Array:
    """Return the row q with x·q + log(q/p) = x·z − μ that sums to one, by Newton's method in μ.

    Each entry is ω(s)/x with the Wright function ω, ω + log ω = s = x·z − μ + log p + log x. The sum is
    decreasing and convex in μ, so Newton's method from the left does not overshoot.
    """
    scale = x[..., None]
    level = scale * z + log_p
    # At this μ the largest entry is at least one, so the root lies to the right.
    start = jnp.where(support, level - scale, -jnp.inf).max(-1)

    def entries(mu: Array) -> Array:
        omega = _wright_omega(level - mu[..., None] + jnp.log(scale))
        return jnp.where(support, omega / scale, 0.0)

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        mu, _, step = state
        q = entries(mu)
        newton = (q.sum(-1) - 1) / (q / (1 + scale * q)).sum(-1)
        # The sum decreases no faster than exp(−μ), so a step on its logarithm does not overshoot.
        move = jnp.maximum(newton, jnp.log(q.sum(-1)))
        settled = jnp.abs(move) <= 4 * jnp.finfo(mu.dtype).eps * jnp.maximum(1.0, jnp.abs(mu))
        return jnp.where(settled, mu, mu + move), settled, step + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        # Rows settle within about 20 steps; the limit only guards against rounding cycles.
        return ~jnp.all(state[1]) & (state[2] < 200)

    mu, _, _ = lax.while_loop(unfinished, body, (start, jnp.zeros(start.shape, bool), jnp.array(0)))
    return entries(mu)


def _wright_omega(s: Array) -> Array:
    """Return ω with ω + log ω = s, by Newton's method on log ω. Six steps reach rounding error."""
    log_omega = jnp.where(s < 1, s - jnp.exp(jnp.minimum(s, 1.0)) / 2, jnp.log(jnp.maximum(s, 1.0)))
    for _ in range(6):
        omega = jnp.exp(log_omega)
        log_omega = log_omega - (omega + log_omega - s) / (omega + 1)
    return jnp.exp(log_omega)
