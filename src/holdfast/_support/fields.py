"""Fields of Equinox modules: keyword arguments that are constants or arrays of the compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.arguments import check_whole_number


def float32(value: Any) -> Float[Array, "..."]:
    """Return an array in single precision."""
    return jnp.asarray(value, jnp.float32)


def parameter(default: Any, converter: Callable[[Any], Any] = float32) -> Any:
    """Return a field of arrays; other values run the same compiled program."""
    return eqx.field(default=default, converter=converter, kw_only=True)


def constant(default: Any, converter: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a field that is a constant of the compiled program."""
    return eqx.field(default=default, converter=converter, static=True, kw_only=True)


def horizon_field(default: int) -> Any:
    """Return a constant field for a number of steps, at least 1."""

    def checked(value: Any) -> int:
        check_whole_number("horizon", value, least=1)
        return int(value)

    return constant(default, checked)


def plain_or_traced(leaf: Array) -> Any:
    """Return a plain number, or the leaf itself inside a trace, where it has no value yet."""
    return leaf if isinstance(leaf, jax.core.Tracer) else float(leaf)
