"""Intervals: every probability between bounds of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast.uncertainty._counts import interval_from_counts
from holdfast.uncertainty._set import Response, UncertaintySet
from holdfast.uncertainty._simplex import Sorted, first_to_reach, fraction, project_box

# Nominal probabilities may be outside their bounds by this, which is rounding.
_SLACK = 1e-12


class Interval(UncertaintySet):
    """All kernels with lower ≤ q ≤ upper, entry by entry.

    The radius is a factor on the intervals about the nominal probabilities: at 1 they are as given,
    at 0 only p is left, and in between and beyond q lies between p − radius·(p − lower) and
    p + radius·(upper − p), cut to [0, 1]. At inf every entry is free in the directions in which its
    interval is open at all.

    The worst response to targets y starts from the lower bounds and fills up, the smallest target
    first. For every level t, t + Σ lower·max(y − t, 0) − upper·max(t − y, 0) is a lower bound,
    since q·y = t + q·(y − t); at the level up to which q was filled the bound is met.

    Arguments:
        lower: in the layout of the model's kernel, (S, A, S) or (S, A, K) for lists; or one number.
        upper: the same. Where it is positive nature may go even if p does not.
        radius: a number, or an (S, A) array.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> p, y = np.array([[0.5, 0.5, 0.0]]), np.array([[1.0, 2.0, 0.0]])
        >>> bounds = hf.Interval([[0.4, 0.3, 0.0]], [[0.6, 0.7, 0.1]])
        >>> print(bounds.worst_response(p, y), bounds.scaled(0.5).worst_response(p, y))
        [[0.6 0.3 0.1]] [[0.55 0.4  0.05]]
    """

    name: ClassVar[str] = "interval"
    merges: ClassVar[bool] = False

    lower: Any
    upper: Any

    def __init__(self, lower: ArrayLike, upper: ArrayLike, *, radius: ArrayLike = 1.0) -> None:
        super().__init__(radius)
        self.lower = _probabilities("lower", lower)
        self.upper = _probabilities("upper", upper)
        try:
            low, high = np.broadcast_arrays(self.lower, self.upper)
        except ValueError as error:
            raise ValueError(
                f"upper: expected the shape of lower, {self.lower.shape}, got {self.upper.shape}"
            ) from error
        if (low > high).any():
            first = _first(low > high)
            raise ValueError(
                f"lower: expected at most upper, got {low[first]} above {high[first]}{_at(first)}"
            )

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return False

    @property
    def fits_lists(self) -> bool:
        """Whether members live on a row's own entries, so that successor lists are exact."""
        return True

    def reach(self, p: Float[np.ndarray, "S A K"]) -> Bool[np.ndarray, "S A K"]:
        """The outcomes that some member gives mass to; the others may be left out of a row."""
        return (np.asarray(self.upper) > 0) | (p > 0)

    def laid_out(
        self,
        pairs: Callable[[np.ndarray], np.ndarray],
        entries: Callable[[np.ndarray], np.ndarray],
    ) -> Self:
        """The same set with its fields in the layout of a table."""
        return dataclasses.replace(
            self,
            lower=entries(np.asarray(self.lower)),
            upper=entries(np.asarray(self.upper)),
            radius=pairs(np.asarray(self.radius)),
        )

    def check_fits(self, p: Float[np.ndarray, "S A K"]) -> None:
        """Raises a ValueError unless the set fits a model with these nominal probabilities."""
        super().check_fits(p)
        bounds = {"lower": np.asarray(self.lower), "upper": np.asarray(self.upper)}
        for name, bound in bounds.items():
            if bound.shape not in ((), p.shape):
                raise ValueError(f"{name}: expected a number or shape {p.shape}, got {bound.shape}")
            outside = p < bound - _SLACK if name == "lower" else p > bound + _SLACK
            if outside.any():
                first = _first(outside)
                side = "at most" if name == "lower" else "at least"
                raise ValueError(
                    f"{name}: expected {side} the nominal probability {p[first]}, "
                    f"got {np.broadcast_to(bound, p.shape)[first]}{_at(first)}"
                )

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON header and named arrays from which `from_arrays` makes the set again."""
        header, arrays = super().to_arrays()
        return header, {**arrays, "lower": np.asarray(self.lower), "upper": np.asarray(self.upper)}

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

        Jointly over all (s, a), by the exact binomial intervals of Clopper and Pearson, one for every
        entry, with Bonferroni's correction.
        Unvisited pairs get a uniform row, and the bounds 0 and 1.
        The numbers of visits must not depend on what was seen.

        Arguments:
            counts: (S, A, S) transitions that were seen; or (S, A, K), with `successors`.
            confidence: in (0, 1).
            successors: (S, A, K), the state that each column of the counts is about; the kernel is then
                a `Kernel`.
            support: of the counts' shape, which of them are possible at all; all if left out. The less
                is possible, the smaller the set.
        """
        kernel, lower, upper = interval_from_counts(counts, confidence, successors, support)
        return kernel, cls(lower, upper)

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
        below, above = self._room(p)
        rows = Sorted.of(p, y, p + above > 0)
        p, u, below, above = rows.p, rows.u, rows.take(below), rows.take(above)
        # All that entries can lose is taken and given out again, the smallest target first. (In
        # terms of room, since 1 − Σ lower would lose narrow intervals to rounding.)
        width, budget = below + above, below.sum(-1)
        level = first_to_reach(u, width, budget)
        full, on = u < level[..., None], u == level[..., None]
        given = jnp.where(full, width, 0.0).sum(-1)
        share = fraction(budget - given, jnp.where(on, width, 0.0).sum(-1))[..., None]
        move = jnp.where(full, above, jnp.where(on, share * width - below, -below))
        kernel = jnp.maximum(p + move, 0.0)
        beyond = u - level[..., None]
        bound = (p - below) * jnp.maximum(beyond, 0.0) + (p + above) * jnp.minimum(beyond, 0.0)
        return Response(
            kernel=rows.restore(kernel),
            value=rows.low + (kernel * u).sum(-1),
            lower=rows.low + (level + bound.sum(-1)),
            multiplier=jnp.zeros_like(rows.low),
        )

    @compiled_float64
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """The smallest factor on the intervals at which they hold q, infinite where none does."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        away = q - p
        room = jnp.where(away > 0, self.upper - p, p - self.lower)
        # A probability is rounded by this, which may be much in terms of a narrow interval.
        distance = jnp.maximum(jnp.abs(away) - 16 * jnp.finfo(p.dtype).eps, 0.0)
        factor = distance / jnp.where(room > 0, room, 1.0)
        factor = jnp.where(room > 0, factor, jnp.where(distance > 0, jnp.inf, 0.0))
        return factor.max(-1)

    @compiled_float64
    def project(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q, any vector, in Euclidean distance."""
        p, z = jnp.asarray(p), jnp.asarray(q)
        below, above = self._room(p)
        return project_box(z, p - below, p + above, p.sum(-1))

    def _room(self, p: Array) -> tuple[Array, Array]:
        """How far every entry may fall below p, and rise above it."""
        radius = jnp.broadcast_to(jnp.asarray(self.radius, p.dtype), p.shape[:-1])[..., None]
        # Zero times infinity is zero: a radius of zero, or an interval that is not open.
        below, above = (
            jnp.where((room > 0) & (radius > 0), radius * jnp.where(room > 0, room, 1.0), 0.0)
            for room in (p - self.lower, self.upper - p)
        )
        return jnp.minimum(below, p), jnp.minimum(above, jnp.maximum(1 - p, 0.0))


def _probabilities(name: str, value: ArrayLike) -> Float[np.ndarray, "..."]:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected a number or an (S, A, K) array: {error}") from error
    wrong = ~((array >= 0) & (array <= 1))
    if wrong.any():
        first = _first(wrong)
        raise ValueError(f"{name}: expected numbers in [0, 1], got {array[first]}{_at(first)}")
    array.flags.writeable = False
    return array


def _first(wrong: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _at(place: tuple[int, ...]) -> str:
    if len(place) != 3:
        return ""
    return f" at (state {place[0]}, action {place[1]}, entry {place[2]})"
