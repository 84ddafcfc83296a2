"""Tasks in processes of their own on this machine.

Workers are started anew, not forked: JAX does not survive a fork. A worker that dies is replaced, and
its task done again. Workers end when this process does, even by a kill.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from holdfast.experiments.engines import (
    Begun,
    Done,
    EngineOptions,
    Event,
    Failed,
    File,
    Made,
    Task,
    worker_environment,
)

# How long a worker may take to end when it was asked to, in seconds.
_PATIENCE = 5.0


def run(tasks: Sequence[Task], folder: Path, options: EngineOptions) -> Iterator[Event]:
    """Does the tasks, `options.workers` at a time."""
    options = options.resolved(len(tasks))
    waiting = list(tasks)
    attempts = dict.fromkeys(map(id, tasks), 0)
    workers = [_Worker(folder, options) for _ in range(options.workers)]
    try:
        while waiting or any(worker.task is not None for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    task = waiting.pop(worker.choice(waiting))
                    attempts[id(task)] += 1
                    worker.begin(task)
                    yield Begun(task)
            for worker in _with_news(workers):
                busy = worker.task
                if busy is None:  # died of boredom, between two tasks
                    worker.restart()
                    continue
                for event in worker.events(attempts[id(busy)]):
                    yield event
                    if isinstance(event, Failed) and not event.for_good:
                        waiting.append(event.task)
    finally:
        for worker in workers:
            worker.end()


def _with_news(workers: Sequence[_Worker]) -> list[_Worker]:
    """The workers that said something or died; waits until there is one."""
    by_handle: dict[Any, _Worker] = {}
    for worker in workers:
        by_handle |= {worker.connection: worker, worker.process.sentinel: worker}
    return list(dict.fromkeys(by_handle[handle] for handle in wait(list(by_handle))))


class _Worker:
    """A process, the way to talk to it, and what it is at."""

    def __init__(self, folder: Path, options: EngineOptions) -> None:
        self._folder, self._options = folder, options
        self._kin: set[str] = set()
        self.task: Task | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self._folder, self._options.cache), daemon=True
        )
        with _environment(worker_environment(self._options)):
            self.process.start()
        theirs.close()

    def choice(self, tasks: Sequence[Task]) -> int:
        """Which of the tasks suits best: the first of a kin that was compiled already, or the first."""
        return next((i for i, task in enumerate(tasks) if task.kin in self._kin), 0)

    def begin(self, task: Task) -> None:
        """Gives it a task."""
        self.task = task
        self._kin.add(task.kin)
        with contextlib.suppress(OSError):  # dead already: its sentinel says so in a moment
            self.connection.send(task)

    def events(self, attempts: int) -> list[Event]:
        """What it has to say about its task."""
        assert self.task is not None
        task, found = self.task, list[Event]()
        try:
            while self.task is not None and self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, File):
                    found.append(Made(task, message))
                    continue
                self.task = None
                found.append(Failed(task, message, attempts) if message else Done(task))
        except (EOFError, OSError):
            self.process.join(_PATIENCE)
        if self.task is not None and not self.process.is_alive():
            code = self.process.exitcode
            self.task = None
            found.append(Failed(task, f"the worker died, exit code {code}", attempts))
            self.restart()
        return found

    def restart(self) -> None:
        """Another process in place of one that died."""
        self.connection.close()
        self._kin.clear()
        self._start()

    def end(self) -> None:
        """Ends the process, at once if it is at something."""
        if self.task is None:
            with contextlib.suppress(OSError):
                self.connection.send(None)
            self.process.join(_PATIENCE)
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, folder: Path, cache: bool) -> None:
    """What a worker does: one task after the other, until there is none or nobody to ask."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if cache:
        from holdfast.experiments.compilation_cache import use_compilation_cache

        use_compilation_cache()
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        except KeyboardInterrupt:
            return
        if task is None:
            return
        try:
            for file in task.run(folder):
                connection.send(file)
            connection.send("")
        except KeyboardInterrupt:  # the whole command was interrupted, and says so itself
            return
        except BrokenPipeError:
            return
        except Exception:
            connection.send(traceback.format_exc())


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
