"""Engines that perform work: in this process, in worker processes, or on a Ray cluster.

An engine receives work items and reports events. It writes no files, and results do not depend on the
engine. A new engine is one file and one line in `ENGINES`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from holdfast import registry
from holdfast._support.arguments import check_whole_number

# A failed item is repeated twice: enough for a worker killed by chance, and cheap if it always fails.
RETRIES = 2
# Loaded on demand, so that Ray is optional.
ENGINES = {
    "processes": "holdfast.experiments.engines.processes",
    "ray": "holdfast.experiments.engines.ray",
    "inline": "holdfast.experiments.engines.inline",
}
_REGISTRIES = (
    registry.ALGORITHMS,
    registry.SIMULATOR_ALGORITHMS,
    registry.UNCERTAINTY,
    registry.ENVIRONMENTS,
)


class File(NamedTuple):
    """A file that an item made: its path in the experiment's folder, and its content."""

    path: str
    data: bytes


# The files that an item has made so far, and whether more follow.
Reply = Future[tuple[list[File], bool]]


class WorkItem(Protocol):
    """A picklable piece of work with the same result wherever it is done."""

    @property
    def kin(self) -> str:
        """Compilation group: items of one group compile the same programs.

        Items are sent first to workers that have compiled their group.
        """

    def run(self, folder: Path | None) -> Iterator[File]:
        """Do the work and yield its files.

        Arguments:
            folder: the experiment's folder, for files that grow; None on another machine, where every
                file has to be yielded.
        """


class Begun(NamedTuple):
    """An item was given to a worker."""

    item: WorkItem


class Made(NamedTuple):
    """An item made a file."""

    item: WorkItem
    file: File


class Done(NamedTuple):
    """An item is finished; all its files were reported before."""

    item: WorkItem


class Failed(NamedTuple):
    """An attempt at an item failed."""

    item: WorkItem
    traceback: str
    attempts: int

    @property
    def for_good(self) -> bool:
        """Whether there is no further attempt."""
        return self.attempts > RETRIES


WorkEvent = Begun | Made | Done | Failed


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """Options of an engine.

    Arguments:
        workers: number of items at the same time; 0 means one per processor.
        threads: threads of each worker; 0 means the processors divided by the workers.
        address: address of a Ray cluster; "" starts Ray on this machine.
    """

    workers: int = 0
    threads: int = 1
    address: str = ""

    def __post_init__(self) -> None:
        check_whole_number("workers", self.workers, least=0)
        check_whole_number("threads", self.threads, least=0)

    def resolved(self, items: int) -> EngineOptions:
        """Return the options with numbers in place of zeros, and at most one worker per item."""
        workers = max(1, min(self.workers or processors(), items))
        threads = self.threads or max(1, processors() // workers)
        return dataclasses.replace(self, workers=workers, threads=threads)


class Worker(Protocol):
    """A place that performs one item at a time."""

    def begin(self, item: WorkItem, folder: Path) -> Reply:
        """Start an item."""

    def resume(self) -> Reply:
        """Continue the item that was begun."""


def work_through(
    items: Sequence[WorkItem], folder: Path, workers: Sequence[Worker]
) -> Iterator[WorkEvent]:
    """Yield the events of all items; each ends in `Done` or in a `Failed` that is for good."""
    waiting = [(item, 1) for item in items]
    idle = list(workers)
    seen: dict[int, set[str]] = {id(worker): set() for worker in workers}
    running: dict[Reply, tuple[Worker, WorkItem, int]] = {}
    while waiting or running:
        while waiting and idle:
            worker = idle.pop(0)
            kins = seen[id(worker)]
            known = (i for i, (item, _) in enumerate(waiting) if item.kin in kins)
            item, attempt = waiting.pop(next(known, 0))
            kins.add(item.kin)
            yield Begun(item)
            running[worker.begin(item, folder)] = worker, item, attempt
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            worker, item, attempt = running.pop(future)
            try:
                files, more = future.result()
            except Exception as error:
                if isinstance(getattr(error, "cause", None), KeyboardInterrupt):  # by way of Ray
                    raise KeyboardInterrupt from error
                yield Failed(item, _reason(error), attempt)
                if attempt <= RETRIES:
                    waiting.append((item, attempt + 1))
                idle.append(worker)
                continue
            for file in files:
                yield Made(item, file)
            if more:
                running[worker.resume()] = worker, item, attempt
            else:
                yield Done(item)
                idle.append(worker)


def _reason(error: Exception) -> str:
    if isinstance(error, BrokenExecutor):
        return "the worker process ended abruptly: it was killed or ran out of memory"
    return "".join(traceback.format_exception(error))


def engine_named(
    name: str,
) -> Callable[[Sequence[WorkItem], Path, EngineOptions], Iterator[WorkEvent]]:
    """Return an engine by its name.

    Raises:
        ValueError: there is no such engine.
    """
    if name not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {name!r}")
    return importlib.import_module(ENGINES[name]).run


def processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def worker_environment(options: EngineOptions) -> dict[str, str]:
    """Return the environment variables that keep workers from competing for processors and memory."""
    # NPROC limits XLA's thread pool, the others the libraries of linear algebra.
    pools = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    found = dict.fromkeys(pools, str(options.threads))
    if options.workers > 1:
        # JAX reserves three quarters of an accelerator's memory per process by default.
        found["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return found


def registered_names() -> list[dict[str, str]]:
    """Return the import strings of all registered names, for `prepare_worker`."""
    return [
        {name: target for name, target in each.targets.items() if isinstance(target, str)}
        for each in _REGISTRIES
    ]


def prepare_worker(names: Sequence[dict[str, Any]]) -> None:
    """Register the names of the parent process in a worker."""
    for each, targets in zip(_REGISTRIES, names, strict=True):
        each.targets.update(targets)


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change environment variables for the processes that are started in a block."""
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
        os.environ.update(before)
