"""Calls into environments that may never return, and interrupts while a compiled program waits.

While a compiled program runs, the main thread waits inside it, and Python raises no KeyboardInterrupt
until the program returns. An environment that does not return would therefore make Ctrl-C useless. Here
the operating system's signal is read by a thread, which tells the waiting host to give up.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

# Seconds between two looks at the clock and at interrupts while an environment is stepped.
POLL = 0.1

T = TypeVar("T")
interrupted = threading.Event()


class HangError(Exception):
    """A call did not return in time."""


@contextlib.contextmanager
def interrupts_seen() -> Iterator[None]:
    """Set `interrupted` as soon as Ctrl-C arrives, whatever the main thread waits for."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_forward, args=(reading, before), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        interrupted.clear()


def _forward(reading: int, before: int) -> None:
    """Watch the numbers of signals, and forward them to the previous handler."""
    with os.fdopen(reading, "rb", buffering=0) as file:
        while data := file.read(64):
            if signal.SIGINT in data:
                interrupted.set()
            if before >= 0:
                with contextlib.suppress(OSError):
                    os.write(before, data)


class Deadline:
    """The time by which an environment has to make progress.

    Arguments:
        seconds: seconds without progress that are allowed; None for no limit.
        progress: function whose value changes whenever an environment has returned.
    """

    def __init__(self, seconds: float | None, progress: Callable[[], Any]) -> None:
        self._seconds, self._progress = seconds, progress
        self._last, self._since = None, time.monotonic()

    def check(self) -> None:
        """Raise a HangError if there was no progress, or a KeyboardInterrupt after Ctrl-C."""
        if interrupted.is_set():
            raise KeyboardInterrupt
        late = self._seconds is not None and time.monotonic() - self._since >= self._seconds
        if self._last is not None and not late:
            return
        now = self._progress()
        # Nearly all calls return before the first look, so nothing is measured until then.
        if now == self._last:
            raise HangError
        self._last, self._since = now, time.monotonic()


class WatchedThread:
    """A thread that makes calls for another one, which can stop waiting for them.

    All calls are made by the same thread, as some simulators require. A call that does not return keeps
    its thread; the next call starts a new one. The threads do not keep the process from exiting.
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Any] | None = None

    def call(self, function: Callable[[], T], deadline: Deadline) -> T:
        """Return the result of a function, or raise its exception.

        Raises:
            HangError: there was no progress in time.
            KeyboardInterrupt: Ctrl-C was pressed while the function ran.
        """
        if self._orders is None:
            self._orders = queue.SimpleQueue()
            threading.Thread(target=_perform, args=(self._orders,), daemon=True).start()
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        # NumPy's handling of overflow belongs to the caller's context.
        here = functools.partial(contextvars.copy_context().run, function)
        self._orders.put((here, answers))
        while True:
            try:
                result, error = answers.get(timeout=POLL)
            except queue.Empty:
                try:
                    deadline.check()
                except BaseException:
                    self.end()
                    raise
                continue
            if error is not None:
                raise error
            return result

    def end(self) -> None:
        """End the thread after its call, if that returns."""
        if self._orders is not None:
            self._orders.put(None)
            self._orders = None

    def __del__(self) -> None:
        self.end()


def _perform(orders: queue.SimpleQueue[Any]) -> None:
    while (order := orders.get()) is not None:
        function, answers = order
        try:
            answers.put((function(), None))
        except BaseException as error:  # the caller raises it
            answers.put((None, error))
        del function, answers, order  # an idle thread must not keep environments alive
