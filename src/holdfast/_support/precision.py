"""Tables are computed in float64 whatever the user's own JAX setting is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


def float64(function: F) -> F:
    """Runs a function with 64-bit JAX inside; the setting outside is untouched."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def compiled_float64(function: F) -> F:
    """Like `float64`, compiled; outside of a trace NumPy arrays come back."""
    compiled = eqx.filter_jit(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        # Constants inside a user's trace are computed at once, like everywhere else.
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            args, kwargs = jax.tree.map(_as_float64, (args, kwargs))
            return jax.tree.map(np.asarray, compiled(*args, **kwargs))

    return wrapped  # type: ignore[return-value]


def _as_float64(leaf: Any) -> Any:
    return np.asarray(leaf, np.float64) if isinstance(leaf, (np.ndarray, jax.Array)) else leaf
