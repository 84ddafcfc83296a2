"""The total variation ball: ½‖q − p‖₁ ≤ radius."""

from __future__ import annotations

from typing import ClassVar, Self

import jax.numpy as jnp

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty.counts import Estimate, FromCounts, VisitCounts, total_variation_around
from holdfast.uncertainty.rows import PerRow, Response, Rows
from holdfast.uncertainty.simplex import (
    SetWithOpenSupport,
    SortedRows,
    first_to_reach,
    fraction,
    project_box,
    project_simplex,
)


class TotalVariation(SetWithOpenSupport, FromCounts):
    """All kernels with ½‖q − p‖₁ ≤ radius around the nominal rows p.

    The worst response to targets y moves that much mass from the largest targets to the smallest. For
    every level t ≥ min y, p·min(y, t) − radius·(t − min y) is a lower bound: capping y at t decreases
    it, and moving mass changes the mean of the capped targets by at most their span. The bound is tight
    at the smallest target that loses mass.

    Arguments:
        radius: a number or an (S, A) array; 0 leaves only the nominal row, 1 or more any row.
        within_support: whether members keep the support of p. Otherwise mass may move to any state.
        outcomes: number of outcomes that exist, set by tables whose rows are padded.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> p, y = np.array([[0.5, 0.5, 0.0]]), np.array([[1.0, 2.0, 0.0]])
        >>> print(hf.TotalVariation(0.1).worst_response(p, y))
        [[0.5 0.4 0.1]]
        >>> print(hf.TotalVariation(0.1, within_support=True).worst_response(p, y))
        [[0.6 0.4 0. ]]
    """

    name: ClassVar[str] = "total-variation"
    merges: ClassVar[bool] = True

    @classmethod
    def _around(cls, given: VisitCounts) -> tuple[Estimate, Self]:
        rows, radius, within = total_variation_around(given)
        return rows, cls(radius, within_support=within)

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        del guess  # closed form
        p, y = jnp.asarray(p), jnp.asarray(y)
        radius = jnp.minimum(self.row_radius(p), 1.0)
        rows = SortedRows.of(p, y, self.allowed(p))
        p, u = rows.p, rows.u
        level = first_to_reach(u[..., ::-1], p[..., ::-1], radius)
        # All mass above the level moves, and a share of the mass at the level.
        above, on = u > level[..., None], u == level[..., None]
        gone = jnp.where(above, p, 0.0).sum(-1)
        share = fraction(radius - gone, jnp.where(on, p, 0.0).sum(-1))
        share = jnp.where(level > 0, share, 0.0)[..., None]  # mass at the minimum stays
        moved = p * jnp.where(above, 1.0, jnp.where(on, share, 0.0))
        kernel = p - moved + rows.corner() * moved.sum(-1, keepdims=True)
        capped = (p * jnp.minimum(u, level[..., None])).sum(-1)
        return rows.response(kernel, lower=capped - radius * level)

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return ½‖q − p‖₁; infinite if q leaves a support that it must keep."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        return jnp.where(self.outside(p, q), jnp.inf, jnp.abs(q - p).sum(-1) / 2)

    @compiled_float64
    def project(self, p: Rows, q: Rows) -> Rows:
        """Return the member nearest to q, any vector, in Euclidean distance.

        On the surface of the ball gains and losses of mass both sum to the radius. The problem
        therefore separates: q − p is projected onto a simplex, and p − q onto a box below p.
        """
        p, z = jnp.asarray(p), jnp.asarray(q)
        allowed, radius = self.allowed(p), jnp.minimum(self.row_radius(p), 1.0)
        nearest = project_simplex(z, allowed)
        inside = self.divergence(p, nearest) <= radius
        gain = project_simplex(z - p, allowed, radius)
        loss = project_box(jnp.where(allowed, p - z, 0.0), jnp.zeros_like(p), p, radius)
        return jnp.where(inside[..., None], nearest, p + (gain - loss))
