"""The set of conditional value at risk: no outcome becomes more likely than (1 + radius) times."""

from typing import ClassVar

import jax.numpy as jnp

from holdfast.uncertainty import UncertaintySet


class CVaR(UncertaintySet):
    """All kernels with q ≤ (1 + radius)·p. Their worst case is the CVaR at level 1/(1 + radius)."""

    name: ClassVar[str] = "cvar"
    merges: ClassVar[bool] = True

    def worst_response(self, p, y):
        """Fill the smallest targets up to their caps."""
        order = jnp.argsort(y, axis=-1)
        cap = jnp.take_along_axis(self._cap(p), order, axis=-1)
        q = jnp.clip(1 - (jnp.cumsum(cap, axis=-1) - cap), 0, cap)
        return jnp.take_along_axis(q, jnp.argsort(order, axis=-1), axis=-1)

    def dual_value(self, p, y):
        """t − Σ cap·max(t − y, 0), a lower bound for every t (Rockafellar and Uryasev 2000)."""
        q = self.worst_response(p, y)
        t = jnp.where(q > 0, y, -jnp.inf).max(-1, keepdims=True)
        return (t - (self._cap(p) * jnp.maximum(t - y, 0)).sum(-1, keepdims=True))[..., 0]

    def divergence(self, p, q):
        """max q/p − 1."""
        ratio = jnp.where(p > 0, q / jnp.where(p > 0, p, 1), jnp.where(q > 0, jnp.inf, 1))
        return ratio.max(-1) - 1

    def _cap(self, p):
        radius = self.row_radius(p)[..., None]
        return jnp.where(p > 0, jnp.minimum((1 + radius) * p, 1), 0)
