"""The protocol of uncertainty sets, and the defaults that a user-defined set inherits."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64
from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty.in_columns import respond_in_columns
from holdfast.uncertainty.nearest_point import nearest_member
from holdfast.uncertainty.rows import (
    EPS,
    SMALLEST,
    Bracket,
    Columns,
    PerRow,
    Proposal,
    Response,
    RowProposal,
    Rows,
    RowScale,
    non_negative,
)

# Absolute tolerance of a membership check. Divergences are sums of terms of order one, so their
# rounding error is about 50 eps.
_ROUNDING = 1e-14
# Entries in one block of rows of the default projection, which stores K² numbers per row: 32 MiB.
_BLOCK_ENTRIES = 1 << 22


class UncertaintySet(eqx.Module):
    """A set of kernels around a nominal one, rectangular in (s, a): each row is chosen freely.

    A set is a small record, a pytree whose leaves are arrays. Its methods work on rows with the
    outcomes on the last axis: p the nominal probabilities, q those of another kernel, y the targets.
    To define a set, derive from this class, write `worst_response`, `dual_value` and `divergence` in
    JAX, and put the set's own fields, if any, beside `radius`. The other methods have defaults. In the
    default `keeps_support` rows may be padded with outcomes of probability zero; `worst_response` must
    give them no mass.

    Arguments:
        radius: size of the set, a number or an (S, A) array; 0 leaves only the nominal row.

    Example:
        >>> import holdfast as hf
        >>> import jax.numpy as jnp
        >>> class Halfway(hf.uncertainty.UncertaintySet):
        ...     '''Kernels (1 − radius)·p + radius·u, u any distribution on the support of p.'''
        ...     def worst_response(self, p, y):
        ...         lowest = jnp.where(p > 0, y, jnp.inf).argmin(-1)
        ...         radius = self.row_radius(p)[..., None]
        ...         return (1 - radius) * p + radius * (jnp.arange(p.shape[-1]) == lowest[..., None])
        ...     def dual_value(self, p, y):
        ...         lowest = jnp.where(p > 0, y, jnp.inf).min(-1)
        ...         radius = self.row_radius(p)
        ...         return (1 - radius) * (p * y).sum(-1) + radius * lowest
        ...     def divergence(self, p, q):
        ...         return jnp.where(p > 0, 1 - q / jnp.where(p > 0, p, 1), 0).max(-1)
        >>> model = hf.environments.gambler().replace(uncertainty=Halfway(0.1))
        >>> evaluation = hf.evaluate(model, [0] * model.states)
        >>> evaluation.reward.worst < evaluation.reward.nominal
        True
    """

    # Label in messages and model files; default: the class name.
    name: ClassVar[str]
    # Fields in the layout of the model's kernel, (S, A, S) or (S, A, K).
    per_entry: ClassVar[tuple[str, ...]] = ()
    # Fields that all rows share. Every other field is a number or has shape (S, A).
    shared: ClassVar[tuple[str, ...]] = ()
    # Whether outcomes with equal targets may be merged into one without a change of the worst case.
    merges: ClassVar[bool] = False
    # Whether `propose` consists of elementwise operations, so that it can run inside a GPU kernel.
    elementwise: ClassVar[bool] = False

    radius: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.__dict__.get("name", cls.__name__)

    def __init__(self, radius: ArrayLike) -> None:
        self.radius = non_negative("radius", radius)

    @abc.abstractmethod
    def worst_response(self, p: Rows, y: Rows) -> Rows:
        """Return the member q that minimises q·y."""

    @abc.abstractmethod
    def dual_value(self, p: Rows, y: Rows) -> PerRow:
        """Return a lower bound on min q·y over the set, valid at any value of the dual variable."""

    def divergence(self, p: Rows, q: Rows) -> PerRow:
        """Return the smallest radius at which q is a member."""
        raise NotImplementedError(f"{type(self).__name__} defines neither divergence nor contains")

    @compiled_float64
    def contains(self, p: Rows, q: Rows, tolerance: float = 1e-9) -> Bool[Array, "*rows"]:
        """Return whether q is a distribution in the set, up to rounding.

        Arguments:
            p: nominal rows.
            q: rows to check.
            tolerance: accepted error of the radius, relative, and of the row sums and signs. The
                default admits rows that a search with a gap of 1e-10 has found.
        """
        divergence = self.divergence(p, q)
        # An infinite radius admits every distribution with a finite divergence.
        inside = (divergence <= self.radius * (1 + tolerance) + self.rounding) & (
            divergence < np.inf
        )
        if self.keeps_support:
            inside = inside & ~((q > tolerance) & (p == 0)).any(-1)
        return inside & (abs(q.sum(-1) - 1) <= tolerance) & (q >= -tolerance).all(-1)

    @compiled_float64
    def project(self, p: Rows, q: Rows) -> Rows:
        """Return the member nearest to q, any vector, in Euclidean distance.

        The default uses worst responses only (Wolfe's method). It is exact for polytopes; for other
        sets it returns a member that is close to the nearest one.
        """
        p, q = jnp.broadcast_arrays(jnp.asarray(p), jnp.asarray(q))
        rows, width = p.shape[:-1], p.shape[-1]
        own, shared = self._flat(p).by_row()

        def nearest(own: Self, p: Array, z: Array) -> Array:
            flat: Any = eqx.combine(own, shared)
            return nearest_member(lambda y: flat.worst_response(p, y), p, z)

        flat = own, p.reshape(-1, width), q.reshape(-1, width)
        block = max(1, _BLOCK_ENTRIES // (width + 1) ** 2)
        if block >= len(flat[1]):
            return nearest(*flat).reshape(p.shape)

        def one(row: Any) -> Array:
            return nearest(*jax.tree.map(lambda leaf: leaf[None], row))[0]

        return lax.map(one, flat, batch_size=block).reshape(*rows, width)

    def scaled(self, factor: ArrayLike) -> Self:
        """Return the set with its radii multiplied by a factor; zero times infinity is zero.

        Positive products below the smallest normal number become that number: the set is never smaller.
        """
        if not (np.asarray(factor, float) >= 0).all():
            raise ValueError(f"factor: expected at least 0, got {factor!r}")
        radius, factor = np.broadcast_arrays(np.asarray(self.radius), np.asarray(factor, float))
        product = np.zeros(radius.shape)
        some = (radius > 0) & (factor > 0)
        np.multiply(radius, factor, out=product, where=some)
        return self._with(radius=np.where(some, np.maximum(product, SMALLEST), 0.0))

    def with_radius(self, radius: ArrayLike) -> Self:
        """Return the same kind of set with another radius."""
        return dataclasses.replace(self, radius=radius)

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return True

    @property
    def fits_lists(self) -> bool:
        """Whether members have mass on a row's own entries only, so that successor lists suffice."""
        return self.keeps_support

    def padded(self, states: int, width: int) -> Self | None:
        """Return the set on rows to which outcomes were added that no member may have mass on.

        None if the set has no such form; its models are then not padded.

        Arguments:
            states: number of outcomes that exist, the first of every row.
            width: number of outcomes with the added ones.
        """
        del states, width  # added outcomes have probability zero
        return self if self.fits_lists else None

    @property
    def rounding(self) -> Any:
        """Absolute rounding error of `divergence`."""
        return _ROUNDING

    def reach(self, p: Any) -> Any:
        """Return which outcomes some member gives mass to; a table leaves out the others.

        Arguments:
            p: nominal rows, in NumPy or JAX.
        """
        return p > 0 if self.keeps_support else np.ones(p.shape, bool)

    @compiled_float64
    def respond(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Response:
        """Return the worst response to y and the dual value that certifies it.

        Arguments:
            p: nominal rows.
            y: targets.
            guess: multiplier of a similar problem, from which a search may start.
        """
        del guess
        kernel = self.worst_response(p, y)
        value = (kernel * y).sum(-1)
        return Response(kernel, value, self.dual_value(p, y), jnp.zeros_like(value))

    def propose(self, p: Columns, y: Columns, guess: PerRow) -> Proposal:
        """Return a quick worst response to y, in columns, as a proposal that another pass certifies.

        The default is `respond`, mapped over the rows.

        Arguments:
            p: nominal probabilities, one array over all rows for each outcome.
            y: targets.
            guess: multipliers of a similar problem.
        """
        return respond_in_columns(self, p, y, guess)

    def propose_rows(self, p: Rows, y: Rows, guess: PerRow) -> RowProposal:
        """Return a quick worst response to y in long rows, as a proposal that another pass certifies.

        The default is `respond`.

        Arguments:
            p: nominal rows.
            y: targets.
            guess: multipliers of a similar problem.
        """
        found = self.respond(p, y, guess)
        return RowProposal(found.kernel, found.value, found.multiplier)

    @compiled_float64
    def bracket(self, p: Rows, y: Rows, guess: PerRow | None = None) -> Bracket:
        """Return the worst response to y and bounds on the minimum that hold after rounding.

        Membership is checked apart from the search: the upper bound depends on the response itself and
        on its divergence.
        """
        response = self.respond(p, y, guess)
        lower = response.lower - self.lower_rounding(p, y, response)
        share = self.member_share(p, response.kernel)
        return Bracket(response, lower, self.mixed_value(p, response.kernel, y, share))

    @compiled_float64
    def lower_rounding(self, p: Rows, y: Rows, response: Response) -> PerRow:
        """Return a bound on the rounding error of `response.lower`.

        The default is for any formula with a few sums over a row.
        """
        del response
        scale = RowScale.of(self.reach(p), y)
        return EPS * (2 * scale.terms + 32) * scale.size

    @compiled_float64
    def member_share(self, p: Rows, q: Rows) -> PerRow:
        """Return a share t in [0, 1] such that p + t·(q − p) is a proved member of the set.

        The default moves q towards p by the ratio of radius and divergence, as for a convex divergence,
        and checks the divergence of the mixture. `rounding` is the error of a divergence. A set without
        `divergence` has to define `contains`.
        """
        if type(self).divergence is UncertaintySet.divergence:
            return jnp.where(self.contains(p, q), 1.0, 0.0)
        radius = self.row_radius(p)
        share = self._share_of_divergence(p, q, 2 * self.rounding)
        mixture = p + share[..., None] * (q - p)
        inside = self.divergence(p, mixture) + self.rounding <= radius
        return jnp.where(inside, share, 0.0)

    def _share_of_divergence(self, p: Array, q: Array, absolute: Array | float) -> Array:
        """Return the share radius/divergence, rounded down, for a divergence that is convex in q.

        Arguments:
            p: nominal rows.
            q: non-negative rows; q divided by its sum is meant.
            absolute: absolute rounding error of the divergence, besides a relative one.
        """
        radius = self.row_radius(p)
        # 128 eps for the terms of a divergence, n eps/2 for its sum, and rows that do not sum to one:
        # the divergences here are at most 1/sum² too small.
        relative = EPS * (128 + (p > 0).sum(-1)) + 4 * jnp.abs(q.sum(-1) - 1)
        divergence = self.divergence(p, q) * (1 + relative) + absolute
        inside = (divergence <= radius) & (divergence < jnp.inf)
        shrunk = radius / jnp.where(divergence > 0, divergence, 1.0) * (1 - 4 * EPS)
        return jnp.where(inside, 1.0, jnp.where(divergence < jnp.inf, shrunk, 0.0))

    @compiled_float64
    def mixed_value(self, p: Rows, q: Rows, y: Rows, share: PerRow) -> PerRow:
        """Return an upper bound on the value of p + share·(q − p), rounding included.

        Arguments:
            p: nominal rows.
            q: non-negative rows; q divided by its sum is meant.
            y: targets.
            share: share of q; anything that is not in [0, 1] counts as zero.
        """
        reached = self.reach(p)
        scale = RowScale.of(reached, y)
        u = jnp.where(reached, y - scale.low[..., None], 0.0)
        nominal = (p * u).sum(-1)
        proper = ((q >= 0) & (reached | (q == 0))).all(-1) & (share >= 0) & (share <= 1)
        own = jnp.where(proper, (q * u).sum(-1) / q.sum(-1), nominal)
        mixed = own + jnp.where(proper, 1 - share, 0.0) * jnp.maximum(nominal - own, 0.0)
        # Two sums of n non-negative terms and a quotient; the last sum rounds the value itself.
        return scale.low + mixed * (1 + EPS * (scale.terms + 12)) + 2 * EPS * scale.size

    def row_radius(self, p: Rows) -> PerRow:
        """Return the radius of each row of p."""
        return jnp.broadcast_to(jnp.asarray(self.radius, jnp.result_type(p)), p.shape[:-1])

    def by_row(self) -> tuple[Self, Self]:
        """Return the fields that differ by row, and the shared ones; `eqx.combine` joins the two."""
        split = jax.tree.map(lambda field: np.ndim(field) > 0, self)
        return eqx.partition(self, split._with(**dict.fromkeys(self.shared, False)))

    def laid_out(
        self,
        pairs: Callable[[np.ndarray], np.ndarray],
        entries: Callable[[np.ndarray], np.ndarray],
    ) -> Self:
        """Return the set with its fields in the layout of a table.

        Arguments:
            pairs: function that lays out an (S, A) array or a number.
            entries: function that lays out an array in the kernel's layout, padded with zeros.
        """
        return self.map_rows(lambda array, each: entries(array) if each else pairs(array))

    def map_rows(self, function: Callable[[np.ndarray, bool], np.ndarray]) -> Self:
        """Return the set with a function applied to every array that differs by row.

        Arguments:
            function: function of an array, and whether the array has an axis of outcomes.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in self._own_arrays()}
        return self._with(**{n: function(a, n in self.per_entry) for n, a in arrays.items()})

    def check_fits(self, p: Float[np.ndarray, "S A K"]) -> None:
        """Raise a ValueError unless the set fits a model with these nominal probabilities."""
        shape, expected = np.shape(self.radius), p.shape[:2]
        if shape not in ((), expected):
            raise ValueError(f"radius: expected a number or shape {expected}, got {shape}")

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return a JSON header and named arrays, from which `from_arrays` makes the set again."""
        header = {"set": UNCERTAINTY.name_of(type(self))}
        names = [*self._own_arrays(), *self.shared]
        arrays = {name: np.asarray(getattr(self, name)) for name in names}
        settings = [f.name for f in dataclasses.fields(self) if f.name not in arrays]
        return header | {name: getattr(self, name) for name in settings}, arrays

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the set that `to_arrays` described."""
        return cls(**arrays, **{name: value for name, value in header.items() if name != "set"})

    def __str__(self) -> str:
        smallest, largest = np.min(self.radius), np.max(self.radius)
        radius = f"{smallest:g}" if smallest == largest else f"{smallest:g} to {largest:g}"
        return f"{type(self).__name__}(radius={radius})"

    def _own_arrays(self) -> list[str]:
        """Return the names of the array fields that differ by row."""
        fields = [f.name for f in dataclasses.fields(self) if not f.metadata.get("static")]
        return [name for name in fields if name not in self.shared]

    def _with(self, **fields: Any) -> Self:
        """Return the set with some fields replaced, without the checks of the constructor."""
        if not fields:
            return self
        return eqx.tree_at(
            lambda s: [getattr(s, name) for name in fields], self, [*fields.values()]
        )

    def _flat(self, p: Array) -> Self:
        """Return the set with its fields on the rows of p, as one axis."""
        rows, changes = p.shape[:-1], {}
        for name in self._own_arrays():
            shape = p.shape if name in self.per_entry else rows
            value = jnp.broadcast_to(jnp.asarray(getattr(self, name), p.dtype), shape)
            changes[name] = value.reshape(-1, *shape[len(rows) :])
        return self._with(**changes)
