"""Compiled functions: options that compile quickly, and compiled programs on disk."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

P = ParamSpec("P")
T = TypeVar("T")

# Options of XLA by backend. On a CPU the emitters of fused loops take half of the compilation, and the
# code without them is as fast. On a GPU autotuning of matrix products takes a third of the compilation
# and saves a third of the training: it pays from about 900 iterations on
# (`benchmarks/deep_experiment.py` prints both parts).
_QUICK: dict[str, dict[str, Any]] = {
    "cpu": {"xla_cpu_use_fusion_emitters": False},
    "gpu": {"xla_gpu_autotune_level": 0},
}
# A program that plays a simulator is large, and three quarters of its compilation are optimisation.
_UNOPTIMISED: dict[str, dict[str, Any]] = {"cpu": {"xla_backend_optimization_level": 0}}
# Largest size of the folder of compiled programs, some thousand of them.
_LARGEST_FOLDER = 1 << 30


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Return `eqx.filter_jit(function)` with options that compile quickly.

    Options that are set in XLA_FLAGS have priority. Inside another compiled function the function is
    traced as part of it.
    """
    return _compiled(function, _options)


def compiled_simulation(function: Callable[P, T]) -> Callable[P, T]:
    """Return `compiled(function)`, for a function that plays a simulator.

    If HOLDFAST_COMPILE is "quick", a CPU's program is not optimised: it is ready three times sooner and
    runs three times longer, which pays for the short runs of tests.
    """
    return _compiled(function, _options_of_simulations)


def _compiled(function: Callable[P, T], options: Callable[[str], dict[str, Any]]) -> Callable[P, T]:
    @functools.cache
    def program(backend: str) -> Callable[P, T]:
        quick: Any = {"compiler_options": options(backend)}
        return eqx.filter_jit(function, **quick)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return function(*args, **kwargs)
        return program(jax.default_backend())(*args, **kwargs)

    return call


@functools.cache
def _options(backend: str) -> dict[str, Any]:
    return _known(_QUICK.get(backend, {}))


@functools.cache
def _options_of_simulations(backend: str) -> dict[str, Any]:
    if os.environ.get("HOLDFAST_COMPILE") != "quick":
        return _options(backend)
    return _known(_QUICK.get(backend, {}) | _UNOPTIMISED.get(backend, {}))


def _known(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the options that this version of XLA knows."""
    keep_programs()
    flags = os.environ.get("XLA_FLAGS", "")
    options = {name: value for name, value in wanted.items() if name not in flags}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:
        return {}
    return options


@functools.cache
def keep_programs() -> Path | None:
    """Turn on JAX's persistent compilation cache, small programs included, and return its folder.

    The folder is `holdfast/jax` in the user's cache folder. The oldest programs are removed if it is
    larger than 1 GiB. A cache that the user has set in JAX stays as it is, and so does JAX if
    HOLDFAST_CACHE is "off" or the folder is not writable; the result is then None.
    """
    if os.environ.get("HOLDFAST_CACHE") == "off" or _users_folder():
        return None
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "holdfast" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # not writable, or a user without a home folder
        return None
    _shrink(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # JAX keeps programs that took a second by default; a solve compiles many smaller ones.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _users_folder() -> str | None:
    return jax.config.values["jax_compilation_cache_dir"]


def _shrink(folder: Path) -> None:
    """Remove the oldest files until half of the largest size is left, if the folder is larger."""
    entries = [(entry.stat(), entry.path) for entry in os.scandir(folder) if entry.is_file()]
    size = sum(stat.st_size for stat, _ in entries)
    if size <= _LARGEST_FOLDER:
        return
    for stat, path in sorted(entries, key=lambda entry: entry[0].st_mtime):
        if size <= _LARGEST_FOLDER // 2:
            break
        Path(path).unlink(missing_ok=True)  # another process may have removed it
        size -= stat.st_size
