"""Compiled programs kept between calls of the command line; the library itself keeps none."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def use_compilation_cache() -> Path | None:
    """Turns on JAX's persistent compilation cache, small programs included.

    The folder is JAX_COMPILATION_CACHE_DIR where that is set, otherwise `holdfast/jax` in the
    user's cache folder. One that cannot be written is done without.

    Returns:
        The folder in use, None if there is none.
    """
    import jax

    folder = _folder()
    if folder is None or not _is_writable(folder):
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    settings = {
        "jax_compilation_cache_dir": str(folder),
        # By default only what took a second is kept, and a solve compiles many smaller programs.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        if not os.environ.get(name.upper()):
            jax.config.update(name, value)
    return folder


def _folder() -> Path | None:
    if chosen := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(chosen)
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home folder
        return None
    return home / "holdfast" / "jax"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
