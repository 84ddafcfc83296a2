"""Values that are given in some states: the boundary values of a `reach` rule."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Boundaries(eqx.Module):
    """Boundary values of the signals of `reach` rules: V = pays in the states where `stops` is true.

    Attributes:
        stops: whether V is given in a state; nowhere for sums.
        pays: the given V, zero elsewhere.
    """

    stops: Bool[Array, "*n S"]
    pays: Float[Array, "*n S"]

    def negated(self) -> Boundaries:
        """Return the boundary values with their signs changed."""
        return Boundaries(self.stops, -self.pays)

    def outside(self, array: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return an array of one signal with zeros in the states where the signal stops."""
        shape = (-1,) + (1,) * (array.ndim - 1)
        return jnp.where(self.stops.reshape(shape), 0.0, array)
