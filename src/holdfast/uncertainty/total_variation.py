"""The total variation ball: ½‖q − p‖₁ ≤ radius."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty._counts import total_variation_from_counts
from holdfast.uncertainty._set import Response
from holdfast.uncertainty._simplex import (
    SetWithOpenSupport,
    Sorted,
    first_to_reach,
    fraction,
    project_box,
    project_simplex,
)


class TotalVariation(SetWithOpenSupport):
    """All kernels whose rows differ from the nominal rows p in at most `radius` of their mass.

    The worst response to targets y takes that much mass from the largest targets and puts it on the
    smallest. For every level t ≥ min y, p·min(y, t) − radius·(t − min y) is a lower bound: capping y
    at t only lowers it, and moving mass changes the mean of capped targets by no more than their
    span. At the level down to which mass is taken the bound is met.

    Arguments:
        radius: a number, or an (S, A) array; 0 leaves a row nominal, 1 or more frees it.
        within_support: whether mass may go only to outcomes that p gives mass to. Otherwise it may
            go to any state.

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

        Jointly over all (s, a), by the inequality of Weissman and others (2003). Where not every state
        is a possible successor, the set stays within the support, and what was not seen gets a little
        mass, which the radius makes up for.
        Unvisited pairs get a uniform row, and radius 1.
        The numbers of visits must not depend on what was seen.

        Arguments:
            counts: (S, A, S) transitions that were seen; or (S, A, K), with `successors`.
            confidence: in (0, 1).
            successors: (S, A, K), the state that each column of the counts is about; the kernel is then
                a `Kernel`.
            support: of the counts' shape, which of them are possible at all; all if left out. The less
                is possible, the smaller the set.
        """
        kernel, radius, within = total_variation_from_counts(
            counts, confidence, successors, support
        )
        return kernel, cls(radius, within_support=within)

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
        radius = self._radius(p)
        rows = Sorted.of(p, y, self.allowed(p))
        p, u = rows.p, rows.u
        level = first_to_reach(u[..., ::-1], p[..., ::-1], radius)
        # Everything above the level goes, and of what is on it what is left to be moved.
        above, on = u > level[..., None], u == level[..., None]
        gone = jnp.where(above, p, 0.0).sum(-1)
        share = fraction(radius - gone, jnp.where(on, p, 0.0).sum(-1))
        share = jnp.where(level > 0, share, 0.0)[..., None]  # at the minimum there is no need
        moved = p * jnp.where(above, 1.0, jnp.where(on, share, 0.0))
        kernel = p - moved + rows.corner() * moved.sum(-1, keepdims=True)
        return Response(
            kernel=rows.restore(kernel),
            value=rows.low + (kernel * u).sum(-1),
            lower=rows.low + (p * jnp.minimum(u, level[..., None])).sum(-1) - radius * level,
            multiplier=jnp.zeros_like(rows.low),
        )

    @compiled_float64
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """½‖q − p‖₁, infinite where q has mass outside a support that it has to keep."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        distance = jnp.abs(q - p).sum(-1) / 2
        outside = ((q > 0) & ~self.allowed(p)).any(-1)
        return jnp.where(outside, jnp.inf, distance)

    @compiled_float64
    def project(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q, any vector, in Euclidean distance.

        On the edge of the ball gains and losses of mass have the radius as their total each, so they
        part into two projections: of q − p onto a simplex, and of p − q onto a box below p.
        """
        p, z = jnp.asarray(p), jnp.asarray(q)
        allowed, radius = self.allowed(p), self._radius(p)
        nearest = project_simplex(z, allowed)
        inside = self.divergence(p, nearest) <= radius
        gain = project_simplex(z - p, allowed, radius)
        loss = project_box(jnp.where(allowed, p - z, 0.0), jnp.zeros_like(p), p, radius)
        return jnp.where(inside[..., None], nearest, p + (gain - loss))

    def _radius(self, p: Array) -> Array:
        return jnp.broadcast_to(jnp.minimum(jnp.asarray(self.radius, p.dtype), 1.0), p.shape[:-1])
