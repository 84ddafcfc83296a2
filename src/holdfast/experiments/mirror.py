"""Folders that are not on this machine: anything that fsspec knows, such as s3://bucket/folder.

Work is done in a folder here. What is there already is fetched first, and what is finished is sent as
soon as it is.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def is_remote(out: str) -> bool:
    """Whether a folder is named by a URL."""
    return "://" in out


@contextlib.contextmanager
def working_folder(out: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A folder to work in, and what sends everything new in it to where it belongs.

    A folder on this machine is worked in as it is.

    Raises:
        ValueError: fsspec is not installed, or does not know the URL; before any work.
    """
    if not is_remote(out):
        yield Path(out), lambda: None
        return
    mirror = _Mirror(out)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
        folder = Path(scratch)
        mirror.fetch(folder)
        try:
            yield folder, lambda: mirror.send(folder)
        finally:
            mirror.send(folder)


class _Mirror:
    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ValueError(
                f'out: {url} needs fsspec; pip install "holdfast[ray]", or fsspec and what it needs'
            ) from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise ValueError(f"out: {url}: {error}") from error
        self._sent: dict[str, tuple[int, int]] = {}

    def fetch(self, folder: Path) -> None:
        """Brings what is there already."""
        if not self._files.exists(self._root):
            return
        for remote in self._files.find(self._root):
            relative = str(remote)[len(self._root.rstrip("/")) + 1 :]
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._files.cat_file(remote))
            self._sent[relative] = _mark(path)

    def send(self, folder: Path) -> None:
        """Sends what is new or changed; a file appears there under its name when all of it is there."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            relative = path.relative_to(folder).as_posix()
            if path.name.startswith(".") or self._sent.get(relative) == _mark(path):
                continue
            mark, target = _mark(path), f"{self._root.rstrip('/')}/{relative}"
            parent, name = target.rsplit("/", 1)
            self._files.makedirs(parent, exist_ok=True)
            temporary = f"{parent}/.{name}.part"
            self._files.pipe_file(temporary, path.read_bytes())
            self._files.mv(temporary, target)
            self._sent[relative] = mark


def _mark(path: Path) -> tuple[int, int]:
    found: Any = path.stat()
    return found.st_size, found.st_mtime_ns
