"""How a run tells where it stands: a bar on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, TextIO

from holdfast.experiments.configuration import Job
from holdfast.experiments.results import Result


class Progress(Protocol):
    """What the runner tells, in order, of every job: kept, or begun, iterated and finished."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def kept(self, job: Job) -> None:
        """The job was finished by an earlier run."""

    def begun(self, job: Job) -> None:
        """The job starts."""

    def iterated(self, iteration: int) -> None:
        """The job that was begun last has done this many iterations."""

    def finished(self, result: Result) -> None:
        """The job that was begun last is done and on disk."""


def progress_on(stream: TextIO, jobs: int) -> Progress:
    """The progress that suits a stream."""
    return _Bars(stream, jobs) if stream.isatty() else _Lines(stream, jobs)


class _Lines:
    def __init__(self, stream: TextIO, jobs: int) -> None:
        self._stream, self._jobs, self._done, self._kept = stream, jobs, 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_kept()

    def kept(self, job: Job) -> None:
        del job
        self._done += 1
        self._kept += 1

    def begun(self, job: Job) -> None:
        del job
        self._tell_kept()

    def iterated(self, iteration: int) -> None:
        pass

    def finished(self, result: Result) -> None:
        seconds = float(result.history["seconds"][-1])
        self._done += 1
        self._line(
            f"{result.job}: {result.status}, worst-case reward {result.reward:.4f}, "
            f"margin {result.margin:+.4f}, {seconds:.1f} s"
        )

    def _tell_kept(self) -> None:
        if self._kept:
            self._line(f"{self._kept} kept from an earlier run")
            self._kept = 0

    def _line(self, text: str) -> None:
        width = len(str(self._jobs))
        print(f"[{self._done:{width}}/{self._jobs}] {text}", file=self._stream, flush=True)


class _Bars:
    def __init__(self, stream: TextIO, jobs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            console=Console(file=stream),
            transient=True,
        )
        self._all = self._bars.add_task("all runs", total=jobs, unit="runs")
        self._job = self._bars.add_task("", total=None, unit="iterations", visible=False)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def kept(self, job: Job) -> None:
        del job
        self._bars.advance(self._all)

    def begun(self, job: Job) -> None:
        self._bars.reset(self._job, description=str(job), total=job.iterations, visible=True)

    def iterated(self, iteration: int) -> None:
        self._bars.update(self._job, completed=iteration)

    def finished(self, result: Result) -> None:
        del result
        self._bars.update(self._job, visible=False)
        self._bars.advance(self._all)
