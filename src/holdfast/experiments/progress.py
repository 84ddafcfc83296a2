"""Progress of runs: a bar on a terminal, one line per finished job elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from holdfast.experiments.engines import Begun, Done, Failed, WorkEvent

if TYPE_CHECKING:
    from rich.progress import Progress


class JobProgress:
    """Progress of the jobs of an experiment.

    Arguments:
        bar: the bar of a terminal; if it is disabled, lines are printed.
        jobs: number of all jobs.
    """

    def __init__(self, bar: Progress, jobs: int) -> None:
        self._bar, self._jobs, self._done = bar, jobs, 0
        self._running: list[str] = []
        bar.add_task("", total=jobs)

    def keep(self, jobs: int) -> None:
        """Report jobs that an earlier run finished."""
        if jobs:
            self.finish(f"{jobs} kept from an earlier run", jobs)

    def show(self, event: WorkEvent) -> None:
        """Report the start or the end of some work, and why it failed."""
        if isinstance(event, Begun):
            self._running.append(str(event.item))
        elif isinstance(event, Done | Failed):
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
        self._bar.update(self._bar.task_ids[0], completed=self._done, description=running)

    def _print(self, text: str) -> None:
        line = f"[{self._done:{len(str(self._jobs))}}/{self._jobs}] {text}"
        self._bar.console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def progress_bar(stream: TextIO, label: str) -> Progress:
    """Return a bar that is shown on a terminal and disabled on other streams.

    Arguments:
        stream: where the bar is drawn.
        label: text beside the bar, a format string of rich's `TextColumn`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn(label))
    hidden = not stream.isatty()
    return Progress(*columns, console=Console(file=stream), transient=True, disable=hidden)


@contextlib.contextmanager
def progress_on(stream: TextIO, jobs: int) -> Iterator[JobProgress]:
    """Yield the progress of an experiment: a bar on a terminal, lines on other streams."""
    with progress_bar(stream, "all runs {task.description}") as bar:
        yield JobProgress(bar, jobs)


@contextlib.contextmanager
def iterations_on(
    stream: TextIO, label: str, iterations: int
) -> Iterator[Callable[..., None] | None]:
    """Yield a callback for the iterations of one run that moves a bar; None unless on a terminal.

    The callback takes the number of iterations so far, and a string to show beside the bar.
    """
    if not stream.isatty():
        yield None
        return
    with progress_bar(stream, f"{label} {{task.description}}") as bars:
        bar = bars.add_task("", total=iterations)

        def show(iteration: int, text: str = "") -> None:
            bars.update(bar, completed=iteration, description=text)

        yield show
