"""What sets cut out of the simplex share: where mass may go, and Euclidean projections."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from holdfast.uncertainty._set import UncertaintySet


class SetWithOpenSupport(UncertaintySet):
    """A set that leads to any outcome at all, or only to those that p leads to, as the user says."""

    within_support: bool = eqx.field(static=True)

    def __init__(self, radius: ArrayLike, *, within_support: bool = False) -> None:
        super().__init__(radius)
        self.within_support = bool(within_support)

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return self.within_support

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON header and named arrays from which `from_arrays` makes the set again."""
        header, arrays = super().to_arrays()
        return {**header, "within_support": self.within_support}, arrays

    def allowed(self, p: Float[Array, "*rows K"]) -> Bool[Array, "*rows K"]:
        """The outcomes that a member may have mass on."""
        return p > 0 if self.within_support else jnp.ones(p.shape, bool)


class Sorted(NamedTuple):
    """Rows by their targets, the smallest first, and what is not allowed last, as if the largest.

    Targets are u ≥ 0, less their minimum. Sets compare them for equality, which is safe here only
    because a sort writes its result to memory: before it, a compiler may compute a target twice and
    round it differently.
    """

    p: Float[Array, "*rows K"]
    u: Float[Array, "*rows K"]
    low: Float[Array, "*rows"]
    at_minimum: Bool[Array, "*rows K"]
    order: Int[Array, "*rows K"]

    @classmethod
    def of(cls, p: Array, y: Array, allowed: Array) -> Sorted:
        index = lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1)
        key = jnp.where(allowed, y, jnp.inf)
        y, p, order = lax.sort((key, p, index), num_keys=1)
        allowed = y < jnp.inf
        top = jnp.where(allowed, y, -jnp.inf).max(-1, keepdims=True)
        u = jnp.where(allowed, y, top) - y[..., :1]
        return cls(p, u, y[..., 0], allowed & (u == 0), order)

    def take(self, row: Array) -> Array:
        """A row in this order."""
        return jnp.take_along_axis(row, self.order, axis=-1)

    def restore(self, row: Array) -> Array:
        """A row in this order in its own."""
        return jnp.take_along_axis(row, jnp.argsort(self.order, axis=-1), axis=-1)

    def corner(self) -> Array:
        """The distribution that shares its mass evenly among the minimisers."""
        return self.at_minimum / self.at_minimum.sum(-1, keepdims=True)


def fraction(part: Array, whole: Array) -> Array:
    """A part of a whole, between 0 and 1; nothing of nothing is nothing."""
    some = whole > 0
    return jnp.where(some, jnp.clip(part / jnp.where(some, whole, 1.0), 0.0, 1.0), 0.0)


def first_to_reach(
    level: Float[Array, "*rows K"], mass: Float[Array, "*rows K"], goal: Float[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Of levels in order, the one at which the mass so far first reaches the goal."""
    place = (jnp.cumsum(mass, axis=-1) < goal[..., None]).sum(-1, keepdims=True)
    return jnp.take_along_axis(level, jnp.minimum(place, level.shape[-1] - 1), axis=-1)[..., 0]


def project_simplex(
    z: Float[Array, "*rows K"],
    support: Bool[Array, "*rows K"],
    total: Float[Array, "*rows"] | float = 1.0,
) -> Float[Array, "*rows K"]:
    """The Euclidean projection of z onto the non-negative vectors of this total, by sorting."""
    total = jnp.broadcast_to(jnp.asarray(total, z.dtype), z.shape[:-1])[..., None]
    # Entries lower than the largest by the total or more get nothing, however low: so z may be of
    # any size.
    top = jnp.where(support, z, -jnp.inf).max(-1, keepdims=True)
    z = jnp.where(support, jnp.maximum(z - top, -total), -total)
    descending = -jnp.sort(-z, axis=-1)
    cumulative = jnp.cumsum(descending, axis=-1)
    active = descending * jnp.arange(1, z.shape[-1] + 1) > cumulative - total
    size = jnp.maximum(active.sum(-1, keepdims=True), 1)
    level = (jnp.take_along_axis(cumulative, size - 1, axis=-1) - total) / size
    return jnp.where(support, jnp.maximum(z - level, 0.0), 0.0)


def project_box(
    z: Float[Array, "*rows K"],
    lower: Float[Array, "*rows K"],
    upper: Float[Array, "*rows K"],
    total: Float[Array, "*rows"],
) -> Float[Array, "*rows K"]:
    """The Euclidean projection of z onto lower ≤ q ≤ upper with this total, by sorting.

    It is clip(z − μ, lower, upper), and its total falls in μ on lines between z − upper and z − lower.
    The bounds are within [0, 1] and the total is between theirs.
    """
    order = jnp.argsort(z, axis=-1)
    z, lower, upper = (jnp.take_along_axis(x, order, axis=-1) for x in (z, lower, upper))
    # Two entries further apart than one are never both off their bounds, whatever lies between them:
    # longer gaps are shortened, so that z may be of any size.
    z = jnp.cumsum(jnp.minimum(jnp.diff(z, axis=-1, prepend=z[..., :1]), 2.0), axis=-1)
    point = jnp.concatenate([z - upper, z - lower], axis=-1)
    turn = jnp.concatenate([-jnp.ones_like(z), jnp.ones_like(z)], axis=-1)
    point, turn = lax.sort((point, turn), num_keys=1)
    slope = jnp.cumsum(turn, axis=-1)
    fall = jnp.cumsum(slope[..., :-1] * jnp.diff(point, axis=-1), axis=-1)
    reached = upper.sum(-1, keepdims=True) + jnp.pad(fall, [(0, 0)] * (z.ndim - 1) + [(1, 0)])
    place = (reached > total[..., None]).sum(-1, keepdims=True) - 1
    at = jnp.maximum(place, 0)
    start, height, rate = (jnp.take_along_axis(x, at, axis=-1) for x in (point, reached, slope))
    beyond = jnp.maximum(height - total[..., None], 0.0) / jnp.maximum(-rate, 1.0)
    z = z - (start + beyond)
    # What rounding has left of the difference is shared by the entries that are off their bounds.
    q = jnp.clip(z, lower, upper)
    free = (z > lower) & (z < upper)
    rest = (total - q.sum(-1))[..., None] / jnp.maximum(free.sum(-1, keepdims=True), 1)
    q = jnp.where(free, jnp.clip(q + rest, lower, upper), q)
    return jnp.take_along_axis(q, jnp.argsort(order, axis=-1), axis=-1)
