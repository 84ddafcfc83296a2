"""Loops over arrays that suit the device, and arrays divided over several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from holdfast._support.arguments import check_whole_number

T = TypeVar("T")

_AXIS, _WHOLE = "episodes", PartitionSpec()


def side_by_side(function: Callable[..., Any], *arrays: Any) -> Any:
    """Map a function over the leading axis: by `vmap` on an accelerator, by a loop on a CPU.

    One batch already fills a CPU, and its batched matrix products are slower.
    """
    if jax.default_backend() == "cpu":
        return lax.map(lambda each: function(*each), arrays)
    return jax.vmap(function)(*arrays)


def row(tree: T, i: int | Array) -> T:
    """Return entry i of the leading axis of every array in a pytree."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def check_devices(count: int) -> None:
    """Raise a ValueError if `count` is not a number of available devices."""
    check_whole_number("devices", count, least=1)
    here = jax.devices()
    if count > len(here):
        raise ValueError(
            f"devices: expected at most {len(here)} ({here[0].platform}), got {count}; "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N divides a CPU into N devices"
        )


def over_devices(count: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which `spread` divides arrays over `count` devices."""
    return contextlib.nullcontext() if count == 1 else jax.set_mesh(_mesh(count))


def on_devices(tree: Any, count: int) -> Any:
    """Return the arrays copied to each of `count` devices."""
    return tree if count == 1 else jax.device_put(tree, NamedSharding(_mesh(count), _WHOLE))


def whole(tree: Any) -> Any:
    """Return the arrays copied to every device of `over_devices`, inside a compiled program."""
    if device_count() == 1:
        return tree
    return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, _WHOLE), tree)


def _mesh(count: int) -> Mesh:
    kinds = (AxisType.Auto,)
    return jax.make_mesh((count,), (_AXIS,), axis_types=kinds, devices=jax.devices()[:count])


def device_count() -> int:
    """Return the number of devices of `over_devices`, or one outside of it."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(_AXIS, 1)


def spread(tree: Any, axis: int = 0) -> Any:
    """Return the arrays with one axis divided over the devices, if its length is a multiple of them."""
    count = device_count()

    def divided(leaf: Array) -> Array:
        if leaf.shape[axis] % count:
            return leaf
        return lax.with_sharding_constraint(leaf, PartitionSpec(*[None] * axis, _AXIS))

    return tree if count == 1 else jax.tree.map(divided, tree)
