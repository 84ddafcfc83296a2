"""Progress of runs: a bar on a terminal, one line per finished job elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from holdfast.experiments.engines import Begun, Done, Failed

if TYPE_CHECKING:
    from rich.progress import Progress


class JobProgress:
    """Progress of the jobs of an experiment.

    Arguments:
        stream: where lines are printed.
        bar: the bar of a terminal; if it is disabled, lines are printed.
        jobs: number of all jobs.
    """

    def __init__(self, stream: TextIO, bar: Progress, jobs: int) -> None:
        self._stream, self._bar, self._jobs, self._done = stream, bar, jobs, 0
        self._running: list[str] = []
        bar.add_task("", total=jobs, running="")

    def keep(self, jobs: int) -> None:
        """Report jobs that an earlier run finished."""
        if jobs:
            self.finish(f"{jobs} kept from an earlier run", jobs)

    def begin(self, event: Begun) -> None:
        """Report the start of some work."""
        self._running.append(str(event.item))
        self._update()

    def end(self, event: Done | Failed) -> None:
        """Report the end of some work, and why it failed."""
        self._running.remove(str(event.item))
        self._update()
        if isinstance(event, Failed):
            after = "failed for good" if event.for_good else "failed and is tried again"
            reason = event.traceback.strip().splitlines()[-1]
            self._print(f"{event.item} {after}: {reason}")

    def finish(self, told: str, jobs: int = 1) -> None:
        """Report finished jobs with a sentence about them."""
        self._done += jobs
        self._update()
        if self._bar.disable:
            self._print(told)

    def _update(self) -> None:
        running = ", ".join(self._running)
        self._bar.update(self._bar.task_ids[0], completed=self._done, running=running)

    def _print(self, text: str) -> None:
        if not self._bar.disable:
            self._bar.console.print(text, markup=False)
            return
        width = len(str(self._jobs))
        print(f"[{self._done:{width}}/{self._jobs}] {text}", file=self._stream, flush=True)


@contextlib.contextmanager
def progress_on(stream: TextIO, jobs: int) -> Iterator[JobProgress]:
    """Yield the progress of an experiment: a bar on a terminal, lines on other streams."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("all runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[running]}"),
        console=Console(file=stream),
        transient=True,
        disable=not stream.isatty(),
    ) as bar:
        yield JobProgress(stream, bar, jobs)


@contextlib.contextmanager
def iterations_on(
    stream: TextIO, label: str, iterations: int
) -> Iterator[Callable[[int], None] | None]:
    """Yield a callback for the iterations of one run that moves a bar; None unless on a terminal."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as bars:
        bar = bars.add_task(label, total=iterations)
        yield lambda iteration: bars.update(bar, completed=iteration)
