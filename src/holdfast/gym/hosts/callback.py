"""Calls from a compiled program to a host.

A compiled program does not contain the host that it steps. It contains a callback that receives the
host's number as data and looks the host up in a table. Environments that differ only in their host, such
as two results of the same `hf.disturb` call, therefore share one compiled program.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import weakref
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array, UInt32

from holdfast.gym.hosts.host import HostReply, ReplySizes
from holdfast.simulators.environment import TrainingError

if TYPE_CHECKING:
    from holdfast.gym.hosts.pools import SyncHost
    from holdfast.gym.hosts.threads import ThreadHost

_NUMBERS = itertools.count()


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a record should be kept: not for a host's own errors and interrupts."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, TrainingError | KeyboardInterrupt)


# JAX logs the traceback of a callback that fails. A host's own failure is raised as a sentence.
logging.getLogger("jax._src.callback").addFilter(_is_news)


@dataclasses.dataclass(frozen=True, eq=False)
class HostHandle:
    """A host, and the other Python objects that belong to an environment outside JAX.

    All handles compare equal, so that a handle in the static part of a pytree does not decide which
    compiled program is used. The pytree carries `number` as a traced leaf instead.

    Attributes:
        host: the host.
        recipe: arguments of the `disturb` call, as JSON values.
        observation_space: space of the Gymnasium environment's observations.
        action_space: space of the Gymnasium environment's actions.
        spec: id and options of the Gymnasium environment, or None if a function makes it.
        failures: exceptions that the host raised; the compiled program reports only that it failed.
        number: key of this handle in the table.
        calls: number of steps of single copies so far, under "steps".
    """

    host: SyncHost | ThreadHost
    recipe: dict[str, Any]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    spec: dict[str, Any] | None
    failures: list[BaseException] = dataclasses.field(default_factory=list)
    number: int = dataclasses.field(default_factory=lambda: next(_NUMBERS))
    calls: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        _HANDLES[self.number] = self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostHandle)

    def __hash__(self) -> int:
        return hash(HostHandle)


# Weak references: a host ends when the last environment that holds its handle is deleted.
_HANDLES: weakref.WeakValueDictionary[int, HostHandle] = weakref.WeakValueDictionary()


def handle_of(number: Any) -> HostHandle:
    """Return the handle with this number.

    Raises:
        RuntimeError: the environment has been deleted.
    """
    try:
        return _HANDLES[int(number)]
    except KeyError:
        raise RuntimeError(
            "environment: it was deleted while a compiled program still stepped it; keep a reference "
            "to it until the results are there"
        ) from None


def call_host(
    method: Literal["reset", "step"],
    sizes: ReplySizes,
    number: UInt32[Array, ""],
    *arrays: Array,
) -> Any:
    """Return the `HostReply` of a host, as JAX arrays.

    Arguments:
        method: the method to call.
        sizes: the shapes of the reply.
        number: number of the host's handle, traced.
        *arrays: arguments of the method, with one row for each copy.
    """
    rows = len(arrays[0])
    packed, kinds = _packed((jnp.broadcast_to(number, (rows,)), *arrays))

    def struct(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype)

    shapes: Any = (
        struct(jnp.uint32, sizes.place),
        struct(jnp.float32, sizes.observation),
        struct(jnp.float32, sizes.features),
        struct(jnp.float32),
        struct(jnp.float32, sizes.costs),
        struct(bool),
    )

    def call(packed: Any) -> tuple[np.ndarray, ...]:
        bits = np.asarray(packed)
        # A program that is mapped over seeds adds leading axes.
        lead = bits.shape[:-2]
        numbers, *given = _unpacked(bits.reshape(-1, bits.shape[-1]), kinds)
        handle = handle_of(numbers[0])
        if method == "step":
            handle.calls["steps"] += int(np.count_nonzero(~given[-1]))  # copies that are not over
        try:
            # Training checks the batch for overflow and NaN, and reports the step.
            with np.errstate(over="ignore", invalid="ignore"):
                reply: HostReply = getattr(handle.host, method)(*given)
        except BaseException as error:
            handle.failures.append(error)
            raise
        return tuple(
            np.ascontiguousarray(leaf, shape.dtype).reshape(*lead, *shape.shape)
            for leaf, shape in zip(reply, shapes, strict=True)
        )

    if not sizes.is_replayable:
        # A host that keeps its own state must be called in the order of the program.
        return HostReply(*io_callback(call, shapes, packed, ordered=True))
    if jax.default_backend() == "cpu":
        # It reads and writes the program's memory. `pure_callback` copies its operand to a JAX array
        # first, which takes a fifth of a step of twelve robots.
        def fill(_: Any, buffers: Any, packed: Any) -> None:
            for buffer, leaf in zip(buffers, call(packed), strict=True):
                np.asarray(buffer)[...] = leaf

        found = buffer_callback(fill, shapes, vmap_method="broadcast_all")(packed)
    else:
        found = jax.pure_callback(call, shapes, packed, vmap_method="broadcast_all")
    return HostReply(*found)


_Kind = tuple[np.dtype, tuple[int, ...]]


def _packed(arrays: tuple[Array, ...]) -> tuple[UInt32[Array, "rows bits"], list[_Kind]]:
    """Return the bits of all arrays in one array.

    Each operand of a callback costs about 2 % of a step of 64 robots, so there is only one.
    """
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
