"""Work in this process, one item after the other: nothing to start, and debuggers see everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from holdfast.experiments.engines import EngineOptions, Reply, WorkEvent, WorkItem, work_through


def run(items: Sequence[WorkItem], folder: Path, options: EngineOptions) -> Iterator[WorkEvent]:
    """Do every item in turn; the options have no effect."""
    del options
    return work_through(items, folder, [_InlineWorker()])


class _InlineWorker:
    def begin(self, item: WorkItem, folder: Path) -> Reply:
        self._files = item.run(folder)
        return self.resume()

    def resume(self) -> Reply:
        future: Reply = Future()
        try:
            made = list(next(([file] for file in self._files), []))
            future.set_result((made, bool(made)))
        except Exception as error:
            future.set_exception(error)
        return future
