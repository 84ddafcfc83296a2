"""What the subcommands share: exit codes, refusals, the console."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from rich.console import Console

FEASIBLE, FAILED, BAD_INPUT, NOT_FEASIBLE, INTERRUPTED = 0, 1, 2, 3, 130


class BadInputError(Exception):
    """What the user gave cannot be used; the message is one sentence that names it."""


class FailedError(Exception):
    """The work itself cannot go on; the message is one sentence that says why."""


class Command(Protocol):
    """A subcommand: a frozen record of its arguments that can be run."""

    about: ClassVar[str]

    def run(self) -> int:
        """Does the work and gives the exit code."""


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Input that the library does not take becomes one sentence and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadInputError(" ".join(str(error).split())) from error


def check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written to, without making it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{folder}: cannot be written to, since {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: cannot be written to, permission denied")


def console() -> Console:
    from rich.console import Console

    # A pipe or a file has no width of its own, and rich's 80 columns would fold every cell.
    return Console() if sys.stdout.isatty() else Console(width=120)
