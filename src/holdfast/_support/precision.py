"""Computation in float64, whatever precision the user has set in JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from holdfast._support.compilation import compiled

F = TypeVar("F", bound=Callable[..., Any])


def float64(function: F) -> F:
    """Return the function with 64-bit JAX inside; the setting outside does not change."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def compiled_float64(function: F) -> F:
    """Return the function compiled, with 64-bit JAX inside; outside a trace it returns NumPy arrays."""
    program = compiled(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        # Inside a user's trace, constant arguments give constants.
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            args, kwargs = jax.tree.map(_as_float64, (args, kwargs))
            return jax.tree.map(np.asarray, program(*args, **kwargs))

    return wrapped  # type: ignore[return-value]


def _as_float64(leaf: Any) -> Any:
    return np.asarray(leaf, np.float64) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf
