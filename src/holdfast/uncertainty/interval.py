"""The interval set: lower ≤ q ≤ upper for each probability."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import first_place
from holdfast._support.precision import compiled_float64
from holdfast.uncertainty.counts import Estimate, FromCounts, VisitCounts, interval_around
from holdfast.uncertainty.rows import (
    EPS,
    SMALLEST,
    PerRow,
    Response,
    Rows,
    RowScale,
    non_negative,
)
from holdfast.uncertainty.simplex import SortedRows, first_to_reach, fraction, project_box

# Nominal probabilities may exceed their bounds by this; the bound is then the probability itself.
# Renormalising a row changes it by less.
_SLACK = 1e-12


class Interval(FromCounts):
    """All kernels with lower ≤ q ≤ upper, entry by entry.

    The radius scales the intervals about the nominal probabilities: q lies between
    p − radius·(p − lower) and p + radius·(upper − p), clipped to [0, 1]. Radius 1 gives the intervals
    themselves, 0 only p. With radius inf an entry is free in each direction in which its interval is
    open.

    The worst response to targets y starts at the lower bounds and fills up the smallest targets first.
    Since q·y = t + q·(y − t), t + Σ lower·max(y − t, 0) − upper·max(t − y, 0) is a lower bound for
    every level t. It is tight at the largest target that receives mass.

    Arguments:
        lower: lower bounds in the layout of the model's kernel, (S, A, S) or (S, A, K), or a number.
        upper: upper bounds, likewise. An entry with a positive bound is reachable even if p is zero. A
            bound within four rounding errors of p counts as p.
        radius: a number or an (S, A) array.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> p, y = np.array([[0.5, 0.5, 0.0]]), np.array([[1.0, 2.0, 0.0]])
        >>> bounds = hf.Interval([[0.4, 0.3, 0.0]], [[0.6, 0.7, 0.1]])
        >>> print(bounds.worst_response(p, y), bounds.scaled(0.5).worst_response(p, y))
        [[0.6 0.3 0.1]] [[0.55 0.4  0.05]]
    """

    name: ClassVar[str] = "interval"
    per_entry: ClassVar[tuple[str, ...]] = ("lower", "upper")
    # Both sides of the level are summed, and each bound is a rounded difference.
    per_term: ClassVar[float] = 1.0
    besides: ClassVar[float] = 20.0

    lower: Any
    upper: Any

    def __init__(self, lower: ArrayLike, upper: ArrayLike, *, radius: ArrayLike = 1.0) -> None:
        super().__init__(radius)
        self.lower = non_negative("lower", lower, most=1)
        self.upper = non_negative("upper", upper, most=1)
        try:
            low, high = np.broadcast_arrays(self.lower, self.upper)
        except ValueError as error:
            raise ValueError(
                f"upper: expected the shape of lower, {self.lower.shape}, got {self.upper.shape}"
            ) from error
        if (low > high).any():
            first, where = first_place(low > high)
            raise ValueError(
                f"lower: expected at most upper, got {low[first]} above {high[first]}"
                f"{' at ' + where if where else ''}"
            )

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return False

    @property
    def fits_lists(self) -> bool:
        """Whether members have mass on a row's own entries only, so that successor lists suffice."""
        return True

    def reach(self, p: Any) -> Any:
        """Return which outcomes some member gives mass to; a table leaves out the others."""
        return (self.upper > 0) | (p > 0)

    @compiled_float64
    def member_share(self, p: Rows, q: Rows) -> PerRow:
        """Return a share t in [0, 1] such that p + t·(q − p) is a member, up to 4 eps of each entry.

        `mixed_value` allows for these: a narrow interval around a large probability holds few floats.
        """
        away = q - p
        room = jnp.where(away > 0, *self._ends(p)[::-1])
        distance = jnp.maximum(jnp.abs(away) - 4 * EPS * jnp.maximum(p, q) - SMALLEST, 0.0)
        factor = jnp.where(distance > 0, distance / jnp.where(room > 0, room, 0.0), 0.0)
        largest, radius = factor.max(-1) * (1 + 4 * EPS), self.row_radius(p)
        inside = (largest <= radius) & (largest < jnp.inf)
        shrunk = radius / jnp.where(largest > 0, largest, 1.0) * (1 - 4 * EPS)
        return jnp.where(inside, 1.0, jnp.where(largest < jnp.inf, shrunk, 0.0))

    @compiled_float64
    def mixed_value(self, p: Rows, q: Rows, y: Rows, share: PerRow) -> PerRow:
        """Return an upper bound on the value of a member near p + share·(q − p), rounding included.

        Entries beyond their bounds by 4 eps move back, and the sum of the row returns to one. Twice the
        mass that this moves, times the span, is added.
        """
        moved = 8 * EPS + jnp.abs(q.sum(-1) - 1) + jnp.abs(p.sum(-1) - 1)
        scale = RowScale.of(self.reach(p), y)
        moved = moved + EPS * scale.terms
        return super().mixed_value(p, q, y, share) + 2 * moved * scale.span

    def check_fits(self, p: Float[np.ndarray, "S A K"]) -> None:
        """Raise a ValueError unless the set fits a model with these nominal probabilities."""
        super().check_fits(p)
        bounds = {"lower": np.asarray(self.lower), "upper": np.asarray(self.upper)}
        for name, bound in bounds.items():
            if bound.shape not in ((), p.shape):
                raise ValueError(f"{name}: expected a number or shape {p.shape}, got {bound.shape}")
            outside = p < bound - _SLACK if name == "lower" else p > bound + _SLACK
            if outside.any():
                first, where = first_place(outside)
                side = "at most" if name == "lower" else "at least"
                raise ValueError(
                    f"{name}: expected {side} the nominal probability {p[first]}, "
                    f"got {np.broadcast_to(bound, p.shape)[first]} at {where}"
                )

    @classmethod
    def _around(cls, given: VisitCounts) -> tuple[Estimate, Self]:
        rows, lower, upper = interval_around(given)
        return rows, cls(lower, upper)

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it."""
        del guess  # closed form
        p, y = jnp.asarray(p), jnp.asarray(y)
        below, above = self.room(p)
        rows = SortedRows.of(p, y, p + above > 0)
        p, u, below, above = rows.p, rows.u, rows.take(below), rows.take(above)
        # Take from each entry all it can lose, and give it to the smallest targets first. Sums of room
        # keep narrow intervals exact; 1 − Σ lower would lose them to rounding.
        width, budget = below + above, below.sum(-1)
        level = first_to_reach(u, width, budget)
        full, on = u < level[..., None], u == level[..., None]
        given = jnp.where(full, width, 0.0).sum(-1)
        share = fraction(budget - given, jnp.where(on, width, 0.0).sum(-1))[..., None]
        move = jnp.where(full, above, jnp.where(on, share * width - below, -below))
        kernel = jnp.maximum(p + move, 0.0)
        beyond = u - level[..., None]
        bound = (p - below) * jnp.maximum(beyond, 0.0) + (p + above) * jnp.minimum(beyond, 0.0)
        return rows.response(kernel, lower=level + bound.sum(-1))

    @compiled_float64
    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return the smallest radius whose intervals contain q; infinite if there is none."""
        p, q = jnp.asarray(p), jnp.asarray(q)
        away = q - p
        room = jnp.where(away > 0, *self._ends(p)[::-1])
        # Rounding moves a probability by up to 16 eps, which may be large relative to its interval.
        distance = jnp.maximum(jnp.abs(away) - 16 * jnp.finfo(p.dtype).eps, 0.0)
        factor = distance / jnp.where(room > 0, room, 1.0)
        factor = jnp.where(room > 0, factor, jnp.where(distance > 0, jnp.inf, 0.0))
        return factor.max(-1)

    @compiled_float64
    def project(self, p: Rows, q: Rows) -> Rows:
        """Return the member nearest to q, any vector, in Euclidean distance."""
        p, z = jnp.asarray(p), jnp.asarray(q)
        below, above = self.room(p)
        return project_box(z, p - below, p + above, p.sum(-1))

    def room(self, p: Array) -> tuple[Array, Array]:
        """Return how far each entry may decrease below p and increase above it."""
        radius = self.row_radius(p)[..., None]
        # Zero times infinity is zero, for a zero radius and for a closed interval.
        below, above = (
            jnp.where((room > 0) & (radius > 0), radius * jnp.where(room > 0, room, 1.0), 0.0)
            for room in self._ends(p)
        )
        return jnp.minimum(below, p), jnp.minimum(above, jnp.maximum(1 - p, 0.0))

    def _ends(self, p: Array) -> tuple[Array, Array]:
        """Return the distances of p from its bounds.

        A bound within four rounding errors of p is p itself. Normalising a row changes its last bits,
        and must not open an interval that ends at p: a large radius would open it widely.
        """
        least = 4 * EPS * p
        ends = p - self.lower, self.upper - p
        return tuple(jnp.where(end > least, end, 0.0) for end in ends)  # type: ignore[return-value]
