"""Doing the same thing many times, in the way that suits the device."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
from jax import lax

P = ParamSpec("P")
T = TypeVar("T")


def side_by_side(function: Callable[..., Any], *arrays: Any) -> Any:
    """`function` over the leading axis: all at once on an accelerator, in turn on a CPU.

    A CPU has no use for more width than one batch already has, and its batched products are slower.
    """
    if jax.default_backend() == "cpu":
        return lax.map(lambda each: function(*each), arrays)
    return jax.vmap(function)(*arrays)


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
