"""Many copies of a Gymnasium environment, stepped together: in this process, or in several."""

from __future__ import annotations

import abc
import contextlib
import os
import subprocess
import sys
import threading
import time
import traceback
import weakref
from typing import Any, NamedTuple, Protocol

import cloudpickle
import numpy as np
from jaxtyping import Bool, Float, UInt32
from numpy.typing import ArrayLike

from holdfast.gym.hosts.costs import Costs
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.workers import (
    PROGRAM,
    Copies,
    Failure,
    Fields,
    Make,
    Order,
    Pipes,
    Sizes,
    shared_file,
)

# How long a worker may take to close its environments before it is ended.
_PATIENCE = 5.0


class HostError(RuntimeError):
    """An environment raised, or the process that steps it is gone; the message has all that is known."""


class Reply(NamedTuple):
    """What a step gives, a row for each copy.

    Attributes:
        observations: after the step.
        rewards: of the step.
        costs: of the step, a column for each.
        terminated: whether the episode is over; a copy that was not alive is as it was.
    """

    observations: Float[np.ndarray, "rows observation"]
    rewards: Float[np.ndarray, " rows"]
    costs: Float[np.ndarray, "rows costs"]
    terminated: Bool[np.ndarray, " rows"]


class Pool(Protocol):
    """Copies of an environment.

    There are as many as the last reset had seeds. Environments come without their time limit, which is
    kept outside: one that says `truncated` all the same has ended its episode for a reason of its own,
    and that counts as terminated.
    """

    @property
    def sizes(self) -> Sizes:
        """Of what is known of a copy."""
        ...

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> Float[np.ndarray, "rows observation"]:
        """As many episodes as seeds begin.

        Raises:
            HostError: an environment raised, or its process is gone; the pool is closed.
        """
        ...

    def step(
        self,
        actions: ArrayLike,
        commands: Float[np.ndarray, "rows command"],
        alive: Bool[np.ndarray, " rows"],
    ) -> Reply:
        """A step of every copy that is alive; the others keep their observation and are paid nothing.

        Raises:
            HostError: an environment raised, or its process is gone; the pool is closed.
        """
        ...

    def close(self) -> None:
        """Closes all environments, for good; nothing happens the second time."""
        ...


class _Pool(abc.ABC):
    """What the pools have in common: the rows, and how they are filled and read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows = 0
        self._is_closed = False
        # A program may step two batches at the same time; the copies are there once.
        self._lock = threading.RLock()

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> Float[np.ndarray, "rows observation"]:
        """As many episodes as seeds begin."""
        with self._lock:
            rows = len(seeds)
            fields = self._fields_for(rows)
            self._rows = rows
            fields.seeds[:rows] = seeds
            self._do("reset")
            return fields.observations[:rows].copy()

    def step(
        self,
        actions: ArrayLike,
        commands: Float[np.ndarray, "rows command"],
        alive: Bool[np.ndarray, " rows"],
    ) -> Reply:
        """A step of every copy that is alive."""
        with self._lock:
            rows = self._rows
            if len(alive) != rows:
                raise ValueError(f"alive: the last reset was of {rows} copies, got {len(alive)}")
            fields = self._fields_for(rows)
            fields.actions[:rows] = np.reshape(actions, fields.actions[:rows].shape)
            fields.commands[:rows] = np.reshape(commands, fields.commands[:rows].shape)
            fields.alive[:rows] = alive
            self._do("step")
            found = (fields.observations, fields.rewards, fields.costs, fields.terminated)
            return Reply(*(field[:rows].copy() for field in found))

    @abc.abstractmethod
    def _fields_for(self, rows: int) -> Fields:
        """Room for at least so many copies; what is in it may be lost when it grows."""

    @abc.abstractmethod
    def _do(self, what: str) -> None:
        """Resets or steps all rows."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostError(f"{self.name}: its environments are closed")


class SyncPool(_Pool):
    """Copies in this process, one after the other.

    Arguments:
        make: gives a new environment, without time limit.
        layout: of commands.
        costs: where they are.
        copies: to make room for at first; more are made when a reset asks for them.
        name: of the environment, for messages.

    Example:
        >>> import gymnasium
        >>> make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=-1)
        >>> pool = SyncPool(make, Layout(), Costs.resolve({}), name="CartPole-v1")
        >>> pool.reset(np.arange(3)).shape
        (3, 4)
        >>> pool.step([0, 1, 1], np.zeros((3, 0)), np.array([True, True, False])).rewards
        array([1., 1., 0.], dtype=float32)
        >>> pool.close()
    """

    def __init__(
        self,
        make: Make,
        layout: Layout,
        costs: Costs,
        copies: int = 1,
        *,
        name: str = "the environment",
    ) -> None:
        super().__init__(name)
        self._copies = Copies(make, layout, costs)
        try:
            self.sizes = self._copies.sizes
        except Exception as error:
            raise _raised(name, 0, None, traceback.format_exc()) from error
        self._fields = Fields.zeros(copies, self.sizes)

    def _fields_for(self, rows: int) -> Fields:
        self._check_open()
        if len(self._fields.alive) < rows:
            self._fields = Fields.zeros(rows, self.sizes)
        return self._fields

    def _do(self, what: str) -> None:
        copies = self._copies
        try:
            (copies.reset if what == "reset" else copies.step)(self._fields, 0, self._rows)
        except Exception as error:
            text = traceback.format_exc()
            # What was raised says more than what closing may add to it.
            with contextlib.suppress(Exception):
                self.close()
            raise _raised(self.name, copies.current, None, text) from error

    def close(self) -> None:
        """Closes all environments."""
        self._is_closed = True
        self._copies.close()


class AsyncPool(_Pool):
    """Copies in processes of their own, each of which steps an even share of the rows.

    What goes to the workers (how to make an environment, functions that are costs) goes by cloudpickle,
    so what is defined in a script or a notebook arrives; the script itself is not run again.

    Arguments:
        make: gives a new environment, without time limit.
        layout: of commands.
        costs: where they are.
        copies: to make room for at first; more are made when a reset asks for them.
        workers: how many processes; as many as there are processors if left out.
        name: of the environment, for messages.
    """

    def __init__(
        self,
        make: Make,
        layout: Layout,
        costs: Costs,
        copies: int = 1,
        *,
        workers: int | None = None,
        name: str = "the environment",
    ) -> None:
        super().__init__(name)
        count = workers if workers is not None else os.cpu_count() or 1
        if count < 1:
            raise ValueError(f"workers: expected at least 1, got {count}")
        content = cloudpickle.dumps((make, layout, costs))
        self._workers = [_start() for _ in range(count)]
        # At the interpreter's end too; and when nobody holds the pool any more.
        self._finalizer = weakref.finalize(self, _end, self._workers)
        self._fields: Fields | None = None
        with self._closed_on_error():
            for worker in range(count):
                # Modules beside the user's script are found there as they are here.
                self._send(worker, (sys.path, content))
            answers = [self._receive(worker) for worker in range(count)]
            self.sizes: Sizes = answers[0]
            self._fields_for(max(copies, 1))

    @property
    def processes(self) -> tuple[int, ...]:
        """The workers' process identifiers."""
        return tuple(process.pid for process, _ in self._workers)

    def _fields_for(self, rows: int) -> Fields:
        self._check_open()
        if self._fields is not None and len(self._fields.alive) >= rows:
            return self._fields
        with self._closed_on_error(), shared_file() as memory:
            fields = Fields.zeros(rows, self.sizes, memory)
            for worker in range(len(self._workers)):
                self._send(worker, Order("share", memory=memory, rows=rows))
            for worker in range(len(self._workers)):
                self._receive(worker)
        self._fields = fields
        return fields

    def _do(self, what: str) -> None:
        count = len(self._workers)
        bounds = [worker * self._rows // count for worker in range(count + 1)]
        busy = [w for w in range(count) if bounds[w] < bounds[w + 1]]
        with self._closed_on_error():
            for worker in busy:
                self._send(worker, Order(what, bounds[worker], bounds[worker + 1]))
            for worker in busy:
                self._receive(worker)

    @contextlib.contextmanager
    def _closed_on_error(self) -> Any:
        # An interrupt too leaves answers behind that belong to no question any more.
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _send(self, worker: int, message: Any) -> None:
        try:
            self._workers[worker][1].send(message)
        except OSError:
            self._report_death(worker)

    def _receive(self, worker: int) -> Any:
        try:
            found = self._workers[worker][1].receive()
        except (EOFError, OSError):
            self._report_death(worker)
        if isinstance(found, Failure):
            raise _raised(self.name, found.copy, worker, found.text)
        return found

    def _report_death(self, worker: int) -> None:
        process, _ = self._workers[worker]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        code = process.returncode
        how = "is gone" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was ended by signal {-code}"
        raise HostError(
            f"{self.name}: worker {worker} (process {process.pid}) {how}; what it wrote last is on "
            "the standard error"
        ) from None

    def close(self) -> None:
        """Ends the workers; none is left behind."""
        self._is_closed = True
        self._finalizer()


_Worker = tuple[subprocess.Popen[bytes], Pipes]


def _start() -> _Worker:
    # Each worker has one processor to itself; libraries with threads of their own would take all.
    alone = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env={**alone, **os.environ},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, Pipes(process.stdout.fileno(), process.stdin.fileno())


def _end(workers: list[_Worker]) -> None:
    for process, pipes in workers:
        with contextlib.suppress(OSError):
            pipes.send(Order("close"))
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
    end = time.monotonic() + _PATIENCE
    for process, _ in workers:
        try:
            process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _raised(name: str, copy: int | None, worker: int | None, text: str) -> HostError:
    who = "" if copy is None else f" copy {copy}"
    where = "" if worker is None else f" in worker {worker}"
    return HostError(f"{name}:{who}{where} raised\n\n{text}")
