"""Compiled programs on disk, shared by calls of the command line and by workers."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def use_compilation_cache() -> Path | None:
    """Turn on JAX's persistent compilation cache, small programs included, and return its folder.

    The folder is JAX_COMPILATION_CACHE_DIR, or `holdfast/jax` in the user's cache folder. Without a
    writable folder the cache stays off, and the result is None. If JAX is not imported yet, its
    environment variables are set, so that commands that do not need JAX start without it.
    """
    folder = _folder()
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": folder,
        # JAX keeps programs that took a second by default; a solve compiles many smaller ones.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items() if folder else [("jax_enable_compilation_cache", False)]:
        if folder and os.environ.get(name.upper()):
            continue
        if "jax" in sys.modules:
            sys.modules["jax"].config.update(name, str(value) if value is folder else value)
        else:
            os.environ[name.upper()] = str(value)
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
