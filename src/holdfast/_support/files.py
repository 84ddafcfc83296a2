"""Files that are complete whenever they exist, and JSON that every reader accepts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, and rename it to `path` when its content is on disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


# File systems allow 255 bytes in a name; a path adds a radius, a seed and an ending to it.
_LONGEST_NAME = 150


def check_path_name(argument: str, name: str) -> None:
    """Raise a ValueError unless a name can be part of a path without leaving its folder.

    Example:
        >>> check_path_name("variants", "slow steps")
        >>> check_path_name("variants", "/../../x")
        Traceback (most recent call last):
        ...
        ValueError: variants: '/../../x' cannot be part of a file name
    """
    odd = any(character in "/\\" or not character.isprintable() for character in name)
    if not name or odd or name.startswith(".") or len(name.encode()) > _LONGEST_NAME:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:40]}…"
        raise ValueError(f"{argument}: {shown!r} cannot be part of a file name")


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder.

    Raises:
        ValueError: the name leads out of the folder, also by way of a link.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name}: leads out of {folder}")
    return path


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, whole or not at all."""
    with atomic_write(path) as file:
        file.write(data)


def read_json(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """Return the record in a JSON file.

    Arguments:
        path: the file.
        what: what the file should be, for the message.

    Raises:
        ValueError: the file cannot be read or contains no record; the message names it.
    """
    try:
        found = json.loads(Path(path).read_text("utf-8"))
    # Deep nesting exceeds Python's stack, and a number may exceed the memory.
    except (ValueError, OSError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}: damaged, not {what} ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged, not {what}")
    return found


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as JSON: NaN becomes null, an infinity the string "inf"."""
    write_text(path, to_json(value) + "\n")


def to_json(value: Any) -> str:
    """Return a value as JSON text: NaN becomes null, an infinity the string "inf"."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = plain_number(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar as a Python one, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value
