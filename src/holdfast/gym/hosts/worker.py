"""Copies of a Gymnasium environment in one process, and the worker process that steps some of them.

Workers are started as separate programs. `multiprocessing` would either fork a process in which JAX runs
threads, or import the user's script again in every worker. Each step sends one small message to each
worker; actions, observations and the other numbers are in a file that all processes map into memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from holdfast.gym.costs import Costs
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
        for field in ("reward", "costs", "terminated"):
            table[field][start:stop] = 0

    def step(self, table: np.ndarray, start: int, stop: int) -> None:
        """Step the rows `start` to `stop` - 1 that are alive."""
        table["reward"][start:stop] = 0
        table["costs"][start:stop] = 0
        # To look a field up costs as much as to write a row: once for each field is enough.
        actions, commands, observations, rewards, costs, terminations = (
            table[field]
            for field in ("action", "command", "observation", "reward", "costs", "terminated")
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

    def close(self) -> None:
        """Close all environments."""
        environments, self._environments = self._environments, []
        for env in environments:
            env.close()


# The parent handles interrupts. sys.path comes first, since only the parent may know where this
# package is.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from holdfast.gym.hosts.worker import main; main()"
)


def main() -> None:
    """Run a worker: execute orders from standard input until it is closed.

    An order is ("open", arguments of `EnvCopies`, table), or the name of a method of `EnvCopies` and the
    rows. The answer is None, or the copy that raised an exception and the traceback.
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
                    copies = copies or EnvCopies(*cloudpickle.loads(content))
                    table = np.memmap(path, row_type, "r+", shape=rows)
                else:
                    getattr(copies, name)(table, *given)
            except Exception:
                who = "" if copies is None else f" copy {copies.current}"
                failure = who, traceback.format_exc()
            send(failure, answers)
    if copies is not None:
        copies.close()
