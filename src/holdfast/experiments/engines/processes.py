"""Work in processes of this machine.

Workers are spawned, not forked, because JAX does not work in forked processes. A worker that crashes is
replaced and its item repeated. Workers exit when this process exits, even if it is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from holdfast.experiments import engines
from holdfast.experiments.engines import EngineOptions, File, Reply, WorkEvent, WorkItem


def run(items: Sequence[WorkItem], folder: Path, options: EngineOptions) -> Iterator[WorkEvent]:
    """Do the items, `options.workers` at a time."""
    options = options.resolved(len(items))
    workers = [_ProcessWorker(options) for _ in range(options.workers)]
    try:
        yield from engines.work_through(items, folder, workers)
    finally:
        for worker in workers:
            worker.end()


class _ProcessWorker:
    """An executor with a single process, so that a crash affects a single item only.

    The worker process exits when the pipe to it closes, which the operating system also does when this
    process exits.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        theirs, self._pipe = context.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            1,
            mp_context=context,
            initializer=_prepare,
            initargs=(theirs, engines.registered_names()),
        )
        self._theirs = theirs

    def begin(self, item: WorkItem, folder: Path) -> Reply:
        """Start an item, in a new process if the last one crashed."""
        # The process starts in `submit`, and libraries read their number of threads when they load.
        with engines.changed_environment(engines.worker_environment(self._options)):
            try:
                return self._executor.submit(_begin, item, folder)
            except BrokenExecutor:
                self.end()
                self._start()
                return self._executor.submit(_begin, item, folder)

    def resume(self) -> Reply:
        """Continue the item; the future fails if the process crashed."""
        try:
            return self._executor.submit(_resume)
        except BrokenExecutor as error:
            future: Reply = Future()
            future.set_exception(error)
            return future

    def end(self) -> None:
        """End the process at once."""
        self._pipe.close()
        self._theirs.close()
        self._executor.shutdown(cancel_futures=True)


_work: dict[str, Any] = {}


def _prepare(pipe: Connection, names: Sequence[dict[str, str]]) -> None:
    # An interrupt reaches the whole process group; the parent decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(pipe,), daemon=True).start()
    engines.prepare_worker(names)


def _exit_with(pipe: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os._exit(1)


def _begin(item: WorkItem, folder: Path) -> tuple[list[File], bool]:
    _work["files"] = item.run(folder)
    return _resume()


def _resume() -> tuple[list[File], bool]:
    for file in _work["files"]:
        return [file], True
    return [], False
