"""The comparison as Markdown, CSV and LaTeX, and as a table on the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast._support.files import write_text
from holdfast.experiments.results import Results
from holdfast.experiments.statistics import IntervalEstimate
from holdfast.report.comparison import Line, Overall, Timing, lines, overall, timings
from holdfast.report.tables import write_csv

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = ("runs", "95 % interval", "interquartile mean")
_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "≤": r"$\le$", "–": "--"}


class Column(NamedTuple):
    """A heading and how a row is shown under it."""

    heading: str
    shown: Callable[[Any], str]
    is_text: bool = False


def write_comparison(folder: Path, results: Sequence[Results]) -> None:
    """Writes `table`, `overall` and `timings`, each as `.md`, `.csv` and `.tex`."""
    for name, rows, columns in (
        ("table", lines(results), line_columns(results)),
        ("overall", overall(results), overall_columns(results)),
        ("timings", timings(results), timing_columns(results)),
    ):
        note = _NOTES[name]
        write_text(folder / f"{name}.md", f"{markdown(rows, columns)}\n{note}\n")
        write_text(folder / f"{name}.tex", latex(rows, columns))
        write_csv(folder / f"{name}.csv", *_flat(rows))


def write_chosen(folder: Path, results: Sequence[Results]) -> None:
    """Writes `chosen.md` and `chosen.csv`: the settings that a search found best on each model."""
    rows = [
        (found.cell, name, *_chosen(found, name))
        for found in results
        for name in found.runs
        if name in found.experiment.search
    ]
    if not rows:
        return
    head = ("model", "algorithm", "setting", "tried")
    columns = [Column(h, lambda row, i=i: str(row[i]), is_text=True) for i, h in enumerate(head)]
    note = "Tried with one seed that no reported run has; the best is what the reported runs have."
    write_text(folder / "chosen.md", f"{markdown(rows, columns)}\n{note}\n")
    write_csv(folder / "chosen.csv", head, rows)


def _chosen(results: Results, algorithm: str) -> tuple[str, str]:
    searched = dict(results.experiment.search[algorithm])
    own = searched.pop("settings", {})
    settings = results.runs[algorithm][0].job.settings
    best = {key: getattr(settings, key) for key in searched}
    best |= {key: settings.settings[key] for key in own}
    tried = {**searched, **own}
    return (
        ", ".join(f"{key} {_value(value)}" for key, value in best.items()),
        "; ".join(f"{key} {', '.join(map(_value, values))}" for key, values in tried.items()),
    )


def markdown(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """A Markdown table; the row of a best feasible algorithm is in bold."""
    lines_ = [
        "| " + " | ".join(column.heading for column in columns) + " |",
        "|" + "|".join("---" if column.is_text else "---:" for column in columns) + "|",
    ]
    for row in rows:
        cells = [column.shown(row) for column in columns]
        if getattr(row, "best", False) is True:
            cells = [f"**{cell}**" if cell else cell for cell in cells]
        lines_.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines_) + "\n"


def latex(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """A LaTeX table for the booktabs package; the row of a best feasible algorithm is in bold."""
    layout = "".join("l" if column.is_text else "r" for column in columns)
    lines_ = [
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        " & ".join(_escaped(column.heading) for column in columns) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = [_escaped(column.shown(row)) for column in columns]
        if getattr(row, "best", False) is True:
            cells = [rf"\textbf{{{cell}}}" if cell else cell for cell in cells]
        lines_.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines_, r"\bottomrule", r"\end{tabular}"]) + "\n"


def comparison_table(results: Sequence[Results]) -> Table:
    """The lines as a table for a terminal, with the processor's seconds."""
    from rich.table import Table
    from rich.text import Text

    # What a terminal has no room for is in the files.
    columns = [column for column in line_columns(results) if column.heading not in _WIDE]
    rows = [
        [*(column.shown(line) for column in columns), f"{timing.cpu_seconds:.1f}"]
        for line, timing in zip(lines(results), timings(results), strict=True)
    ]
    table = Table(title="in the worst case; best feasible in bold", title_justify="left")
    for i, column in enumerate([*columns, Column("CPU-seconds", str)]):
        side: Literal["left", "right"] = "left" if column.is_text else "right"
        # Headings may be folded, numbers not.
        table.add_column(column.heading, justify=side, min_width=max(len(row[i]) for row in rows))
    for line, row in zip(lines(results), rows, strict=True):
        style = "bold" if line.best else ("dim" if line.feasible < 1 else "")
        table.add_row(*(Text(cell, style) for cell in row))
    return table


def line_columns(results: Sequence[Results]) -> list[Column]:
    """The columns of the lines; those that say nothing here are left out."""
    columns = [Column("model", lambda line: line.environment, is_text=True)]
    if _have_radii(results):
        columns.append(Column("radius", lambda line: _number(line.radius)))
    columns += [
        Column("algorithm", lambda line: line.algorithm.upper(), is_text=True),
        Column("runs", lambda line: str(line.runs)),
        Column("reward", lambda line: f"{_number(line.reward.value)} ± {_deviation(line)}"),
        Column("95 % interval", lambda line: _interval(line.reward)),
        Column("interquartile mean", lambda line: _number(line.middle.value)),
        Column("smallest margin", lambda line: f"{line.margin:+.3g}"),
        Column("feasible", lambda line: _percent(line.feasible)),
        Column(_beats(results), lambda line: _percent(line.improvement.value)),
        Column("first feasible", lambda line: _number(line.first_feasible)),
        Column("infeasible iterates", lambda line: _percent(line.infeasible_share)),
    ]
    if any(run.certificate is not None for found in results for run in found):
        columns.append(Column("gap", lambda line: _gap(line.gap)))
    return columns


def overall_columns(results: Sequence[Results]) -> list[Column]:
    """The columns of the lines over all models."""
    return [
        Column("algorithm", lambda row: row.algorithm.upper(), is_text=True),
        Column("runs", lambda row: str(row.runs)),
        Column("feasible", lambda row: _percent(row.feasible.value)),
        Column("95 % interval", lambda row: _percents(row.feasible)),
        Column("best feasible", lambda row: f"{row.best} of {row.cells}"),
        Column(_beats(results), lambda row: _percent(row.improvement.value)),
        Column("95 % interval", lambda row: _percents(row.improvement)),
        Column("lacks of the best feasible", lambda row: _gap(row.shortfall)),
    ]


def timing_columns(results: Sequence[Results]) -> list[Column]:
    """The columns of the timings."""
    columns = [Column("model", lambda row: row.environment, is_text=True)]
    if _have_radii(results):
        columns.append(Column("radius", lambda row: _number(row.radius)))
    return [
        *columns,
        Column("algorithm", lambda row: row.algorithm.upper(), is_text=True),
        Column("iterations", lambda row: str(row.iterations)),
        Column("seconds", lambda row: f"{row.seconds:.1f}"),
        Column("CPU-seconds", lambda row: f"{row.cpu_seconds:.1f}"),
    ]


_NOTES = {
    "table": (
        "Worst-case values of the last iterates: mean ± standard deviation over the runs, with the "
        "95 % bootstrap interval of the mean. Feasible: the share of runs whose margins, less the "
        "numerical error, are at least zero. Bold: the best of those that are feasible in every run. "
        "Beats: how often a run is better than one of the first algorithm's, a feasible run being "
        "better than any that is not, and a tie counting half."
    ),
    "overall": (
        "Over all models and radii. Lacks of the best feasible: interquartile mean, over feasible runs, "
        "of what the worst-case reward lacks of the best feasible algorithm's mean."
    ),
    "timings": "All seeds together; CPU-seconds include compilation and certificates.",
}


def _beats(results: Sequence[Results]) -> str:
    return f"beats {next(iter(results[0].runs)).upper()}"


def _have_radii(results: Sequence[Results]) -> bool:
    return any(found.radius is not None for found in results)


def _flat(rows: Sequence[Line | Overall | Timing]) -> tuple[list[str], Iterable[list[Any]]]:
    """Header and rows of a CSV file: an estimate is three columns."""
    header: list[str] = []
    for name, value in zip(rows[0]._fields, rows[0], strict=True):
        header += (
            [name, f"{name}_low", f"{name}_high"] if isinstance(value, IntervalEstimate) else [name]
        )
    return header, (
        [
            each
            for value in row
            for each in (value if isinstance(value, IntervalEstimate) else [value])
        ]
        for row in rows
    )


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return "" if math.isnan(value) else f"{value:.6g}"


def _deviation(line: Line) -> str:
    # What rounding leaves of runs that end alike.
    alike = line.deviation <= 1e-9 * max(1.0, abs(line.reward.value))
    return "0" if alike else f"{line.deviation:.2g}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.3g} %"


def _gap(share: float) -> str:
    if math.isnan(share):
        return ""
    return "0 %" if abs(share) < 1e-9 else f"{100 * share:.2g} %"


def _interval(estimate: IntervalEstimate) -> str:
    return f"{_number(estimate.low)} – {_number(estimate.high)}"


def _percents(estimate: IntervalEstimate) -> str:
    return f"{100 * estimate.low:.3g} – {100 * estimate.high:.3g} %"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
