"""Loops over arrays that suit the device, and arrays divided over several devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from holdfast._support.arguments import check_whole_number

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_AXIS, _WHOLE = "parts", PartitionSpec()


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


def over_given_devices(verb: F) -> F:
    """Return a verb with an argument `devices`, which runs in `over_devices`."""

    @functools.wraps(verb)
    def wrapped(*args: Any, devices: int = 1, **kwargs: Any) -> Any:
        check_devices(devices)
        with over_devices(devices):
            return verb(*args, devices=devices, **kwargs)

    return wrapped  # type: ignore[return-value]


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


def padded_for_devices(rows: int) -> int:
    """Return a number of rows rounded up, so that every device of `over_devices` has as many.

    Each has a multiple of 128, the rows that one block of a GPU kernel takes.
    """
    unit = 128 * device_count()
    return -(-rows // unit) * unit


def placed(array: np.ndarray, axis: int = 0) -> Array:
    """Return a NumPy array on the device, or on those of `over_devices`, each with its part of one axis.

    An axis whose length is not a multiple of the devices is copied to all of them.
    """
    count = device_count()
    if count == 1:
        return jnp.asarray(array)
    spec = _WHOLE if array.shape[axis] % count else PartitionSpec(*[None] * axis, _AXIS)
    return jax.device_put(array, NamedSharding(_mesh(count), spec))


def in_parts(
    function: Callable[..., Any], divided: Any, axes: Any, *shared: Any, result_axis: int
) -> Any:
    """Return function(divided, *shared), for which every device works on its part of an axis.

    The function sees the part alone, and returns the part of the result.

    Arguments:
        function: function of pytrees.
        divided: arrays to divide.
        axes: for every array of `divided`, the axis to divide, or None to share it.
        *shared: arrays that all devices share. They are brought together if they are divided.
        result_axis: the divided axis of every array of the result.
    """
    if device_count() == 1:
        return function(divided, *shared)

    def along(leaf: Any, axis: int | None) -> PartitionSpec:
        return _WHOLE if axis is None else PartitionSpec(*[None] * (axis % leaf.ndim), _AXIS)

    leaves, structure = jax.tree.flatten(divided)
    specs = jax.tree.leaves(jax.tree.map(along, divided, axes), is_leaf=_is_spec)

    def apply(leaves: list[Array], *shared: Any) -> Any:
        return function(jax.tree.unflatten(structure, leaves), *shared)

    found = jax.eval_shape(apply, leaves, *shared)
    return jax.shard_map(
        apply,
        in_specs=(specs, *[_WHOLE] * len(shared)),
        out_specs=jax.tree.map(lambda leaf: along(leaf, result_axis), found),
        check_vma=False,  # loops of the library start from constants, which are on all devices
    )(leaves, *shared)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
