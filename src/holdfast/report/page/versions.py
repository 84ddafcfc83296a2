"""Whether a folder was written by a version of Holdfast that this one can read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast import __version__


def check_not_newer(versions: Mapping[str, Any]) -> None:
    """Refuses what a newer version wrote: its numbers may mean something else.

    Arguments:
        versions: as in the folder's files, with the key "holdfast".

    Raises:
        ValueError: it is newer; the message has both versions.

    Example:
        >>> check_not_newer({"holdfast": "0.0.1"})
        >>> check_not_newer({"holdfast": "99.1"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: written by Holdfast 99.1, which is newer than this one, ...
    """
    found = str(versions.get("holdfast", ""))
    if _release(found) > _release(__version__):
        raise ValueError(
            f"written by Holdfast {found}, which is newer than this one, {__version__}"
        )


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers.group().split(".")] if numbers else []
    return tuple([*parts, 0, 0, 0][:3])
