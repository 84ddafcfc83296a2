"""The χ² ball: Σ (q − p)²/p ≤ radius."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from holdfast._support.precision import compiled_float64
from holdfast._support.roots import increasing_root
from holdfast.uncertainty._set import Response, UncertaintySet
from holdfast.uncertainty._simplex import Sorted, project_simplex


class ChiSquare(UncertaintySet):
    """All kernels whose rows have Σ (q − p)²/p ≤ radius around the nominal rows p.

    The worst response to targets y is q ∝ p·max(η − y, 0), with the η at which the divergence is the
    radius; where p(argmin y) ≥ 1/(1 + radius), q is p conditioned on the minimisers. For every η,
    η − √((1 + radius)·Σ p·max(η − y, 0)²) is a lower bound by Cauchy and Schwarz, so what was found is
    certified whichever η it was found with.

    Arguments:
        radius: a number, or an (S, A) array; 0 leaves a row nominal, inf frees it within its support.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> ball = hf.ChiSquare(0.16)
        >>> p, y = np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]])
        >>> q = ball.worst_response(p, y)
        >>> print(np.round(q, 3), np.round(ball.divergence(p, q), 3))
        [[0.7 0.3]] [0.16]
    """

    name: ClassVar[str] = "chi-square"

    @compiled_float64
    def respond(
        self,
        p: Float[Array, "*rows K"],
        y: Float[Array, "*rows K"],
        guess: Float[Array, "*rows"] | None = None,
    ) -> Response:
        """The worst response to y, with the dual value that certifies it."""
        del guess  # there is no search
        p, y = jnp.asarray(p), jnp.asarray(y)
        rows = Sorted.of(p, y, p > 0)
        p, span = rows.p, rows.u[..., -1]
        u = rows.u / jnp.where(span > 0, span, 1.0)[..., None]
        # Too near the minimum for squares to tell. Lower targets leave the lower bound one.
        u = jnp.where(u < jnp.finfo(p.dtype).tiny ** 0.25, 0.0, u)
        radius = jnp.broadcast_to(jnp.asarray(self.radius, p.dtype), span.shape)
        at_minimum = (p > 0) & (u == 0)
        mass = jnp.where(at_minimum, p, 0.0).sum(-1)
        concentrated = (jnp.where(at_minimum, 0.0, p).sum(-1) <= radius * mass) & (radius > 0)
        trivial = concentrated | (radius == 0) | (span == 0)
        finite = jnp.where(trivial, 1.0, radius)
        part, depth = _tilt(p, u, finite)
        tilted = jnp.where(part.inside, jnp.maximum(1 - part.away / depth[..., None], 0.0), 0.0)
        tilted = tilted / (p * tilted).sum(-1, keepdims=True)
        # χ² is quadratic along the way from p to q, so this share puts q inside.
        reached = (p * (tilted - 1) ** 2).sum(-1)
        share = jnp.sqrt(jnp.minimum(1.0, finite / jnp.maximum(reached, jnp.finfo(p.dtype).tiny)))
        factor = jnp.where(trivial[..., None], 1.0, 1 + share[..., None] * (tilted - 1))
        pointed = at_minimum / mass[..., None]
        kernel = p * jnp.where(concentrated[..., None], pointed, factor)
        dual = jnp.where(trivial, (p * u).sum(-1), jnp.maximum(part.bound(depth, finite), 0.0))
        return Response(
            kernel=rows.restore(kernel),
            value=rows.low + (kernel * rows.u).sum(-1),
            lower=rows.low + span * jnp.where(concentrated, 0.0, dual),
            multiplier=jnp.zeros_like(span),
        )

    @compiled_float64
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """Σ (q − p)²/p, infinite where q has mass that p has not."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        away = (q - p) / jnp.where(p > 0, p, 1.0)
        return jnp.where((q > 0) & (p == 0), jnp.inf, p * away * away).sum(-1)

    @compiled_float64
    def project(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q, any vector, in Euclidean distance.

        With 1/x the multiplier of the ball, it is p·max(1 + x·(z − ν), 0)/(1 + x·p) for the z that was
        given, and the ν at which it sums to one.
        """
        p, z = jnp.asarray(p), jnp.asarray(q)
        support = p > 0
        nearest = project_simplex(z, support)
        radius = jnp.broadcast_to(jnp.asarray(self.radius, p.dtype), p.shape[:-1])
        inside = self.divergence(p, nearest) <= radius
        z = jnp.where(support, z - jnp.where(support, z, -jnp.inf).max(-1, keepdims=True), 0.0)
        # x is found in units of the size of z − p, which may be anything.
        size = jnp.maximum(jnp.abs(z - p).max(-1), jnp.finfo(p.dtype).tiny)
        order = jnp.argsort(jnp.where(support, -z, jnp.inf), axis=-1)
        sorted_p, sorted_z = (jnp.take_along_axis(row, order, axis=-1) for row in (p, z))

        def divergence_and_slope(x: Array) -> tuple[Array, Array, Array]:
            x = x / size
            return _prox(p, z, _shift(sorted_p, sorted_z, x), x, size)

        gap = (z - p) / size[..., None]
        variance = (p * (gap - (p * gap).sum(-1, keepdims=True)) ** 2).sum(-1)
        tiny, most = jnp.finfo(p.dtype).tiny ** 0.5, jnp.finfo(p.dtype).max ** 0.5
        start = jnp.clip(jnp.sqrt(radius / jnp.maximum(variance, tiny**2)), tiny, most)
        start = jnp.where(inside | (radius == 0), 0.0, start)
        root = increasing_root(divergence_and_slope, radius, start, quadratic=True, tolerance=1e-17)
        edge = p * (1 + root.aux)
        edge = edge / edge.sum(-1, keepdims=True)
        reached = jnp.maximum(self.divergence(p, edge), jnp.finfo(p.dtype).tiny)
        edge = p + jnp.sqrt(jnp.minimum(1.0, radius / reached))[..., None] * (edge - p)
        return jnp.where((radius == 0)[..., None], p, jnp.where(inside[..., None], nearest, edge))


class _Part(NamedTuple):
    """A part of a row's outcomes: p's mass inside and outside, mean and variance of u inside."""

    inside: Bool[Array, "*rows K"]
    mass: Float[Array, "*rows"]
    rest: Float[Array, "*rows"]
    anchor: Float[Array, "*rows"]
    offset: Float[Array, "*rows"]  # the mean, less the anchor
    away: Float[Array, "*rows K"]  # u less the mean
    variance: Float[Array, "*rows"]

    @classmethod
    def of(cls, p: Array, u: Array, inside: Array) -> _Part:
        weight = jnp.where(inside, p, 0.0)
        mass = weight.sum(-1)
        # Measured from the heaviest outcome: where it has nearly all the mass, the mean is so near to
        # it that a plain difference of the two would be all rounding.
        anchor = jnp.take_along_axis(u, weight.argmax(-1, keepdims=True), axis=-1)
        offset = (weight * (u - anchor)).sum(-1) / mass
        away = (u - anchor) - offset[..., None]
        variance = (weight * away**2).sum(-1) / mass
        rest = jnp.where(inside, 0.0, p).sum(-1)
        return cls(inside, mass, rest, anchor[..., 0], offset, away, variance)

    def surplus(self, radius: Array) -> Array:
        """(1 + radius)·mass − 1."""
        return radius * self.mass - self.rest

    def bound(self, depth: Array, radius: Array) -> Array:
        """η − √((1 + radius)·Σ p·max(η − u, 0)²) for η the mean plus the depth, u < η the part.

        The two large terms are subtracted by hand.
        """
        mass = (1 + radius) * self.mass
        ratio = self.variance / depth
        root = jnp.sqrt(mass * (1 + ratio / depth))
        return self.anchor + (
            self.offset - (self.surplus(radius) * depth + mass * ratio) / (1 + root)
        )


def _tilt(p: Array, u: Array, radius: Array) -> tuple[_Part, Array]:
    """The part u < η, and how far η is above its mean, where χ² of q ∝ p·max(η − u, 0) is the radius.

    Rows are sorted. That χ² + 1 is Σ p·max(η − u, 0)² over the square of Σ p·max(η − u, 0), and falls
    in η. Sums at the points u are built from terms that are not negative; between two points η is in
    closed form.
    """
    step = jnp.diff(u, axis=-1)
    below = jnp.cumsum(p, axis=-1)[..., :-1]
    first = jnp.cumsum(below * step, axis=-1)
    second = jnp.cumsum(step * (first - below * step + first), axis=-1)
    # At these points the ratio is still too large. At ties for the minimum there are no sums yet.
    short = (second > (1 + radius)[..., None] * first * first) | (first == 0)
    place = short.sum(-1, keepdims=True)
    part = _Part.of(p, u, jnp.arange(u.shape[-1]) <= place)
    surplus = part.surplus(radius)
    inner = (surplus > 0) & (part.variance > 0)
    depth = jnp.where(inner, jnp.sqrt(part.variance / jnp.where(inner, surplus, 1.0)), jnp.inf)
    ends = jnp.pad(part.away, [(0, 0)] * (u.ndim - 1) + [(0, 1)], constant_values=jnp.inf)
    left, right = (jnp.take_along_axis(ends, place + k, axis=-1)[..., 0] for k in (0, 1))
    depth = jnp.clip(depth, left, right)
    # Which entries are below η is said again, so that the bound rests on η alone.
    again = _Part.of(p, u, (p > 0) & (part.away < depth[..., None]))
    return again, depth + ((part.anchor - again.anchor) + (part.offset - again.offset))


def _shift(p: Array, z: Array, x: Array) -> Array:
    """The ν at which Σ p·max(1 + x·(z − ν), 0)/(1 + x·p) = 1; rows sorted, the largest z first."""
    x = x[..., None]
    weight = p / (1 + x * p)
    lost = p.sum(-1, keepdims=True) - jnp.cumsum(p, axis=-1)
    shift = (jnp.cumsum(weight * (z - p), axis=-1) - jnp.maximum(lost, 0.0) / x) / jnp.cumsum(
        weight, axis=-1
    )
    active = (1 + x * (z - shift) > 0) & (p > 0)
    last = jnp.maximum(active.sum(-1, keepdims=True) - 1, 0)
    return jnp.take_along_axis(shift, last, axis=-1)[..., 0]


def _prox(p: Array, z: Array, shift: Array, x: Array, size: Array) -> tuple[Array, Array, Array]:
    """χ² of p·max(1 + x·(z − ν), 0)/(1 + x·p), its slope in x·size, and its entries over p, less 1."""
    x = x[..., None]
    active = (1 + x * (z - shift[..., None]) > 0) & (p > 0)
    stiffness = 1 / (1 + x * p)
    weight = jnp.where(active, p * stiffness, 0.0)
    # ν again from the entries that it leaves, which the sorted sums give less exactly.
    lost = jnp.where(active, 0.0, p).sum(-1, keepdims=True)
    shift = ((weight * (z - p)).sum(-1, keepdims=True) - lost / x) / weight.sum(-1, keepdims=True)
    gap = z - p - shift
    away = jnp.where(active, jnp.maximum(x * gap * stiffness, -1.0), -1.0)
    drift = (weight * stiffness * gap).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
    velocity = jnp.where(active, stiffness * (gap * stiffness - drift), 0.0)
    away = jnp.where(p > 0, away, 0.0)
    slope = 2 * (p * away * velocity).sum(-1) / size
    return (p * away * away).sum(-1), jnp.maximum(slope, 0.0), away
