"""The χ² ball: Σ (q − p)²/p ≤ radius."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from holdfast._support.precision import compiled_float64
from holdfast._support.roots import increasing_root
from holdfast.uncertainty.responding import RespondingSet
from holdfast.uncertainty.rows import EPS, SMALLEST, PerRow, Response, Rows
from holdfast.uncertainty.simplex import SortedRows, project_simplex


class ChiSquare(RespondingSet):
    """All kernels with Σ (q − p)²/p ≤ radius around the nominal rows p.

    The worst response to targets y is q ∝ p·max(η − y, 0), with the η at which the divergence equals
    the radius. If p(argmin y) ≥ 1/(1 + radius), it is p conditioned on the minimisers. By the
    Cauchy–Schwarz inequality η − √((1 + radius)·Σ p·max(η − y, 0)²) is a lower bound for every η.

    Arguments:
        radius: a number or an (S, A) array; 0 leaves only the nominal row, inf any row on its support.

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
    merges: ClassVar[bool] = True
    # Sums of two kinds, of u and of u², and the five operations of the bound.
    per_term: ClassVar[float] = 1.5
    besides: ClassVar[float] = 20.0

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        del guess  # closed form
        p, y = jnp.asarray(p), jnp.asarray(y)
        rows = SortedRows.of(p, y, p > 0)
        p, span = rows.p, rows.u[..., -1]
        u = rows.u / jnp.where(span > 0, span, 1.0)[..., None]
        # Below tiny^¼ the squares of u underflow in the products. Decreasing targets to zero keeps the
        # lower bound valid.
        u = jnp.where(u < jnp.finfo(p.dtype).tiny ** 0.25, 0.0, u)
        radius = self.row_radius(p)
        at_minimum = (p > 0) & (u == 0)
        mass = jnp.where(at_minimum, p, 0.0).sum(-1)
        concentrated = (jnp.where(at_minimum, 0.0, p).sum(-1) <= radius * mass) & (radius > 0)
        trivial = concentrated | (radius == 0) | (span == 0)
        finite = jnp.where(trivial, 1.0, radius)
        part, depth = _tilt(p, u, finite)
        tilted = jnp.where(part.inside, jnp.maximum(1 - part.away / depth[..., None], 0.0), 0.0)
        tilted = tilted / (p * tilted).sum(-1, keepdims=True)
        ratio = jnp.where(concentrated[..., None], at_minimum / mass[..., None], tilted)
        # χ² is quadratic on the segment from p to q, so this share of the way lies inside. A product
        # of p and q/p cannot overflow, a square of q/p can.
        away = ratio - 1
        reached = (p * away * away).sum(-1) * (1 + EPS * (p.shape[-1] + 8))
        share = jnp.sqrt(jnp.minimum(1.0, radius / jnp.maximum(reached, jnp.finfo(p.dtype).tiny)))
        plain = trivial & ~concentrated
        kernel = p * jnp.where(plain[..., None], 1.0, 1 + share[..., None] * away)
        bound = part.bound(depth, finite) - part.bound_rounding(finite)
        dual = jnp.where(trivial, (p * u).sum(-1), jnp.maximum(bound, 0.0))
        return rows.response(
            jnp.maximum(kernel, 0.0), lower=span * jnp.where(concentrated, 0.0, dual)
        )

    @compiled_float64
    def member_share(self, p: Rows, q: Rows) -> PerRow:
        """Return a share t in [0, 1] such that p + t·(q − p) is a proved member of the set."""
        # The divergence has a relative error only, and loses at most the smallest number to underflow.
        return self._share_of_divergence(p, q, SMALLEST * p.shape[-1])

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return Σ (q − p)²/p; infinite if q has mass where p has none."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        away = (q - p) / jnp.where(p > 0, p, 1.0)
        return jnp.where((q > 0) & (p == 0), jnp.inf, p * away * away).sum(-1)

    @compiled_float64
    def project(self, p: Rows, q: Rows) -> Rows:
        """Return the member nearest to z = q, any vector, in Euclidean distance.

        With 1/x the multiplier of the ball, it is p·max(1 + x·(z − ν), 0)/(1 + x·p), with the ν at
        which it sums to one.
        """
        p, z = jnp.asarray(p), jnp.asarray(q)
        support = p > 0
        nearest = project_simplex(z, support)
        radius = self.row_radius(p)
        inside = self.divergence(p, nearest) <= radius
        z = jnp.where(support, z - jnp.where(support, z, -jnp.inf).max(-1, keepdims=True), 0.0)
        # The search for x uses the size of z − p as its unit, because z may have any size.
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
        # With this tolerance the search ends at rounding error: the edge is where members matter.
        root = increasing_root(divergence_and_slope, radius, start, quadratic=True, tolerance=1e-17)
        edge = p * (1 + root.aux)
        edge = edge / edge.sum(-1, keepdims=True)
        reached = jnp.maximum(self.divergence(p, edge), jnp.finfo(p.dtype).tiny)
        edge = p + jnp.sqrt(jnp.minimum(1.0, radius / reached))[..., None] * (edge - p)
        return jnp.where((radius == 0)[..., None], p, jnp.where(inside[..., None], nearest, edge))


class _Part(NamedTuple):
    """A part of a row's outcomes.

    Attributes:
        inside: whether an outcome belongs to the part.
        weight: p in the part, zero outside.
        mass: mass of p in the part.
        rest: mass of p outside.
        anchor: u of the heaviest outcome in the part.
        offset: mean of u in the part, minus the anchor.
        away: u minus the mean.
        deviation: standard deviation of u in the part.
    """

    inside: Bool[Array, "*rows K"]
    weight: Float[Array, "*rows K"]
    mass: Float[Array, "*rows"]
    rest: Float[Array, "*rows"]
    anchor: Float[Array, "*rows"]
    offset: Float[Array, "*rows"]
    away: Float[Array, "*rows K"]
    deviation: Float[Array, "*rows"]

    @classmethod
    def of(cls, p: Array, u: Array, inside: Array) -> _Part:
        weight = jnp.where(inside, p, 0.0)
        mass = weight.sum(-1)
        # If the heaviest outcome has nearly all the mass, the mean is so close to it that their plain
        # difference would be rounding error.
        anchor = jnp.take_along_axis(u, weight.argmax(-1, keepdims=True), axis=-1)
        offset = (weight * (u - anchor)).sum(-1) / mass
        away = (u - anchor) - offset[..., None]
        # Squares of small differences times small weights would underflow without the scale, and a
        # large radius would multiply what is lost.
        scale = _scale(p)
        variance = ((weight * scale**2) * away * away).sum(-1) / mass
        rest = jnp.where(inside, 0.0, p).sum(-1)
        deviation = jnp.sqrt(variance) / scale
        return cls(inside, weight, mass, rest, anchor[..., 0], offset, away, deviation)

    def surplus(self, radius: Array) -> Array:
        """Return (1 + radius)·mass − 1."""
        return radius * self.mass - self.rest

    def bound(self, depth: Array, radius: Array) -> Array:
        """Return η − √((1 + radius)·Σ p·(η − u)²) over the part, for η = mean + depth.

        It is a lower bound on the minimum if no outcome outside the part is below η.

        The difference of the two large terms is expanded, because it would cancel.
        """
        mass = (1 + radius) * self.mass
        ratio = self.deviation / depth
        root = jnp.sqrt(mass) * jnp.sqrt(1 + ratio * ratio)
        loss = self.surplus(radius) * depth + mass * (ratio * self.deviation)
        return self.anchor + (self.offset - loss / (1 + root))

    def bound_rounding(self, radius: Array) -> Array:
        """Return how much the bound may change by the rounding error of the mean.

        The mean is off by (n/2 + 2)·eps times the mean distance from the anchor; the bound changes by
        √((1 + radius)·mass) times as much.
        """
        distance = jnp.where(self.inside, jnp.abs(self.away + self.offset[..., None]), 0.0)
        mean = (self.weight * distance).sum(-1) / self.mass
        terms = self.inside.sum(-1) / 2 + 2
        return EPS * terms * mean * jnp.sqrt((1 + radius) * self.mass)


def _scale(p: Array) -> float:
    """Return a power of two: weights times its square have products that do not underflow.

    2²⁵⁰ in double precision. The square of the square does not overflow.
    """
    return 2.0 ** (int(jnp.finfo(p.dtype).maxexp) // 4 - 6)


def _tilt(p: Array, u: Array, radius: Array) -> tuple[_Part, Array]:
    """Return the part u < η and the depth, η minus its mean, at which χ² of the tilt is the radius.

    The tilt is q ∝ p·max(η − u, 0), on sorted rows. Its χ² + 1 is Σ p·max(η − u, 0)² divided by the
    square of Σ p·max(η − u, 0), which decreases in η. The sums at the points u are built from
    non-negative terms; between two points η has a closed form.
    """
    step = jnp.diff(u, axis=-1)
    # Multiplied by the square of the scale, so that products of small numbers do not underflow.
    scale = _scale(p)
    below = jnp.cumsum(p * scale**2, axis=-1)[..., :-1]
    first = jnp.cumsum(below * step, axis=-1)
    second = jnp.cumsum(step * (first - below * step + first), axis=-1)
    # Points at which the ratio is still too large. Ties for the minimum have empty sums.
    allowed = ((1 + radius) / scale)[..., None] * (first / scale)
    short = (second > allowed * first) | (first == 0)
    place = short.sum(-1, keepdims=True)
    part = _Part.of(p, u, jnp.arange(u.shape[-1]) <= place)
    surplus = part.surplus(radius)
    inner = (surplus > 0) & (part.deviation > 0)
    depth = jnp.where(inner, part.deviation / jnp.sqrt(jnp.where(inner, surplus, 1.0)), jnp.inf)
    ends = jnp.pad(part.away, [(0, 0)] * (u.ndim - 1) + [(0, 1)], constant_values=jnp.inf)
    left, right = (jnp.take_along_axis(ends, place + k, axis=-1)[..., 0] for k in (0, 1))
    # An outcome of the part just above η only lowers the bound; one outside must not be below η. Hence
    # η stays below the next outcome by the rounding error of their distance.
    right = right * (1 - 4 * EPS) - 4 * EPS * jnp.abs(part.offset)
    return part, jnp.maximum(jnp.clip(depth, left, right), jnp.finfo(p.dtype).tiny)


def _shift(p: Array, z: Array, x: Array) -> Array:
    """Return ν with Σ p·max(1 + x·(z − ν), 0)/(1 + x·p) = 1, for rows with the largest z first."""
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
    """Return χ² of q = p·max(1 + x·(z − ν), 0)/(1 + x·p), its slope in x·size, and q/p − 1."""
    x = x[..., None]
    active = (1 + x * (z - shift[..., None]) > 0) & (p > 0)
    stiffness = 1 / (1 + x * p)
    weight = jnp.where(active, p * stiffness, 0.0)
    # Compute ν again from the active entries; the sorted sums are less exact.
    lost = jnp.where(active, 0.0, p).sum(-1, keepdims=True)
    shift = ((weight * (z - p)).sum(-1, keepdims=True) - lost / x) / weight.sum(-1, keepdims=True)
    gap = z - p - shift
    away = jnp.where(active, jnp.maximum(x * gap * stiffness, -1.0), -1.0)
    drift = (weight * stiffness * gap).sum(-1, keepdims=True) / weight.sum(-1, keepdims=True)
    velocity = jnp.where(active, stiffness * (gap * stiffness - drift), 0.0)
    away = jnp.where(p > 0, away, 0.0)
    slope = 2 * (p * away * velocity).sum(-1) / size
    return (p * away * away).sum(-1), jnp.maximum(slope, 0.0), away
