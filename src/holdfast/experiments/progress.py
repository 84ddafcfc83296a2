"""How a run tells where it stands: a bar on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self, TextIO

from holdfast.experiments.engines import Begun, Done, Failed
from holdfast.experiments.results import Result


class Progress(Protocol):
    """What the runner tells, as it happens."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def kept(self, jobs: int) -> None:
        """So many jobs were finished by an earlier run."""

    def told(self, event: Begun | Done) -> None:
        """A task was begun or is finished."""

    def finished(self, result: Result) -> None:
        """A job is done and on disk."""

    def failed(self, failure: Failed) -> None:
        """A task failed."""


def progress_on(stream: TextIO, jobs: int) -> Progress:
    """The progress that suits a stream."""
    return _Bars(stream, jobs) if stream.isatty() else _Lines(stream, jobs)


@contextlib.contextmanager
def iterations_on(
    stream: TextIO, label: str, iterations: int
) -> Iterator[Callable[[int], None] | None]:
    """What a lone run tells of its iterations: a bar on a terminal, nothing elsewhere."""
    if not stream.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as RichProgress

    with RichProgress(console=Console(file=stream), transient=True) as bars:
        bar = bars.add_task(label, total=iterations)
        yield lambda iteration: bars.update(bar, completed=iteration)


def _described(failure: Failed) -> str:
    what = "failed for good" if failure.for_good else "failed and is tried again"
    last = failure.traceback.strip().splitlines()[-1]
    return f"{failure.task} {what}: {last}"


class _Lines:
    def __init__(self, stream: TextIO, jobs: int) -> None:
        self._stream, self._jobs, self._done = stream, jobs, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def kept(self, jobs: int) -> None:
        if jobs:
            self._done += jobs
            self._line(f"{jobs} kept from an earlier run")

    def told(self, event: Begun | Done) -> None:
        pass

    def finished(self, result: Result) -> None:
        self._done += 1
        self._line(
            f"{result.job}: {result.status}, worst-case reward {result.reward:.4f}, "
            f"margin {result.margin:+.4f}, {result.seconds:.1f} s"
        )

    def failed(self, failure: Failed) -> None:
        self._line(_described(failure))

    def _line(self, text: str) -> None:
        width = len(str(self._jobs))
        print(f"[{self._done:{width}}/{self._jobs}] {text}", file=self._stream, flush=True)


class _Bars:
    def __init__(self, stream: TextIO, jobs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._console = Console(file=stream)
        self._bars = RichProgress(
            TextColumn("all runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[running]}"),
            console=self._console,
            transient=True,
        )
        self._all = self._bars.add_task("", total=jobs, running="")
        self._running: list[str] = []

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def kept(self, jobs: int) -> None:
        self._bars.advance(self._all, jobs)

    def told(self, event: Begun | Done) -> None:
        if isinstance(event, Begun):
            self._running.append(str(event.task))
        else:
            self._running.remove(str(event.task))
        self._show()

    def finished(self, result: Result) -> None:
        del result
        self._bars.advance(self._all)

    def failed(self, failure: Failed) -> None:
        self._running.remove(str(failure.task))
        self._show()
        self._console.print(_described(failure), markup=False)

    def _show(self) -> None:
        self._bars.update(self._all, running=", ".join(self._running))
