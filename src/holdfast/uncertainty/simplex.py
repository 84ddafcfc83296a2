"""Operations on rows of the simplex: sorting by target, and Euclidean projections."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int
from numpy.typing import ArrayLike

from holdfast.uncertainty.responding import RespondingSet
from holdfast.uncertainty.rows import PerRow, Response, Rows

# Rows of up to this many outcomes are sorted by exchanges of neighbours, K²/2 of them.
_NARROW = 8


class SetWithOpenSupport(RespondingSet):
    """A set whose members may have mass on every outcome, or on the support of p only.

    Arguments:
        radius: a number or an (S, A) array.
        within_support: whether members keep the support of p.
        outcomes: number of outcomes that exist, set by tables whose rows are padded.
    """

    shared: ClassVar[tuple[str, ...]] = ("outcomes",)

    within_support: bool = eqx.field(static=True)
    outcomes: Any = np.inf

    def __init__(
        self, radius: ArrayLike, *, within_support: bool = False, outcomes: ArrayLike = np.inf
    ) -> None:
        super().__init__(radius)
        self.within_support = bool(within_support)
        self.outcomes = np.asarray(outcomes, np.float64)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a JSON header and named arrays, from which `from_arrays` makes the set again."""
        header, arrays = super().to_arrays()
        del arrays["outcomes"]
        return header, arrays

    def padded(self, states: int, width: int) -> Self:
        """Return the set on rows to which outcomes were added that no member may have mass on."""
        del width
        return self._with(outcomes=np.asarray(float(states)))

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return self.within_support

    def allowed(self, p: Rows) -> Bool[Array, "*rows K"]:
        """Return which outcomes a member may have mass on."""
        return self.reach(p)

    def reach(self, p: Any) -> Any:
        """Return which outcomes some member gives mass to; a table leaves out the others."""
        return p > 0 if self.within_support else existing(p, self.outcomes)

    def outside(self, p: Rows, q: Rows) -> Bool[Array, "*rows"]:
        """Return whether q has mass on an outcome that is not allowed."""
        return ((q > 0) & ~self.allowed(p)).any(-1)


def existing(p: Any, outcomes: Any) -> Any:
    """Return which outcomes of rows exist; a padded row, of a state that does not, has its own.

    Arguments:
        p: nominal rows, in NumPy or JAX.
        outcomes: number of outcomes that exist, the first of every row.
    """
    return (np.arange(p.shape[-1]) < outcomes) | (p > 0)


def _sort_narrow(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return short rows sorted by the first array, by exchanges of neighbours.

    These are elementwise operations, which compile to vector instructions, where a general sort
    calls a function for every comparison.
    """
    # The barriers write the keys to memory once, before and after: see `SortedRows`.
    arrays = lax.optimization_barrier(arrays)
    width = arrays[0].shape[-1]
    columns = [[array[..., i] for array in arrays] for i in range(width)]
    for turn in range(width):
        for i in range(turn % 2, width - 1, 2):
            low, high = columns[i], columns[i + 1]
            swap = low[0] > high[0]
            pairs = list(zip(low, high, strict=True))
            columns[i] = [jnp.where(swap, b, a) for a, b in pairs]
            columns[i + 1] = [jnp.where(swap, a, b) for a, b in pairs]
    return lax.optimization_barrier(
        tuple(jnp.stack(each, -1) for each in zip(*columns, strict=True))
    )


def _picked(row: Array, chosen: Callable[[int], Array]) -> Array:
    """Return entry i of each row wherever `chosen(i)` holds, for every i of a short row."""
    picked = jnp.zeros_like(row)
    for i in range(row.shape[-1]):
        picked = jnp.where(chosen(i), row[..., i : i + 1], picked)
    return picked


class SortedRows(NamedTuple):
    """Rows sorted by target, smallest first. Outcomes that are not allowed come last.

    Sets compare targets for equality. That is safe after the sort, which writes them to memory: before
    it, a compiler may compute a target twice and round it in two ways.

    Attributes:
        p: sorted nominal probabilities.
        u: sorted targets minus the smallest one; the largest where an outcome is not allowed.
        low: the smallest target.
        at_minimum: whether an outcome has the smallest target.
        order: indices that sort the rows.
    """

    p: Rows
    u: Rows
    low: PerRow
    at_minimum: Bool[Array, "*rows K"]
    order: Int[Array, "*rows K"]

    @classmethod
    def of(cls, p: Array, y: Array, allowed: Array) -> SortedRows:
        """Return the sorted rows."""
        index = lax.broadcasted_iota(jnp.int32, p.shape, p.ndim - 1)
        key = jnp.where(allowed, y, jnp.inf)
        sort = _sort_narrow if p.shape[-1] <= _NARROW else functools.partial(lax.sort, num_keys=1)
        y, p, order = sort((key, p, index))
        allowed = y < jnp.inf
        top = jnp.where(allowed, y, -jnp.inf).max(-1, keepdims=True)
        u = jnp.where(allowed, y, top) - y[..., :1]
        return cls(p, u, y[..., 0], allowed & (u == 0), order)

    def take(self, row: Array) -> Array:
        """Return a row in sorted order."""
        if row.shape[-1] <= _NARROW:
            return _picked(row, lambda i: self.order == i)
        return jnp.take_along_axis(row, self.order, axis=-1)

    def restore(self, row: Array) -> Array:
        """Return a sorted row in the original order."""
        if row.shape[-1] <= _NARROW:
            places = lax.broadcasted_iota(jnp.int32, row.shape, row.ndim - 1)
            return _picked(row, lambda r: self.order[..., r : r + 1] == places)
        return jnp.take_along_axis(row, jnp.argsort(self.order, axis=-1), axis=-1)

    def response(self, kernel: Rows, lower: PerRow) -> Response:
        """Return the response with this sorted kernel and this lower bound on kernel·u."""
        value = self.low + (kernel * self.u).sum(-1)
        return Response(self.restore(kernel), value, self.low + lower, jnp.zeros_like(value))

    def corner(self) -> Array:
        """Return the uniform distribution on the outcomes with the smallest target."""
        return self.at_minimum / self.at_minimum.sum(-1, keepdims=True)


def fraction(part: Array, whole: Array) -> Array:
    """Return part / whole, clipped to [0, 1]; zero if the whole is zero."""
    some = whole > 0
    return jnp.where(some, jnp.clip(part / jnp.where(some, whole, 1.0), 0.0, 1.0), 0.0)


def first_to_reach(level: Rows, mass: Rows, goal: PerRow) -> PerRow:
    """Return the level of the first entry at which the cumulative mass reaches the goal."""
    place = (jnp.cumsum(mass, axis=-1) < goal[..., None]).sum(-1, keepdims=True)
    return jnp.take_along_axis(level, jnp.minimum(place, level.shape[-1] - 1), axis=-1)[..., 0]


def project_simplex(z: Rows, support: Bool[Array, "*rows K"], total: PerRow | float = 1.0) -> Rows:
    """Return the Euclidean projection of z onto the non-negative vectors with this total, by sorting.

    Arguments:
        z: any vectors.
        support: entries that may be positive.
        total: sum of each projected row.
    """
    total = jnp.broadcast_to(jnp.asarray(total, z.dtype), z.shape[:-1])[..., None]
    # An entry that is lower than the largest by the total or more becomes zero. Clipping there keeps
    # the sums exact for z of any size.
    top = jnp.where(support, z, -jnp.inf).max(-1, keepdims=True)
    z = jnp.where(support, jnp.maximum(z - top, -total), -total)
    descending = -jnp.sort(-z, axis=-1)
    cumulative = jnp.cumsum(descending, axis=-1)
    active = descending * jnp.arange(1, z.shape[-1] + 1) > cumulative - total
    size = jnp.maximum(active.sum(-1, keepdims=True), 1)
    level = (jnp.take_along_axis(cumulative, size - 1, axis=-1) - total) / size
    return jnp.where(support, jnp.maximum(z - level, 0.0), 0.0)


def project_box(z: Rows, lower: Rows, upper: Rows, total: PerRow) -> Rows:
    """Return the Euclidean projection of z onto lower ≤ q ≤ upper with this total, by sorting.

    The projection is clip(z − μ, lower, upper). Its total is piecewise linear and decreasing in μ, with
    kinks at z − upper and z − lower. The bounds lie in [0, 1], and the total lies between their sums.
    """
    order = jnp.argsort(z, axis=-1)
    z, lower, upper = (jnp.take_along_axis(x, order, axis=-1) for x in (z, lower, upper))
    # Two entries more than one apart are never both between their bounds. Gaps are therefore cut to
    # two, which keeps the sums exact for z of any size.
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
    # Entries between their bounds share the rounding error of the total.
    q = jnp.clip(z, lower, upper)
    free = (z > lower) & (z < upper)
    rest = (total - q.sum(-1))[..., None] / jnp.maximum(free.sum(-1, keepdims=True), 1)
    q = jnp.where(free, jnp.clip(q + rest, lower, upper), q)
    return jnp.take_along_axis(q, jnp.argsort(order, axis=-1), axis=-1)
