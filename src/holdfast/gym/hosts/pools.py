"""Hosts that step Gymnasium environments through their own `step`, in this process or in workers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import select
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np
from jaxtyping import Bool, Float, Shaped, UInt32

from holdfast.gym.hosts.host import HostReply, ReplySizes
from holdfast.gym.hosts.watching import POLL, Deadline, HangError, WatchedThread, interrupted
from holdfast.gym.hosts.worker import PROGRAM, EnvCopies, MakeEnv, failure_text, send
from holdfast.gym.hosts.wrapper import DisturbedEnv
from holdfast.simulators.environment import TrainingError

# Seconds that a worker has to close its environments before it is killed. Environments that draw or
# write files need about one.
_PATIENCE = 5.0
_HASTE = 1.0
# Least seconds that a worker has to start, since it imports the environment's packages.
_STARTING = 120.0
_SHARED_MEMORY = Path("/dev/shm")


class HostError(TrainingError):
    """An environment failed: it raised, did not return, broke its interface, or its worker exited."""


class SyncHost:
    """Copies of a Gymnasium environment in this process, stepped one after the other.

    The first reset opens the copies; an error or `close` closes them, and the next reset opens new ones.
    There are as many copies as the last reset had seeds. The numbers of all copies are in one table, a
    structured array with a row for each copy.

    A place consists of the number of the reset, the row and the number of the step, so that a step from
    an earlier place is detected: these environments cannot go back.

    Arguments:
        make: function that returns a new environment, without time limit.
        probe: an environment of the same kind, which gives the layout, the costs and the name.
        step_timeout: seconds that a reset or a step of one copy may take; None for no limit.

    Example:
        >>> import gymnasium
        >>> from holdfast.gym.costs import Costs
        >>> make = lambda: gymnasium.make("CartPole-v1", max_episode_steps=-1)
        >>> host = SyncHost(make, DisturbedEnv(make(), costs=Costs.resolve({})))
        >>> first = host.reset(np.arange(3))
        >>> first.observations.shape
        (3, 4)
        >>> over = np.array([False, False, True])
        >>> host.step(first.place, np.array([0, 1, 1]), np.zeros((3, 0)), over).rewards
        array([1., 1., 0.], dtype=float32)
        >>> host.close()
    """

    def __init__(
        self, make: MakeEnv, probe: DisturbedEnv, step_timeout: float | None = None
    ) -> None:
        self._content = make, probe.layout, probe.costs
        self._copies = EnvCopies(*self._content)
        self._timeout = step_timeout
        self._thread = WatchedThread()
        self.name = probe.name
        self.cost_names = probe.costs.names
        size = probe.observation_size
        self.sizes = ReplySizes(3, size, size, len(self.cost_names), is_replayable=False)
        self._row_type = probe.row_type
        self._table: np.ndarray | None = None
        self._rows = self._resets = self._steps = 0
        # Two programs may step the same environment at the same time.
        self._lock = threading.RLock()

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> HostReply:
        """Start one episode for each seed.

        Raises:
            HostError: an environment raised an exception, or its worker has exited.
        """
        with self._closed_on_error():
            if self._table is None or len(self._table) < len(seeds):
                self._table = self._allocated(len(seeds))
            self._table["seed"][: len(seeds)] = seeds
            self._rows, self._resets, self._steps = len(seeds), self._resets + 1, 0
            self._run("reset")
            return self._reply()

    def step(
        self,
        place: UInt32[np.ndarray, "rows place"],
        actions: Shaped[np.ndarray, "rows ..."],
        commands: Float[np.ndarray, "rows command"],
        over: Bool[np.ndarray, " rows"],
    ) -> HostReply:
        """Step every copy whose episode is not over; the others keep their observation.

        Raises:
            HostError: an environment raised an exception, or its worker has exited.
            RuntimeError: the places are not the current ones.
        """
        with self._closed_on_error():
            if self._table is None or not np.array_equal(place, self._place()):
                raise RuntimeError(f"{self.name}: a step from an earlier state is not possible")
            for field, values in (("action", actions), ("command", commands), ("alive", ~over)):
                part = self._table[field][: self._rows]
                part[...] = np.reshape(values, part.shape)
            self._run("step")
            self._steps += 1
            return self._reply()

    def _reply(self) -> HostReply:
        assert self._table is not None
        observations, rewards, costs, terminated = (
            self._table[field][: self._rows].copy()
            for field in ("observation", "reward", "costs", "terminated")
        )
        return HostReply(self._place(), observations, observations, rewards, costs, terminated)

    def _place(self) -> UInt32[np.ndarray, "rows 3"]:
        place = np.full((self._rows, 3), (self._resets, 0, self._steps), np.uint32)
        place[:, 1] = np.arange(self._rows)
        return place

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except BaseException:
                # After an interrupt, too, the pipes hold answers to earlier orders. Close the workers,
                # but raise the first exception: it says more than an exception from closing.
                with contextlib.suppress(Exception):
                    self.close()
                raise

    def close(self) -> None:
        """Close all environments; the next reset opens new ones."""
        self._table = None
        copies, self._copies = self._copies, EnvCopies(*self._content)
        # An environment that does not return cannot be closed either.
        with contextlib.suppress(HangError):
            self._thread.call(copies.close, Deadline(_PATIENCE, lambda: 0))
        self._thread.end()

    def _allocated(self, rows: int) -> np.ndarray:
        """Return a table with this number of rows, and prepare to step copies."""
        return np.zeros(rows, self._row_type)

    def _run(self, method: str) -> None:
        """Reset or step all rows."""
        run = functools.partial(getattr(self._copies, method), self._table, 0, self._rows)
        deadline = Deadline(self._timeout, functools.partial(self._calls, 0, self._rows))
        try:
            # Debuggers stop in the thread that makes the call.
            run() if self._timeout is None else self._thread.call(run, deadline)
        except HangError:
            raise self._hanging(f"copy {self._copies.current}", method) from None
        # An environment that calls sys.exit must not end the training silently.
        except (Exception, SystemExit) as error:
            who = f"copy {self._copies.current}"
            raise HostError(f"{self.name}: {who}{failure_text(error)}") from error

    def _calls(self, start: int, stop: int) -> int:
        """Return the number of calls that have returned, over some rows."""
        assert self._table is not None
        return int(self._table["calls"][start:stop].sum(dtype=np.int64))

    def _hanging(self, who: str, method: str) -> HostError:
        if method == "open":
            return HostError(f"{self.name}: {who} did not start in time (step_timeout)")
        return HostError(
            f"{self.name}: {who} did not return from {method} within {self._timeout:g} s "
            "(step_timeout)"
        )


_Process = subprocess.Popen[bytes]


class AsyncHost(SyncHost):
    """Copies in worker processes, each of which steps an equal share of the rows.

    The function that makes an environment and the costs are sent by cloudpickle, so they may be defined
    in a script or a notebook. Workers do not run the script again.

    Arguments:
        make: function that returns a new environment, without time limit.
        probe: an environment of the same kind.
        workers: number of processes; the number of processors by default.
        step_timeout: seconds that a reset or a step of one copy may take; None for no limit.
    """

    def __init__(
        self,
        make: MakeEnv,
        probe: DisturbedEnv,
        workers: int | None = None,
        step_timeout: float | None = None,
    ) -> None:
        super().__init__(make, probe, step_timeout)
        self._count = workers or os.cpu_count() or 1
        self._processes: list[_Process] = []

    @property
    def processes(self) -> tuple[int, ...]:
        """Identifiers of the worker processes."""
        return tuple(process.pid for process in self._processes)

    def _start(self) -> None:
        # One processor for each worker; libraries with threads of their own would use all of them.
        single = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        self._processes, lifelines = [], []
        for _ in range(self._count):
            theirs, ours = os.pipe() if os.name == "posix" else (None, None)
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "-" if theirs is None else str(theirs), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**single, **os.environ},
                pass_fds=() if theirs is None else (theirs,),
            )
            self._processes.append(process)
            if theirs is not None and ours is not None:
                os.close(theirs)
                lifelines.append(ours)
        # Also ends the workers when the host is deleted and when the interpreter exits.
        self._end = weakref.finalize(self, _ended, self._processes, lifelines)

    def _allocated(self, rows: int) -> np.ndarray:
        if not self._processes:
            self._start()
        # In memory where the system has a file system for that. The file can be removed as soon as all
        # processes have mapped it; Windows refuses to remove it, and clears it with other temporary
        # files.
        place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(
            prefix="holdfast-", dir=place, ignore_cleanup_errors=True
        ) as folder:
            path = Path(folder) / "table"
            table = np.memmap(path, self._row_type, "w+", shape=rows)
            # In a file: a long message would wait for a worker that does not read it.
            content = Path(folder) / "content"
            content.write_bytes(cloudpickle.dumps(self._content))
            order = ("open", content, path, self._row_type, rows)
            self._order(dict.fromkeys(range(self._count), (order, lambda: 0)))
        return table

    def _run(self, method: str) -> None:
        bounds = [worker * self._rows // self._count for worker in range(self._count + 1)]
        shares = enumerate(itertools.pairwise(bounds))
        self._order(
            {
                worker: ((method, start, stop), functools.partial(self._calls, start, stop))
                for worker, (start, stop) in shares
                if start < stop
            }
        )

    def _order(self, orders: dict[int, tuple[tuple[Any, ...], Callable[[], int]]]) -> None:
        """Send an order to each of these workers, then wait for all of them.

        Each order comes with a function that measures the progress of its worker.
        """
        for worker, (order, _) in orders.items():
            try:
                send(order, self._processes[worker].stdin)
            except OSError:
                raise self._exited(worker) from None
        for worker, (order, progress) in orders.items():
            answers = self._processes[worker].stdout
            assert answers is not None
            try:
                seconds = self._timeout
                if seconds is not None and order[0] == "open":
                    seconds = max(seconds, _STARTING)
                self._wait(answers, Deadline(seconds, progress))
                failure = pickle.load(answers)
            except HangError:
                self._processes[worker].kill()
                raise self._hanging(f"worker {worker}", order[0]) from None
            except (EOFError, OSError, pickle.UnpicklingError):
                raise self._exited(worker) from None
            if failure is not None:
                who, text = failure
                raise HostError(f"{self.name}:{who} in worker {worker}{text}")

    def _wait(self, answers: IO[bytes], deadline: Deadline) -> None:
        """Wait for an answer; where pipes cannot be waited for, reading one waits without a limit."""
        while os.name == "posix" and not select.select([answers], [], [], POLL)[0]:
            deadline.check()

    def _exited(self, worker: int) -> HostError:
        process = self._processes[worker]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        code = process.returncode
        how = "does not answer" if code is None else f"exited with status {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code}"
        return HostError(
            f"{self.name}: worker {worker} (process {process.pid}) {how}; its last output is on the "
            "standard error"
        )

    def close(self) -> None:
        """End the workers, which close their environments; the next reset starts new ones."""
        self._table = None
        if self._processes:
            self._end()
            self._processes = []


def _ended(processes: list[_Process], lifelines: list[int]) -> None:
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
    # After Ctrl-C the process does not wait for environments to close.
    end = time.monotonic() + (_HASTE if interrupted.is_set() else _PATIENCE)
    for process in processes:
        try:
            process.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for lifeline in lifelines:
        os.close(lifeline)
