"""Where tasks are done: in this process, in others on this machine, or by Ray on a cluster.

An engine is given tasks and tells what becomes of them. It knows nothing of what they are for, writes
nothing, and gives the same results whichever it is. A new engine is one file and one line in `ENGINES`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast._support.arguments import check_whole_number

# A task that failed, or whose worker died, is done again so often.
RETRIES = 2


class File(NamedTuple):
    """A file that a task made: its path in the experiment's folder, and its content."""

    path: str
    data: bytes


class Task(Protocol):
    """Work that can be sent elsewhere: picklable, and the same result wherever it is done."""

    @property
    def kin(self) -> str:
        """Tasks of the same kin compile the same programs, so a worker had better do them all."""

    def run(self, folder: Path | None) -> Iterator[File]:
        """Does the work.

        Arguments:
            folder: the experiment's folder where it can be reached, so that files that grow may be
                written there; None elsewhere, where every file has to come back.
        """


class Begun(NamedTuple):
    """A task was given to a worker."""

    task: Task


class Made(NamedTuple):
    """A task made a file."""

    task: Task
    file: File


class Done(NamedTuple):
    """A task is finished, and all its files were told before."""

    task: Task


class Failed(NamedTuple):
    """A task failed; unless it was for good it is done again."""

    task: Task
    traceback: str
    attempts: int

    @property
    def for_good(self) -> bool:
        """Whether it is not tried again."""
        return self.attempts > RETRIES


Event = Begun | Made | Done | Failed


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How an engine is to work.

    Arguments:
        workers: tasks at the same time; 0 for as many as there are processors.
        threads: of each worker; 0 for the processors divided by the workers.
        address: of a Ray cluster, "" for one on this machine alone.
        cache: whether workers keep compiled programs on disk.
    """

    workers: int = 0
    threads: int = 1
    address: str = ""
    cache: bool = False

    def __post_init__(self) -> None:
        check_whole_number("workers", self.workers, least=0)
        check_whole_number("threads", self.threads, least=0)

    def resolved(self, tasks: int) -> EngineOptions:
        """The same with numbers for zeros: never more workers than there are tasks."""
        workers = max(1, min(self.workers or processors(), tasks))
        threads = self.threads or max(1, processors() // workers)
        return dataclasses.replace(self, workers=workers, threads=threads)


class Engine(Protocol):
    """Does tasks and tells what becomes of them, in whatever order they end."""

    def __call__(
        self, tasks: Sequence[Task], folder: Path, options: EngineOptions
    ) -> Iterator[Event]:
        """Every task ends in `Done`, or in a `Failed` that is for good."""


# Loaded when asked for: who has no Ray needs none.
ENGINES = {
    "processes": "holdfast.experiments.engines.processes",
    "ray": "holdfast.experiments.engines.ray",
    "inline": "holdfast.experiments.engines.inline",
}


def engine_named(name: str) -> Engine:
    """An engine by its name.

    Raises:
        ValueError: there is none, or what it needs is not installed.
    """
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")
    found: Callable[..., Iterator[Event]] = importlib.import_module(ENGINES[name]).run
    return found


def processors() -> int:
    """How many this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def worker_environment(options: EngineOptions) -> dict[str, str]:
    """Environment variables of a worker, so that workers do not fight for processors and memory."""
    threads = str(options.threads)
    found = {
        # How many threads XLA's pool has, and the libraries of linear algebra.
        "NPROC": threads,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }
    if options.workers > 1:
        # On an accelerator each would take three quarters of the memory by default.
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return found
