"""Shows training runs and stress tests on a terminal and in logs."""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

from holdfast.experiments.progress import progress_bar
from holdfast.report.charts import label_of
from holdfast.report.records import Standing, TrainingRecord, standings
from holdfast.simulators.training.runs import Row, limits_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Lines that a whole run writes to a log.
_LOG_LINES = 20
# With more seeds than this, the live table shows only their mean, so that it fits on a screen.
_MOST_SEEDS = 8
# Seconds between two lines of a stress test in a log.
_LOG_EVERY = 5.0


def headline(description: Mapping[str, Any]) -> str:
    """Return the environment, the algorithm, its radius and its limits, as text."""
    parts = [description["environment"]["name"], label_of(description["algorithm"])]
    if description["robust"]:
        parts.append(f"radius {description['settings']['radius']:g}")
    if description["constrained"]:
        parts += [f"{name} ≤ {limit:g}" for name, limit in limits_of(description)]
    return ", ".join(parts)


def outcome_table(run: TrainingRecord) -> Table:
    """Return the end of a run as a table for a terminal."""
    which = "the last iteration" if run.late == 1 else f"the last {run.late} iterations"
    return _table(run.description, run.standings, f"{headline(run.description)}: {which}")


def _table(description: Mapping[str, Any], found: Sequence[Standing], title: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    robust, constrained = description["robust"], description["constrained"]
    limits = limits_of(description)
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    headings = ["seed", "worst-case\nreward", "nominal\nreward"] if robust else ["seed", "reward"]
    for name, limit in limits:
        heading = f"{name} ≤ {limit:g}" if constrained else name
        headings += [f"worst-case\n{heading}" if robust else heading, "most likely\nactions"]
        headings += ["margin"] * constrained + [f"nominal\n{name}"] * robust
    for heading in [*headings, "KL"]:
        table.add_column(heading, justify="right", vertical="bottom")
    for each in found:
        cells: list[str | Text] = [each.label, f"{each.reward:.4g}"]
        cells += [f"{each.nominal_reward:.4g}"] * robust
        for i, (_, limit) in enumerate(limits):
            cells += [f"{each.costs[i]:.4g}", f"{each.likely_costs[i]:.4g}"]
            if constrained:
                margin = limit - each.larger_costs[i]
                # Yellow: over the limit by no more than two standard errors.
                over = "yellow" if margin >= -2 * each.cost_errors[i] else "bold red"
                cells.append(Text(f"{margin:+.3g}", "green" if margin >= 0 else over))
            cells += [f"{each.nominal_costs[i]:.4g}"] * robust
        mean = each.label == "mean"
        if mean:
            table.add_section()
        table.add_row(*cells, f"{each.kl:.2g}", style="bold" if mean else None)
    return table


Show = Callable[[Sequence[Row]], None]


def progress_on(stream: TextIO, description: Mapping[str, Any]) -> AbstractContextManager[Show]:
    """Return a context with a function that shows the rows of every few iterations.

    A terminal gets a live table, other streams get log lines.
    """
    return (_live_table if stream.isatty() else _log_lines)(stream, description)


class _Clock:
    """Measures the time per iteration, without the first rows, which include compilation."""

    def __init__(self, iterations: int) -> None:
        self.iterations, self.done = iterations, 0
        self._start: tuple[float, int] | None = None
        self._last = 0.0

    def tick(self, done: int) -> None:
        self.done, self._last = done, time.monotonic()
        self._start = self._start or (self._last, done)

    def __str__(self) -> str:
        if self._start is None or self.done == self._start[1]:
            return ""
        seconds = (self._last - self._start[0]) / (self.done - self._start[1])
        left = seconds * (self.iterations - self.done)
        return f"{seconds:.2g} s per iteration" + (f", {_duration(left)} left" if left else "")


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


@contextlib.contextmanager
def _log_lines(stream: TextIO, description: Mapping[str, Any]) -> Iterator[Show]:
    iterations, seeds = description["settings"]["iterations"], len(description["seeds"])
    every, printed = max(1, iterations // _LOG_LINES), 0
    clock = _Clock(iterations)
    say = functools.partial(print, file=stream, flush=True)

    def show(rows: Sequence[Row]) -> None:
        nonlocal printed
        first, done = rows[0]["iteration"], rows[-1]["iteration"] + 1
        if clock.done == 0 and first > 0:
            say(f"resuming at iteration {first}")
            printed = first
        clock.tick(done)
        if done - printed >= every or done == iterations:
            printed = done
            texts = filter(None, [*_measurements(description, rows), str(clock)])
            say(f"[{done:{len(str(iterations))}}/{iterations}] {'; '.join(texts)}")

    count = f"{iterations} iterations, {seeds} {'seed' if seeds == 1 else 'seeds'}"
    say(f"{headline(description)}: {count}")
    yield show
    if clock.done == 0:
        say("all iterations were finished before")


def _measurements(about: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Return the worst case, the nominal case and the KL divergence of the last iteration, as texts."""
    found = _latest(about, rows)
    mean, seeds = found[-1], found[:-1] or found
    worst = [f"reward {mean.reward:.4g}"]
    for i, (name, limit) in enumerate(limits_of(about)):
        text = f"{name} {mean.costs[i]:.4g}, {mean.likely_costs[i]:.4g} with most likely actions"
        if about["constrained"]:
            within = sum(each.larger_costs[i] <= limit for each in seeds)
            count = f", {within} of {len(seeds)} seeds within" if len(seeds) > 1 else ""
            text += f" (margin {limit - mean.larger_costs[i]:+.2g}{count})"
        worst.append(text)
    kl = f"KL {mean.kl:.2g}"
    if not about["robust"]:
        return [", ".join(worst), kl]
    nominal = [f"reward {mean.nominal_reward:.4g}"]
    for name, cost in zip(about["costs"], mean.nominal_costs, strict=True):
        nominal.append(f"{name} {cost:.4g}")
    return [f"worst case: {', '.join(worst)}", f"nominal: {', '.join(nominal)}", kl]


def _latest(description: Mapping[str, Any], rows: Sequence[Row]) -> list[Standing]:
    last = rows[-1]["iteration"]
    return standings(description, [row for row in rows if row["iteration"] == last])


@contextlib.contextmanager
def _live_table(stream: TextIO, description: Mapping[str, Any]) -> Iterator[Show]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    title, seeds = headline(description), len(description["seeds"])
    many = f", {seeds} seeds" if seeds > _MOST_SEEDS else ""
    clock = _Clock(description["settings"]["iterations"])
    bar = progress_bar(stream, "{task.description}")
    task = bar.add_task("compiling the training loop", total=clock.iterations)
    found: list[Standing] = []

    def show(rows: Sequence[Row]) -> None:
        nonlocal found
        found = _latest(description, rows)[-1 if many else 0 :]
        clock.tick(rows[-1]["iteration"] + 1)
        bar.update(task, completed=clock.done, description=str(clock))

    def screen() -> RenderableType:
        table = _table(description, found, title + many) if found else Text(title, "bold")
        return Group(table, bar)

    with Live(get_renderable=screen, console=Console(file=stream), refresh_per_second=4) as live:
        yield show
        # After an error the last table stays; after a whole run the outcome follows.
        live.transient = True


@contextlib.contextmanager
def tests_on(stream: TextIO) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a progress function of `stress`: finished tests, number of tests, name of the next test."""
    printed = -_LOG_EVERY
    with progress_bar(stream, "{task.description}") as bars:
        task = bars.add_task("compiling", total=None)

        def show(done: int, total: int, what: str) -> None:
            nonlocal printed
            bars.update(task, completed=done, total=total, description=what)
            if bars.disable and time.monotonic() - printed >= _LOG_EVERY:
                printed = time.monotonic()
                print(f"[{done:{len(str(total))}}/{total}] {what}", file=stream, flush=True)

        yield show
