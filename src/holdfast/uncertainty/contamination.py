"""Contamination: (1 − radius)·p + radius·u, u any distribution."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty._set import Response
from holdfast.uncertainty._simplex import SetWithOpenSupport, Sorted, project_simplex


class Contamination(SetWithOpenSupport):
    """All kernels that follow the nominal rows p but for a share `radius` of the time.

    The rest of the time anything may happen: the members are (1 − radius)·p + radius·u with u any
    distribution. The worst one puts u on the smallest target, so the minimum is
    (1 − radius)·p·y + radius·min y.

    Arguments:
        radius: a number, or an (S, A) array; 0 leaves a row nominal, 1 or more frees it.
        within_support: whether u has mass only on outcomes that p gives mass to. Otherwise it may
            lead to any state.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> p, y = np.array([[0.5, 0.5, 0.0]]), np.array([[1.0, 2.0, 0.0]])
        >>> print(hf.Contamination(0.1).worst_response(p, y))
        [[0.45 0.45 0.1 ]]
        >>> print(hf.Contamination(0.1, within_support=True).worst_response(p, y))
        [[0.55 0.45 0.  ]]
    """

    name: ClassVar[str] = "contamination"

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
        kernel = (1 - radius)[..., None] * rows.p + radius[..., None] * rows.corner()
        return Response(
            kernel=rows.restore(kernel),
            value=rows.low + (kernel * rows.u).sum(-1),
            lower=rows.low + (1 - radius) * (rows.p * rows.u).sum(-1),
            multiplier=jnp.zeros_like(rows.low),
        )

    @compiled_float64
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """The smallest radius at which q is a member: the largest share of p that q lacks."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        lacking = jnp.where(p > 0, 1 - q / jnp.where(p > 0, p, 1.0), 0.0)
        outside = ((q > 0) & ~self.allowed(p)).any(-1)
        return jnp.where(outside, jnp.inf, jnp.clip(lacking.max(-1), 0.0, 1.0))

    @compiled_float64
    def project(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q, any vector, in Euclidean distance."""
        p, z = jnp.asarray(p), jnp.asarray(q)
        radius = self._radius(p)
        kept = (1 - radius)[..., None] * p
        return kept + project_simplex(z - kept, self.allowed(p), radius)

    def _radius(self, p: Array) -> Array:
        return jnp.broadcast_to(jnp.minimum(jnp.asarray(self.radius, p.dtype), 1.0), p.shape[:-1])
