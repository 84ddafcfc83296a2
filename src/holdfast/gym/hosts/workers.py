"""A process that steps environments: what it is told, what it answers, and the memory that it shares.

Workers are started as programs of their own, not by `multiprocessing`: that would either fork a process
in which JAX runs threads, or import the user's script again in every worker. What is sent is one small
message a step; actions, observations and the rest are in a file that all of them map into memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

from holdfast.gym.hosts.costs import Costs
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.wrapper import BoxActions, DiscreteActions, Disturbed

Make = Callable[[], gymnasium.Env]
_LENGTH = struct.Struct("<q")


class Order(NamedTuple):
    """What a worker is to do with the copies from `start` up to `stop`.

    Attributes:
        what: "share" (map this memory), "reset", "step" or "close".
        start: its first copy.
        stop: the one after its last.
        memory: of "share": where it is.
        rows: of "share": for how many copies.
    """

    what: str
    start: int = 0
    stop: int = 0
    memory: str = ""
    rows: int = 0


class Sizes(NamedTuple):
    """How much there is to say of one copy."""

    observation: int
    action: BoxActions | DiscreteActions
    command: int
    costs: int


class Failure(NamedTuple):
    """Something was raised in a worker; `copy` is None where it was no copy's doing."""

    copy: int | None
    text: str


class Fields(NamedTuple):
    """What is known of all copies, a row each."""

    seeds: np.ndarray
    actions: np.ndarray
    commands: np.ndarray
    alive: np.ndarray
    observations: np.ndarray
    rewards: np.ndarray
    costs: np.ndarray
    terminated: np.ndarray

    @classmethod
    def zeros(cls, rows: int, sizes: Sizes, memory: str | None = None) -> Fields:
        """Room for so many copies, in a process' own memory or in a file."""
        action: tuple[type, tuple[int, ...]] = (np.int32, (rows,))
        if isinstance(sizes.action, BoxActions):
            action = (np.float32, (rows, sizes.action.size))
        shapes: list[tuple[type, tuple[int, ...]]] = [
            (np.uint32, (rows,)),
            action,
            (np.float32, (rows, sizes.command)),
            (np.bool_, (rows,)),
            (np.float32, (rows, sizes.observation)),
            (np.float32, (rows,)),
            (np.float32, (rows, sizes.costs)),
            (np.bool_, (rows,)),
        ]
        if memory is None:
            return cls(*(np.zeros(shape, kind) for kind, shape in shapes))
        lengths = [np.dtype(kind).itemsize * int(np.prod(shape)) for kind, shape in shapes]
        # Each begins on a line of the cache of its own.
        ends = np.cumsum([-(-length // 64) * 64 for length in lengths])
        whole = np.memmap(memory, np.uint8, "r+", shape=(int(ends[-1]) + 64,))
        starts = [0, *ends.tolist()]
        return cls(
            *(
                np.ndarray(shape, kind, whole, start)
                for (kind, shape), start in zip(shapes, starts, strict=False)
            )
        )


@contextlib.contextmanager
def shared_file() -> Any:
    """An empty file to be mapped, in memory where the system has a place for that; gone afterwards.

    Those who have mapped it by then go on using it.
    """
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    handle, name = tempfile.mkstemp(prefix="holdfast-", dir=place)
    os.close(handle)
    try:
        yield name
    finally:
        # Where a file in use cannot be removed, the system clears it up with the other temporary ones.
        with contextlib.suppress(PermissionError):
            Path(name).unlink()


class Copies:
    """Environments of this process, made when they are first needed.

    Arguments:
        make: gives a new environment.
        layout: of commands.
        costs: where they are.
    """

    def __init__(self, make: Make, layout: Layout, costs: Costs) -> None:
        self._make, self._layout, self._costs = make, layout, costs
        self._environments: list[Disturbed] = []
        self.current = 0

    def __getitem__(self, index: int) -> Disturbed:
        while len(self._environments) <= index:
            env = Disturbed(self._make(), self._layout, self._costs)
            self._environments.append(env)
        return self._environments[index]

    @property
    def sizes(self) -> Sizes:
        """Of the first copy, and so of all."""
        first = self[0]
        return Sizes(
            first.observation_size, first.action_kind, self._layout.size, len(self._costs.names)
        )

    def reset(self, fields: Fields, start: int, stop: int) -> None:
        """Episodes begin in the rows from `start` up to `stop`."""
        for row in range(start, stop):
            self.current = row
            observation, _ = self[row - start].reset(seed=int(fields.seeds[row]))
            fields.observations[row] = observation
        fields.rewards[start:stop] = 0
        fields.costs[start:stop] = 0
        fields.terminated[start:stop] = False

    def step(self, fields: Fields, start: int, stop: int) -> None:
        """The rows from `start` up to `stop` that are alive take a step."""
        fields.rewards[start:stop] = 0
        fields.costs[start:stop] = 0
        alive = fields.alive[start:stop].tolist()
        for row, is_alive in enumerate(alive, start):
            if not is_alive:
                continue
            self.current = row
            observation, reward, terminated, truncated, info = self[row - start].step_under(
                fields.actions[row], fields.commands[row]
            )
            fields.observations[row] = observation
            fields.rewards[row] = reward
            fields.costs[row] = info["costs"]
            fields.terminated[row] = terminated or truncated

    def close(self) -> None:
        """Closes all of them."""
        while self._environments:
            self._environments.pop().close()


class Pipes:
    """Messages over two pipes.

    Arguments:
        reads: the descriptor that messages come from.
        writes: the one that they are written to.
    """

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes

    def send(self, message: Any) -> None:
        """Sends a message whole."""
        content = pickle.dumps(message)
        view = memoryview(_LENGTH.pack(len(content)) + content)
        while view:
            view = view[os.write(self._writes, view) :]

    def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError: the other side is gone.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, length: int) -> bytes:
        parts = []
        while length:
            part = os.read(self._reads, length)
            if not part:
                raise EOFError
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


# Interrupts are the parent's to handle. The module may be where only the parent looks.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from holdfast.gym.hosts.workers import main; main()"
)


def main() -> None:
    """The whole life of a worker: orders come by its standard input until that is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What environments print must not come between the answers.
    pipes = Pipes(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        _serve(pipes)
    except (EOFError, BrokenPipeError):
        # The parent is gone, and so is the reason to be here.
        sys.exit(0)


def _serve(pipes: Pipes) -> None:
    copies, fields, sizes = None, None, None
    try:
        sys.path[:], content = pipes.receive()
        copies = Copies(*cloudpickle.loads(content))
        sizes = copies.sizes
    except EOFError:
        raise
    except Exception:
        pipes.send(Failure(0 if copies is not None else None, traceback.format_exc()))
        return
    pipes.send(sizes)
    while True:
        order = pipes.receive()
        try:
            if order.what == "share":
                fields = Fields.zeros(order.rows, sizes, order.memory)
            elif order.what == "close":
                copies.close()
                return
            else:
                assert fields is not None
                act = copies.reset if order.what == "reset" else copies.step
                act(fields, order.start, order.stop)
        except Exception:
            pipes.send(Failure(copies.current, traceback.format_exc()))
        else:
            pipes.send(None)
