"""Tasks in this process, one after the other: nothing to start, and a debugger sees everything."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.experiments.engines import (
    RETRIES,
    Begun,
    Done,
    EngineOptions,
    Event,
    Failed,
    Made,
    Task,
)


def run(tasks: Sequence[Task], folder: Path, options: EngineOptions) -> Iterator[Event]:
    """Does every task in turn."""
    del options  # this process is as it is
    for task in tasks:
        for attempt in range(1, RETRIES + 2):
            yield Begun(task)
            try:
                for file in task.run(folder):
                    yield Made(task, file)
            except Exception:
                yield Failed(task, traceback.format_exc(), attempt)
            else:
                yield Done(task)
                break
