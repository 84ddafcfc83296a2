"""Doing the same thing many times, in the way that suits the device, or on several of them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from holdfast._support.arguments import check_whole_number

P = ParamSpec("P")
T = TypeVar("T")

_AXIS, _WHOLE = "episodes", PartitionSpec()


def side_by_side(function: Callable[..., Any], *arrays: Any) -> Any:
    """`function` over the leading axis: all at once on an accelerator, in turn on a CPU.

    A CPU has no use for more width than one batch already has, and its batched products are slower.
    """
    if jax.default_backend() == "cpu":
        return lax.map(lambda each: function(*each), arrays)
    return jax.vmap(function)(*arrays)


def check_devices(count: int) -> None:
    """Refuses to divide episodes over devices that are not there.

    Raises:
        ValueError: it is not a number of devices, or there are fewer.
    """
    check_whole_number("devices", count, least=1)
    here = jax.devices()
    if count > len(here):
        raise ValueError(
            f"devices: there are {len(here)} here ({here[0].platform}), got {count}; a CPU counts as "
            "several with XLA_FLAGS=--xla_force_host_platform_device_count=N"
        )


def over_devices(count: int) -> contextlib.AbstractContextManager[Any]:
    """Within this, what `spread` is given is divided over so many devices; one is as without it."""
    return contextlib.nullcontext() if count == 1 else jax.set_mesh(_mesh(count))


def on_devices(tree: Any, count: int) -> Any:
    """The arrays, whole on each of so many devices; where that is one, as they are."""
    return tree if count == 1 else jax.device_put(tree, NamedSharding(_mesh(count), _WHOLE))


def whole(tree: Any) -> Any:
    """Inside a program, the arrays whole on every device that `over_devices` names."""
    if device_count() == 1:
        return tree
    return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, _WHOLE), tree)


def _mesh(count: int) -> Mesh:
    kinds = (AxisType.Auto,)
    return jax.make_mesh((count,), (_AXIS,), axis_types=kinds, devices=jax.devices()[:count])


def device_count() -> int:
    """How many devices episodes are divided over, in `over_devices`; otherwise one."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(_AXIS, 1)


def spread(tree: Any, axis: int = 0) -> Any:
    """The arrays with one axis divided over the devices; those that do not divide are left to XLA."""
    count = device_count()

    def divided(leaf: Array) -> Array:
        if leaf.shape[axis] % count:
            return leaf
        return lax.with_sharding_constraint(leaf, PartitionSpec(*[None] * axis, _AXIS))

    return tree if count == 1 else jax.tree.map(divided, tree)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """`eqx.filter_jit` of a whole program, without the search for the fastest product on a GPU.

    That search takes a third of the compilation and saves a third of the training, so it pays from some
    nine hundred iterations on (`benchmarks/deep_experiment.py` prints both parts). Whoever sets
    `--xla_gpu_autotune_level` in XLA_FLAGS has it their way.
    """

    @functools.cache
    def program(backend: str) -> Callable[P, T]:
        if backend != "gpu" or "xla_gpu_autotune_level" in os.environ.get("XLA_FLAGS", ""):
            return eqx.filter_jit(function)
        quick: Any = {"compiler_options": {"xla_gpu_autotune_level": 0}}
        return eqx.filter_jit(function, **quick)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return program(jax.default_backend())(*args, **kwargs)

    return call
