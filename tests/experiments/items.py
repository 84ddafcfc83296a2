"""Work items that cost nothing, for the tests of engines."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from holdfast import registry
from holdfast.experiments.engines import Begun, Done, Failed, File, Made


@dataclasses.dataclass(frozen=True)
class Square:
    """An item that squares its number, unless something happens; `marks` counts the attempts."""

    number: int
    marks: str
    accident: str = ""
    until: int = 99  # the accident happens in this many attempts
    look_up: str = ""  # a registered name to resolve in the worker

    @property
    def kin(self) -> str:
        return str(self.number % 2)

    def run(self, folder: Path | None) -> Iterator[File]:
        marks = Path(self.marks) / str(self.number)
        with marks.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if len(marks.read_text().splitlines()) <= self.until:
            if self.accident == "raise":
                raise OSError("the roof came down")
            if self.accident == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        yield File(f"{self.number}.txt", str(self.number**2).encode())
        if self.look_up:
            found = registry.ENVIRONMENTS.find(self.look_up)
            yield File(f"{self.number}.name", repr(found).encode())
        yield File(f"{self.number}.env", os.environ.get("OMP_NUM_THREADS", "").encode())


def attempts(marks, number):
    return (marks / str(number)).read_text().splitlines()


def files(events):
    return {event.file.path: event.file.data for event in events if isinstance(event, Made)}


def check_order(events, items):
    """A item is begun before its files, which come before its end; every item ends once."""
    for item in items:
        mine = [type(event) for event in events if event.item == item]
        ends = [e for e in events if e.item == item and isinstance(e, Done | Failed)]
        assert mine[0] is Begun
        assert mine[-1] in (Done, Failed)
        assert sum(isinstance(e, Done) or e.for_good for e in ends) == 1
