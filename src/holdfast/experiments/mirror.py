"""Output folders at a URL that fsspec supports, such as s3://bucket/folder.

Work is done in a temporary folder. Existing files are fetched first, and new files are sent as soon as
they are finished.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def is_remote(out: str) -> bool:
    """Return whether a folder is a URL.

    Example:
        >>> is_remote("s3://bucket/folder"), is_remote("runs/mine")
        (True, False)
    """
    return "://" in out


@contextlib.contextmanager
def working_folder(out: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield a folder to work in, and a function that sends its new files to their destination.

    A folder of this machine is used directly.

    Raises:
        ValueError: fsspec is not installed, or does not support the URL; before any work.
    """
    if not is_remote(out):
        yield Path(out), lambda: None
        return
    remote, root = _file_system(out)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
        folder = Path(scratch)
        if remote.exists(root):
            remote.get(f"{root}/", f"{scratch}/", recursive=True)
        sent = _marks(folder)

        def send() -> None:
            for name, mark in _marks(folder).items():
                if sent.get(name) != mark:
                    # Renaming makes a file visible only when it is complete.
                    parent, _, last = f"{root}/{name}".rpartition("/")
                    remote.makedirs(parent, exist_ok=True)
                    remote.pipe_file(f"{parent}/.{last}.part", (folder / name).read_bytes())
                    remote.mv(f"{parent}/.{last}.part", f"{parent}/{last}")
                    sent[name] = mark

        try:
            yield folder, send
        finally:
            send()


def _file_system(url: str) -> tuple[Any, str]:
    try:
        import fsspec

        remote, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        hint = f'pip install "holdfast[ray]", or fsspec and its package for this URL ({error})'
        raise ValueError(f"out: {url} needs fsspec: {hint}") from error
    except ValueError as error:
        raise ValueError(f"out: {url}: {error}") from error
    return remote, root.rstrip("/")


def _marks(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of every finished file, by its relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = status.st_size, status.st_mtime_ns
    return found
