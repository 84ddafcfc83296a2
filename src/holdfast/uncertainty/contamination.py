"""The contamination set: (1 − radius)·p + radius·u, u any distribution."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty.rows import SMALLEST, PerRow, Response, Rows
from holdfast.uncertainty.simplex import SetWithOpenSupport, SortedRows, project_simplex


class Contamination(SetWithOpenSupport):
    """All kernels (1 − radius)·p + radius·u around the nominal rows p, u any distribution.

    With probability `radius` anything may happen. The worst response puts u on the smallest target, so
    the minimum is (1 − radius)·p·y + radius·min y.

    Arguments:
        radius: a number or an (S, A) array; 0 leaves only the nominal row, 1 or more any row.
        within_support: whether u keeps the support of p. Otherwise it may lead to any state.
        outcomes: number of outcomes that exist, set by tables whose rows are padded.

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
    merges: ClassVar[bool] = True

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        del guess  # closed form
        p, y = jnp.asarray(p), jnp.asarray(y)
        radius = jnp.minimum(self.row_radius(p), 1.0)
        rows = SortedRows.of(p, y, self.allowed(p))
        kernel = (1 - radius)[..., None] * rows.p + radius[..., None] * rows.corner()
        return rows.response(kernel, lower=(1 - radius) * (rows.p * rows.u).sum(-1))

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return the largest share of an entry of p that q lacks; infinite outside the support."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        # An entry of q may have lost the smallest normal number to underflow.
        kept = jnp.where(p > 0, (q + SMALLEST) / jnp.where(p > 0, p, 1.0), 1.0)
        lacking = 1 - kept
        return jnp.where(self.outside(p, q), jnp.inf, jnp.clip(lacking.max(-1), 0.0, 1.0))

    @compiled_float64
    def project(self, p: Rows, q: Rows) -> Rows:
        """Return the member nearest to q, any vector, in Euclidean distance."""
        p, z = jnp.asarray(p), jnp.asarray(q)
        radius = jnp.minimum(self.row_radius(p), 1.0)
        kept = (1 - radius)[..., None] * p
        return kept + project_simplex(z - kept, self.allowed(p), radius)
