"""Compiled programs on disk, shared by calls of the command line and by workers."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def use_compilation_cache() -> Path | None:
    """Turn on JAX's persistent compilation cache, small programs included, and return its folder.

    The folder is JAX_COMPILATION_CACHE_DIR, or `holdfast/jax` in the user's cache folder. Without a
    writable folder the cache stays off, and the result is None.
    """
    import jax

    folder = _folder()
    if folder is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    settings = {
        "jax_compilation_cache_dir": str(folder),
        # JAX keeps programs that took a second by default; a solve compiles many smaller ones.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        if not os.environ.get(name.upper()):
            jax.config.update(name, value)
    return folder


def _folder() -> Path | None:
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or home / "holdfast" / "jax")
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # not writable, or a user without a home folder
        return None
    return folder
