"""Atomic file writes, and strictly valid JSON."""

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

# The end of the names of files that are not complete yet.
_UNFINISHED = ".unfinished"


class WriteError(OSError):
    """A file cannot be written: a full or read-only disk, or a missing permission."""


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the path in errors of the operating system.

    Raises:
        WriteError: the block raised an OSError.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, and rename it to `path` when its content is on disk.

    Temporary files of the same path whose process has been killed are removed.

    Raises:
        WriteError: the file cannot be written; the message names it.
    """
    path = Path(path)
    with writing(path):
        make_folder(path.parent)
        remove_unfinished(path.parent, f".{path.name}.")
        file, temporary = _temporary(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                umask = os.umask(0)
                os.umask(umask)
                temporary.chmod(0o666 & ~umask)
                if os.name == "posix":  # still locked, so no other process removes it
                    temporary.replace(path)
            if os.name != "posix":
                temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _temporary(path: Path) -> tuple[IO[bytes], Path]:
    """Return a new file beside a path, locked as long as it is open."""
    while True:
        handle, name = tempfile.mkstemp(_UNFINISHED, f".{path.name}.", path.parent)
        _lock(handle, wait=True)
        # Another process may have removed the file before it was locked.
        if Path(name).exists():
            return os.fdopen(handle, "wb"), Path(name)
        os.close(handle)


def remove_unfinished(folder: Path, prefix: str = "") -> None:
    """Remove the incomplete files in a folder that no process is writing any more."""
    with os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.endswith(_UNFINISHED)]
    for name in names:
        if not name.startswith(prefix or "."):
            continue
        with contextlib.suppress(FileNotFoundError), (folder / name).open("rb") as file:
            if _lock(file.fileno()):
                (folder / name).unlink()


def _lock(handle: int, *, wait: bool = False) -> bool:
    """Lock an open file; return False if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


@contextlib.contextmanager
def locked(folder: Path, work: str) -> Iterator[None]:
    """Lock a folder against other processes until the block or the process ends.

    Arguments:
        folder: the folder, created if necessary.
        work: what is done there, for the message.

    Raises:
        ValueError: another process has locked it.
        WriteError: the folder cannot be created.
    """
    with writing(folder):
        make_folder(folder)
    if os.name != "posix":  # a folder cannot be opened
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not _lock(handle):
            raise ValueError(f"{folder}: another process is {work} there")
        yield
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and wait until their names are on disk."""
    if folder.is_dir():
        return
    missing = [folder, *(parent for parent in folder.parents if not parent.exists())]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    if os.name != "posix":  # a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot do this for folders
        pass
    finally:
        os.close(handle)


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
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file atomically."""
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
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN becomes None, an infinity the string "inf"."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    value = plain_number(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar as a Python one, and anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value
