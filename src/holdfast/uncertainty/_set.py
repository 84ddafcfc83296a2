"""The protocol that every uncertainty set follows."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import ArrayLike

from holdfast._precision import compiled_float64

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
    # Whether no member has mass where p has none, so that successor lists are exact.
    keeps_support: ClassVar[bool]

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
        """The same set with its radii multiplied by a factor."""
        return dataclasses.replace(self, radius=self.radius * np.asarray(factor))

    def check_fits(self, states: int, actions: int) -> None:
        """Raises a ValueError unless the radius fits a model of this size."""
        shape = np.shape(self.radius)
        if shape not in ((), (states, actions)):
            raise ValueError(
                f"radius: expected a number or shape ({states}, {actions}), got {shape}"
            )

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """A JSON header and named arrays from which `from_arrays` makes the set again."""
        return {"set": self.name}, {"radius": np.asarray(self.radius)}

    @classmethod
    def from_arrays(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """The inverse of `to_arrays`."""
        settings = {name: value for name, value in header.items() if name != "set"}
        return cls(**arrays, **settings)
