"""The protocol that every uncertainty set follows."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.precision import compiled_float64

# A divergence of order one is computed to about this.
_ROUNDING = 1e-14


class Response(NamedTuple):
    """Nature's answer to targets y, a row each.

    Attributes:
        kernel: q, a member of the set.
        value: q·y, so an upper bound on the minimum over the set.
        lower: the dual value at the multiplier reached, so a lower bound on that minimum.
        multiplier: the dual variable, from which the next answer may start.
    """

    kernel: Float[Array, "*rows K"]
    value: Float[Array, "*rows"]
    lower: Float[Array, "*rows"]
    multiplier: Float[Array, "*rows"]


class UncertaintySet(eqx.Module):
    """Kernels around a nominal one, rectangular in (s, a): every row is free of the others.

    A record whose leaves are arrays. Its methods take rows with the outcomes on the last axis, p the
    nominal probabilities and y the targets; the radius is a number or has the shape of the rows.
    """

    name: ClassVar[str]
    # Fields that belong to no row in particular; every other one has the rows' axes in front.
    shared: ClassVar[tuple[str, ...]] = ()
    # Whether repeated successors with equal signals may be merged into one outcome.
    merges: ClassVar[bool] = True

    radius: Any

    def __init__(self, radius: ArrayLike) -> None:
        try:
            self.radius = np.array(radius, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"radius: expected a number or an (S, A) array: {error}") from error
        if not (self.radius >= 0).all():
            first = tuple(int(i) for i in np.argwhere(~(self.radius >= 0))[0])
            where = f" at (state {first[0]}, action {first[1]})" if len(first) == 2 else ""
            raise ValueError(f"radius: expected at least 0, got {self.radius[first]}{where}")
        self.radius.flags.writeable = False

    @abc.abstractmethod
    def respond(
        self,
        p: Float[Array, "*rows K"],
        y: Float[Array, "*rows K"],
        guess: Float[Array, "*rows"] | None = None,
    ) -> Response:
        """The worst response to y, with the dual value that certifies it."""

    @abc.abstractmethod
    def divergence(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """How far q is from p in this set's own measure."""

    @abc.abstractmethod
    def project(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member nearest to q in Euclidean distance."""

    @property
    def keeps_support(self) -> bool:
        """Whether no member has mass where p has none."""
        return True

    @property
    def fits_lists(self) -> bool:
        """Whether members live on a row's own entries, so that successor lists are exact."""
        return self.keeps_support

    def reach(self, p: Float[np.ndarray, "S A K"]) -> Bool[np.ndarray, "S A K"]:
        """The outcomes that some member gives mass to; the others may be left out of a row."""
        return p > 0 if self.keeps_support else np.ones(p.shape, bool)

    def respond_and_check(
        self,
        p: Float[Array, "*rows K"],
        y: Float[Array, "*rows K"],
        guess: Float[Array, "*rows"] | None = None,
    ) -> tuple[Response, Bool[Array, "*rows"]]:
        """The worst response, and whether it was checked to be a member, apart from its search."""
        response = self.respond(p, y, guess)
        return response, self.contains(p, response.kernel)

    def worst_response(
        self, p: Float[Array, "*rows K"], y: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows K"]:
        """The member q that makes q·y smallest."""
        return self.respond(p, y).kernel

    def dual_value(
        self, p: Float[Array, "*rows K"], y: Float[Array, "*rows K"]
    ) -> Float[Array, "*rows"]:
        """A lower bound on min q·y, valid at whatever multiplier was reached."""
        return self.respond(p, y).lower

    @compiled_float64
    def contains(
        self, p: Float[Array, "*rows K"], q: Float[Array, "*rows K"], tolerance: float = 1e-9
    ) -> Bool[Array, "*rows"]:
        """Whether q is a distribution in the set, up to rounding."""
        radius = self.radius
        divergence = self.divergence(p, q)
        # An infinite radius frees a row within the set's own reach, not beyond it.
        inside = (divergence <= radius * (1 + tolerance) + _ROUNDING) & (divergence < np.inf)
        return inside & (abs(q.sum(-1) - 1) <= tolerance) & (q >= -tolerance).all(-1)

    def scaled(self, factor: ArrayLike) -> Self:
        """The same set with its radii multiplied by a factor; zero times infinity is zero."""
        if not (np.asarray(factor, float) >= 0).all():
            raise ValueError(f"factor: expected at least 0, got {factor!r}")
        radius, factor = np.broadcast_arrays(np.asarray(self.radius), np.asarray(factor, float))
        product = np.zeros(radius.shape)
        np.multiply(radius, factor, out=product, where=(radius > 0) & (factor > 0))
        return self._with_radius(product)

    def with_radius(self, radius: ArrayLike) -> Self:
        """The same kind of set with another radius."""
        return dataclasses.replace(self, radius=radius)

    def by_row(self) -> tuple[Self, Self]:
        """The fields that have a row's axes in front, and the shared ones; `eqx.combine` joins them."""
        split = jax.tree.map(lambda _: True, self)
        for name in self.shared:
            split = eqx.tree_at(lambda s, name=name: getattr(s, name), split, False)
        return eqx.partition(self, split)

    def laid_out(
        self,
        pairs: Callable[[np.ndarray], np.ndarray],
        entries: Callable[[np.ndarray], np.ndarray],
    ) -> Self:
        """The same set with its fields in the layout of a table.

        Arguments:
            pairs: brings an (S, A) array there, by way of broadcasting.
            entries: brings an array in the layout of the model's kernel there, zero in what is added.
        """
        del entries
        return self._with_radius(pairs(np.asarray(self.radius)))

    def __str__(self) -> str:
        smallest, largest = np.min(self.radius), np.max(self.radius)
        radius = f"{smallest:g}" if smallest == largest else f"{smallest:g} to {largest:g}"
        return f"{type(self).__name__}({radius})"

    def _with_radius(self, radius: np.ndarray) -> Self:
        return eqx.tree_at(lambda s: s.radius, self, radius)

    def check_fits(self, p: Float[np.ndarray, "S A K"]) -> None:
        """Raises a ValueError unless the set fits a model with these nominal probabilities."""
        shape, expected = np.shape(self.radius), p.shape[:2]
        if shape not in ((), expected):
            raise ValueError(f"radius: expected a number or shape {expected}, got {shape}")

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON header and named arrays from which `from_arrays` makes the set again."""
        return {"set": self.name}, {"radius": np.asarray(self.radius)}

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """The inverse of `to_arrays`."""
        settings = {name: value for name, value in header.items() if name != "set"}
        return cls(**arrays, **settings)
