"""Calling a host from inside a compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jaxtyping import Array, UInt32

from holdfast.gym.hosts.host import Host, Reply


def ask(
    host: Host,
    function: Callable[..., Reply],
    failures: list[BaseException],
    observation_size: int,
    *arrays: Array,
) -> Any:
    """A `Reply` to arrays of as many rows, as arrays of JAX.

    Arguments:
        host: that is asked.
        function: of the host, `reset` or `step`.
        failures: where what it raises is put: a program says only that something did.
        observation_size: how long an observation is.
        *arrays: what it is called with, a row for each copy.
    """
    rows = len(arrays[0])
    packed, kinds = _packed(arrays)

    def struct(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype)

    shapes: Any = (
        struct(jnp.uint32, host.place_size),
        struct(jnp.float32, observation_size),
        struct(jnp.float32, host.feature_size),
        struct(jnp.float32),
        struct(jnp.float32, len(host.cost_names)),
        struct(bool),
    )

    def call(packed: Any) -> tuple[np.ndarray, ...]:
        bits = np.asarray(packed)
        # A program that is mapped over seeds has further leading axes.
        lead = bits.shape[:-2]
        try:
            # What is too large or no number is found in the batch, and told with the step it was in.
            with np.errstate(over="ignore", invalid="ignore"):
                reply = function(*_unpacked(bits.reshape(-1, bits.shape[-1]), kinds))
        except BaseException as error:
            failures.append(error)
            raise
        return tuple(
            np.ascontiguousarray(leaf, shape.dtype).reshape(*lead, *shape.shape)
            for leaf, shape in zip(reply, shapes, strict=True)
        )

    if host.is_replayable:
        found = jax.pure_callback(call, shapes, packed, vmap_method="broadcast_all")
    else:
        # What cannot go back must be called in the program's own order.
        found = io_callback(call, shapes, packed, ordered=True)
    return Reply(*found)


_Kind = tuple[np.dtype, tuple[int, ...]]


def _packed(arrays: tuple[Array, ...]) -> tuple[UInt32[Array, "rows bits"], list[_Kind]]:
    """All arrays as the bits of one: every array that is handed over costs a fiftieth of a step."""
    columns, kinds = [], []
    for array in arrays:
        kinds.append((np.dtype(array.dtype), array.shape[1:]))
        wide = array.astype(jnp.uint32) if array.dtype == bool else array
        bits = lax.bitcast_convert_type(wide, jnp.uint32)
        columns.append(bits.reshape(len(array), -1))
    return jnp.concatenate(columns, axis=1), kinds


def _unpacked(bits: np.ndarray, kinds: list[_Kind]) -> list[np.ndarray]:
    found, start = [], 0
    for dtype, shape in kinds:
        size = int(np.prod(shape, dtype=int))
        column = np.ascontiguousarray(bits[:, start : start + size])
        column = column.astype(bool) if dtype.kind == "b" else column.view(dtype)
        found.append(column.reshape(len(bits), *shape))
        start += size
    return found
