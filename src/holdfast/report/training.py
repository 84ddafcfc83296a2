"""How training shows itself: a live table, lines in a log, and what came out at the end."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import Row, limits_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


_LINES = 20  # of a whole run, where there is no terminal
_MOST_SEEDS = 8  # that have a line each
_LATE = 10  # the last tenth of a run is its end
_QUIET = 5.0  # seconds between two lines of a stress test


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where one seed stands, or several in the mean.

    Attributes:
        label: the seed, or "mean".
        reward: under its worst-case kernel; under the nominal one where training knows no other.
        nominal_reward: under the nominal kernel.
        costs: each under its own worst-case kernel, likewise.
        nominal_costs: under the nominal kernel.
        errors: standard errors of `costs`.
        kl: of the update.
    """

    label: str
    reward: float
    nominal_reward: float
    costs: tuple[float, ...]
    nominal_costs: tuple[float, ...]
    errors: tuple[float, ...]
    kl: float

    @classmethod
    def of(cls, label: str, rows: Sequence[Row]) -> Self:
        """The mean of rows."""
        mean = statistics.fmean

        def each(name: str) -> tuple[float, ...]:
            return tuple(mean(values) for values in zip(*(row[name] for row in rows), strict=True))

        return cls(
            label,
            mean(row["reward"] for row in rows),
            mean(row["nominal_reward"] for row in rows),
            each("costs"),
            each("nominal_costs"),
            each("cost_errors"),
            mean(row["kl"] for row in rows),
        )

    def margins(self, limits: Sequence[float]) -> tuple[float, ...]:
        """Limit less cost."""
        return tuple(limit - cost for limit, cost in zip(limits, self.costs, strict=True))


def standings(description: Mapping[str, Any], rows: Iterable[Row]) -> list[Standing]:
    """Every seed's standing over the rows, and the mean where there are several."""
    by_seed: dict[int, list[Row]] = {seed: [] for seed in description["seeds"]}
    for row in rows:
        by_seed[row["seed"]].append(row)
    found = [Standing.of(str(seed), own) for seed, own in by_seed.items()]
    if len(found) > 1:
        found.append(Standing.of("mean", [row for own in by_seed.values() for row in own]))
    return found


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: means over its last iterations, a tenth of them and at most ten."""

    description: Mapping[str, Any]
    iterations: int
    standings: list[Standing]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """From the folder of a run.

        Raises:
            ValueError: there is none, or it has no iteration yet.
        """
        description = runs.read_description(folder)
        rows = runs.read_lines(folder / runs.METRICS)
        if description is None or not rows:
            raise ValueError(f"{folder}: holds no training run")
        return cls.of_rows(description, rows)

    @classmethod
    def of_rows(cls, description: Mapping[str, Any], rows: Sequence[Row]) -> Self:
        """From what a run measured, at least one iteration of every seed."""
        done = rows[-1]["iteration"] + 1
        last = max(1, min(_LATE, done // _LATE))
        late = [row for row in rows if row["iteration"] >= done - last]
        return cls(description, last, standings(description, late))

    @property
    def over_limits(self) -> list[str]:
        """Seeds of which a cost is over its limit; none where the algorithm knows no limits."""
        limits = self.description["limits"]
        if not self.description["constrained"]:
            return []
        return [
            f"seed {each.label}"
            for each in self.standings
            if each.label != "mean" and any(margin < 0 for margin in each.margins(limits))
        ]

    def table(self) -> Table:
        """For a terminal."""
        which = (
            "the last iteration"
            if self.iterations == 1
            else f"the last {self.iterations} iterations"
        )
        return _table(self.description, self.standings, f"{headline(self.description)}: {which}")


def headline(description: Mapping[str, Any]) -> str:
    """What is trained, in a few words."""
    parts = [description["environment"]["name"], description["algorithm"].upper()]
    if description["robust"]:
        parts.append(f"radius {description['settings']['radius']:g}")
    if description["constrained"]:
        parts += [f"{name} ≤ {limit:g}" for name, limit in limits_of(description)]
    return ", ".join(parts)


def _table(description: Mapping[str, Any], found: Sequence[Standing], title: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    robust, constrained = description["robust"], description["constrained"]
    limits = limits_of(description)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    headings = ["seed", "reward"]
    if robust:
        headings = ["seed", "worst-case\nreward", "nominal\nreward"]
    for name, limit in limits:
        heading = f"{name} ≤ {limit:g}" if constrained else name
        headings += [f"worst-case\n{heading}" if robust else heading]
        headings += ["margin"] * constrained + [f"nominal\n{name}"] * robust
    for heading in [*headings, "KL"]:
        table.add_column(heading, justify="right", vertical="bottom")
    for each in found:
        cells: list[str | Text] = [each.label, _number(each.reward)]
        cells += [_number(each.nominal_reward)] * robust
        for i, (_, limit) in enumerate(limits):
            cells.append(_number(each.costs[i]))
            if constrained:
                margin = limit - each.costs[i]
                cells.append(Text(f"{margin:+.3g}", _colour(margin, each.errors[i])))
            cells += [_number(each.nominal_costs[i])] * robust
        mean = each.label == "mean"
        if mean:
            table.add_section()
        table.add_row(*cells, f"{each.kl:.2g}", style="bold" if mean else None)
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"


def _colour(margin: float, error: float) -> str:
    """Within the limit, over it by no more than chance may do, over it."""
    if margin >= 0:
        return "green"
    return "yellow" if margin >= -2 * error else "bold red"


class Progress(Protocol):
    """Is called with the rows of every few iterations."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def __call__(self, rows: Sequence[Row]) -> None:
        """Those rows are on disk."""


def progress_on(stream: TextIO, description: Mapping[str, Any]) -> Progress:
    """The progress that suits a stream: a live table on a terminal, lines elsewhere."""
    return (_Live if stream.isatty() else _Lines)(stream, description)


class _Clock:
    """Seconds of an iteration and to the end; the first rows waited for compilation and do not count."""

    def __init__(self, iterations: int) -> None:
        self.iterations, self.done = iterations, 0
        self._start: tuple[float, int] | None = None
        self._last = 0.0

    def tick(self, done: int) -> None:
        self.done, self._last = done, time.monotonic()
        self._start = self._start or (self._last, done)

    @property
    def seconds(self) -> float | None:
        if self._start is None or self.done == self._start[1]:
            return None
        return (self._last - self._start[0]) / (self.done - self._start[1])

    def __str__(self) -> str:
        seconds = self.seconds
        if seconds is None:
            return ""
        left = seconds * (self.iterations - self.done)
        return f"{seconds:.2g} s an iteration" + (f", {_duration(left)} left" if left else "")


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Lines:
    def __init__(self, stream: TextIO, description: Mapping[str, Any]) -> None:
        self._stream, self._description = stream, description
        iterations = description["settings"]["iterations"]
        self._clock, self._every = _Clock(iterations), max(1, iterations // _LINES)
        self._told = 0

    def __enter__(self) -> Self:
        seeds = len(self._description["seeds"])
        self._print(
            f"{headline(self._description)}: {self._clock.iterations} iterations, "
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._clock.done == 0:
            self._print("all of them were done before")

    def __call__(self, rows: Sequence[Row]) -> None:
        clock, first, done = self._clock, rows[0]["iteration"], rows[-1]["iteration"] + 1
        if clock.done == 0 and first > 0:
            self._print(f"going on from iteration {first}")
            self._told = first
        clock.tick(done)
        if done - self._told >= self._every or done == clock.iterations:
            self._told = done
            width = len(str(clock.iterations))
            self._print(f"[{done:{width}}/{clock.iterations}] {self._line(rows)}")

    def _line(self, rows: Sequence[Row]) -> str:
        about, done = self._description, rows[-1]["iteration"]
        found = standings(about, [row for row in rows if row["iteration"] == done])
        mean = found[-1]
        seeds = found[:-1] or found
        costs = []
        for i, (name, limit) in enumerate(limits_of(about)):
            text = f"{name} {_number(mean.costs[i])}"
            if about["constrained"]:
                text += f" (margin {limit - mean.costs[i]:+.2g}"
                within = sum(each.costs[i] <= limit for each in seeds)
                text += f", {within} of {len(seeds)} seeds within)" if len(seeds) > 1 else ")"
            costs.append(text)
        parts = [f"reward {_number(mean.reward)}, {', '.join(costs)}".rstrip(", ")]
        if about["robust"]:
            nominal = [f"reward {_number(mean.nominal_reward)}"] + [
                f"{name} {_number(cost)}"
                for name, cost in zip(about["costs"], mean.nominal_costs, strict=True)
            ]
            parts = [f"worst case: {parts[0]}", f"nominal: {', '.join(nominal)}"]
        parts += [f"KL {mean.kl:.2g}", *filter(None, [str(self._clock)])]
        return "; ".join(parts)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class _Live:
    def __init__(self, stream: TextIO, description: Mapping[str, Any]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._description, self._began = description, time.monotonic()
        self._clock = _Clock(description["settings"]["iterations"])
        self._found: list[Standing] = []
        self._live = Live(
            get_renderable=self._screen, console=Console(file=stream), refresh_per_second=4
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What was seen last stays where training did not come to its end; there the outcome follows.
        self._live.transient = kind is None
        self._live.stop()

    def __call__(self, rows: Sequence[Row]) -> None:
        last = rows[-1]["iteration"]
        found = standings(self._description, [row for row in rows if row["iteration"] == last])
        self._found = found if len(found) <= _MOST_SEEDS + 1 else found[-1:]
        self._clock.tick(last + 1)

    def _screen(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        about, clock = self._description, self._clock
        title = headline(about)
        if not self._found:
            waited = _duration(time.monotonic() - self._began)
            return Group(
                Text(title, "bold"), Spinner("dots", f"compiling the training loop, {waited}")
            )
        if len(about["seeds"]) > _MOST_SEEDS:
            title += f", {len(about['seeds'])} seeds"
        line = Table.grid(padding=(0, 1))
        line.add_row(
            f" iteration {clock.done}/{clock.iterations}",
            ProgressBar(clock.iterations, clock.done, width=30),
            str(clock),
        )
        return Group(_table(about, self._found, title), line)


@contextlib.contextmanager
def tests_on(stream: TextIO) -> Iterator[Callable[[int, int, str], None]]:
    """Progress of `stress`, which calls it with the tests done, their number, and what comes next."""
    if not stream.isatty():
        told = -_QUIET

        def line(done: int, total: int, what: str) -> None:
            nonlocal told
            if time.monotonic() - told >= _QUIET:
                told = time.monotonic()
                print(f"[{done:{len(str(total))}}/{total}] {what}", file=stream, flush=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    ) as bars:
        task = bars.add_task("compiling", total=None)
        yield lambda done, total, what: bars.update(
            task, completed=done, total=total, description=what
        )
