"""Copies of a Gymnasium environment in one process, and the worker process that steps some of them.

Workers are started as separate programs. `multiprocessing` would either fork a process in which JAX runs
threads, or import the user's script again in every worker. Each step sends one small message to each
worker; actions, observations and the other numbers are in a file that all processes map into memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from holdfast.gym.costs import CostError, Costs
from holdfast.gym.hosts.checks import ProtocolError
from holdfast.gym.hosts.host import DisturbanceLayout
from holdfast.gym.hosts.wrapper import DisturbedEnv

MakeEnv = Callable[[], gymnasium.Env]


def send(message: Any, file: Any) -> None:
    """Write a message to a pipe; `pickle.load` reads it at the other end."""
    pickle.dump(message, file)
    file.flush()


class EnvCopies:
    """Environments of this process, made when they are first needed.

    Arguments:
        make: function that returns a new environment.
        layout: layout of the commands.
        costs: sources of the costs.

    Attributes:
        current: the row that was stepped last.
    """

    def __init__(self, make: MakeEnv, layout: DisturbanceLayout, costs: Costs) -> None:
        self._make, self._layout, self._costs = make, layout, costs
        self._environments: list[DisturbedEnv] = []
        self.current = 0

    def __getitem__(self, index: int) -> DisturbedEnv:
        while len(self._environments) <= index:
            self._environments.append(DisturbedEnv(self._make(), self._layout, self._costs))
        return self._environments[index]

    def reset(self, table: np.ndarray, start: int, stop: int) -> None:
        """Start episodes in the rows `start` to `stop` - 1 of the table."""
        for row in range(start, stop):
            self.current = row
            observation, _ = self[row - start].reset(seed=int(table["seed"][row]))
            table["observation"][row] = observation
            table["calls"][row] += 1
        for field in ("reward", "costs", "terminated"):
            table[field][start:stop] = 0

    def step(self, table: np.ndarray, start: int, stop: int) -> None:
        """Step the rows `start` to `stop` - 1 that are alive."""
        table["reward"][start:stop] = 0
        table["costs"][start:stop] = 0
        # To look a field up costs as much as to write a row: once for each field is enough.
        fields = ("action", "command", "observation", "reward", "costs", "terminated", "calls")
        actions, commands, observations, rewards, costs, terminations, calls = (
            table[field] for field in fields
        )
        for row, is_alive in enumerate(table["alive"][start:stop].tolist(), start):
            if not is_alive:
                continue
            self.current = row
            found = self[row - start].step_under(actions[row], commands[row])
            observations[row], rewards[row], terminated, truncated, info = found
            costs[row] = info["costs"]
            # The time limit is kept elsewhere, so an environment that truncates ends its episode for
            # a reason of its own.
            terminations[row] = terminated or truncated
            calls[row] += 1

    def close(self) -> None:
        """Close all environments."""
        environments, self._environments = self._environments, []
        for env in environments:
            env.close()


# The parent handles interrupts. sys.path comes first, since only the parent may know where this
# package is.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from holdfast.gym.hosts.worker import end_with_parent, main; "
    "sys.argv[1] == '-' or end_with_parent(int(sys.argv[1])); main()"
)


def end_with_parent(lifeline: int) -> None:
    """Let the operating system end this process when the other end of a pipe closes.

    The parent never writes to the pipe, so the signal comes when it closes its end or has been killed.
    A process that is signalled ends even if an environment never returns to Python; a thread that reads
    the pipe would have to wait for it.
    """
    import fcntl
    import signal

    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    # The parent may have ended before the signal was asked for.
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)


def failure_text(error: BaseException) -> str:
    """Return the end of a message about a copy: a sentence, or the traceback of its exception."""
    if isinstance(error, ProtocolError | CostError):
        return f": {error}"
    return f" raised\n\n{traceback.format_exc()}"


def main() -> None:
    """Run a worker: execute orders from standard input until it is closed.

    An order is ("open", files of the arguments of `EnvCopies` and of the table), or the name of a method
    of `EnvCopies` and the rows. The answer is None, or the copy that failed and the reason.
    """
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Environments that print must not write between the answers, nor read the orders.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    copies: EnvCopies | None = None
    table: np.ndarray | None = None
    # The parent closes the pipe, or has exited.
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, *given = pickle.load(orders)
            failure = None
            try:
                if name == "open":
                    content, path, row_type, rows = given
                    copies = copies or EnvCopies(*cloudpickle.loads(content.read_bytes()))
                    table = np.memmap(path, row_type, "r+", shape=rows)
                else:
                    getattr(copies, name)(table, *given)
            except Exception as error:
                who = "" if copies is None else f" copy {copies.current}"
                failure = who, failure_text(error)
            send(failure, answers)
    if copies is not None:
        copies.close()
