"""Doing the same thing many times, in the way that suits the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax


def side_by_side(function: Callable[..., Any], *arrays: Any) -> Any:
    """`function` over the leading axis: all at once on an accelerator, in turn on a CPU.

    A CPU has no use for more width than one batch already has, and its batched products are slower.
    """
    if jax.default_backend() == "cpu":
        return lax.map(lambda each: function(*each), arrays)
    return jax.vmap(function)(*arrays)
