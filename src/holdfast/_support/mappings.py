"""The memory mappings of this process, of which the operating system allows a limited number.

Every compiled program takes some, and a compiler that gets no more ends the process.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Hashable
from pathlib import Path

import jax

# Share of the limit at which compiled programs are dropped. A solve of a new shape compiles programs
# with up to 3,000 mappings, a twentieth of the usual limit of 65,530.
_MOST_SHARE = 0.5

_shapes: set[Hashable] = set()


def mappings() -> int:
    """Return the number of memory mappings of this process; 0 if the system does not tell."""
    try:
        with Path("/proc/self/maps").open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return 0


def most_mappings() -> int | None:
    """Return the largest number of memory mappings of a process; None if the system does not tell."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return None


def make_room(shape: Hashable) -> None:
    """Drop compiled programs, with a warning, if the memory mappings are running out.

    Arguments:
        shape: what the next programs are compiled for; the mappings are counted when it is a new one.
    """
    if shape in _shapes:
        return
    _shapes.add(shape)
    limit = most_mappings()
    if limit is None or (used := mappings()) < _MOST_SHARE * limit:
        return
    warnings.warn(
        f"{used:,} of {limit:,} memory mappings are in use, so all compiled programs are dropped and "
        f"compiled again when they are needed; models of {len(_shapes):,} shapes were used",
        stacklevel=2,
    )
    _shapes.clear()
    jax.clear_caches()
    gc.collect()
