"""Work on large NumPy arrays in blocks that fit into the cache, on several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Entries of a block: 2¹⁸ doubles are 2 MiB.
_ENTRIES = 1 << 18
# NumPy computes without holding the interpreter's lock. More threads than this wait for memory.
_MOST_THREADS = 16


def is_long(size: int) -> bool:
    """Return whether an array of this size is worth dividing."""
    return size > 4 * _ENTRIES


def over_blocks(function: Callable[[slice], T], rows: int, width: int) -> list[T]:
    """Return function(block) for slices that together cover all rows, in their order.

    Arguments:
        function: function of a slice of rows; it runs on several threads at once.
        rows: number of rows.
        width: number of entries of a row.

    Example:
        >>> sum(over_blocks(lambda block: block.stop - block.start, rows=10, width=1))
        10
    """
    step = max(1, _ENTRIES // max(1, width))
    blocks = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    if len(blocks) == 1:
        return [function(blocks[0])]
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, blocks))
