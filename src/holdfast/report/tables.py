"""Writes records as Markdown, CSV and LaTeX, and as tables for a terminal."""

from __future__ import annotations

import csv
import io
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from holdfast import __version__
from holdfast._support.files import plain_number, write_text
from holdfast.experiments.results import DeepResults, Results, columns
from holdfast.experiments.statistics import IntervalEstimate
from holdfast.report import comparison
from holdfast.report.charts import label_of
from holdfast.simulators.certificates.intervals import Measured
from holdfast.tabular.certify import gap_text

if TYPE_CHECKING:
    from rich.table import Table

# Only times differ between identical runs; they have a file of their own.
_TIMES = ("seconds", "cpu_seconds")
_LETTERS = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "±": r"$\pm$", "≤": r"$\le$", "–": "--"}
# Two control characters mark bold text, since no cell contains them.
_LATEX = str.maketrans(_LETTERS | {"<": "$<$", "\x02": r"\textbf{", "\x03": "}"})
# Columns that a terminal without room leaves out, the least important first.
_OPTIONAL = ("95 % interval", "interquartile mean", "runs", "infeasible iterates", "beats", "first")


class Column(NamedTuple):
    """A heading, and the text of a row under it."""

    heading: str
    text: Callable[[Any], str]
    is_text: bool = False


def text_columns(*headings: str) -> list[Column]:
    """Return columns of text for rows that are sequences."""
    return [Column(h, lambda row, i=i: str(row[i]), is_text=True) for i, h in enumerate(headings)]


def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on."""
    return {
        "holdfast": __version__,
        "jax": version("jax"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file with floats in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([plain_number(value) for value in row] for row in rows)
    write_text(path, text.getvalue())


def write_records(path: Path, rows: Sequence[Any], names: Sequence[str] = ()) -> None:
    """Write (some fields of) named tuples as a CSV file; an estimate has columns for its interval."""
    table = [
        {
            f"{name}{end}": part
            for name in names or row._fields
            for end, part in zip(("", "_low", "_high"), _parts(getattr(row, name)), strict=False)
        }
        for row in rows
    ]
    write_csv(path, list(table[0]), [list(row.values()) for row in table])


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Measured):
        return value.mean, value.low, value.high
    return value if isinstance(value, IntervalEstimate) else (value,)


def write_data(path: Path, results: Results) -> None:
    """Write every iterate of every run, one row each."""
    tables = [(result.job, columns(result.history, result.bounds)) for result in results]
    # Algorithms may record columns of their own; the file has the columns common to all.
    shared = [
        name
        for name in tables[0][1]
        if name not in _TIMES and all(name in table for _, table in tables)
    ]
    rows = (
        (job.label, job.seed, *row)
        for job, table in tables
        for row in zip(*(table[name] for name in shared), strict=True)
    )
    write_csv(path, ("algorithm", "seed", *shared), rows)


def markdown(rows: Sequence[Any], shown: Sequence[Column]) -> str:
    """Return a Markdown table; the rows of the best feasible algorithms are in bold."""
    lines = [
        [column.heading for column in shown],
        ["---" if column.is_text else "---:" for column in shown],
        *_cells(rows, shown, "**{}**"),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows: Sequence[Any], shown: Sequence[Column]) -> str:
    """Return a LaTeX table for the booktabs package; bold as in `markdown`."""
    layout = "".join("l" if column.is_text else "r" for column in shown)
    head, *body = (
        " & ".join(cell.translate(_LATEX) for cell in line) + r" \\"
        for line in ([column.heading for column in shown], *_cells(rows, shown, "\x02{}\x03"))
    )
    lines = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _cells(rows: Sequence[Any], shown: Sequence[Column], bold: str) -> list[list[str]]:
    return [
        [bold.format(cell) if cell and getattr(row, "best", 0) is True else cell for cell in cells]
        for row in rows
        for cells in [[column.text(row) for column in shown]]
    ]


def write_comparison(folder: Path, results: Sequence[Results]) -> None:
    """Write `table`, `overall` and `timings`, each as `.md`, `.csv` and `.tex`."""
    rows = comparison.algorithm_rows(results)
    fields = [name for name in rows[0]._fields if name not in _TIMES]
    timings = ("environment", "radius", "algorithm", "iterations", *_TIMES)
    for name, records, shown, names in (
        ("table", rows, _algorithm_columns(results), fields),
        ("overall", comparison.overall_rows(results), _overall_columns(results), ()),
        # Bold marks rewards, so no row of the timings is bold.
        ("timings", [row._replace(best=False) for row in rows], _timing_columns(results), timings),
    ):
        write_text(folder / f"{name}.md", f"{markdown(records, shown)}\n{_NOTES[name]}\n")
        write_text(folder / f"{name}.tex", latex(records, shown))
        write_records(folder / f"{name}.csv", records, names)


_NOTES = {
    "table": (
        "Worst-case values of the last iterates: mean ± standard deviation over the runs, with the "
        "95 % bootstrap interval of the mean. Feasible: fraction of runs whose margins, less the "
        "numerical error, are at least zero. Bold: the best of the algorithms that are feasible in "
        "every run. Beats: probability that a run is better than one of the first algorithm's; a "
        "feasible run is better than an infeasible one, and a tie counts half. First feasible: median "
        "iteration, over the runs that become feasible."
    ),
    "overall": (
        "Over all models and radii. Shortfall: interquartile mean, over feasible runs, of the relative "
        "difference between the worst-case reward and the best feasible algorithm's mean."
    ),
    "timings": "All seeds together; CPU-seconds include compilation and certificates.",
}


def write_chosen(folder: Path, results: Sequence[Results]) -> None:
    """Write `chosen.md` and `chosen.csv`: the settings that a search found best on each model."""
    rows = [
        (found.cell, name, *_chosen(found, name))
        for found in results
        for name in found.runs
        if name in found.experiment.search
    ]
    if not rows:
        return
    head = ("model", "algorithm", "setting", "tried")
    note = "Each setting was tried with one seed that no run here uses; the runs here use the best."
    write_text(folder / "chosen.md", f"{markdown(rows, text_columns(*head))}\n{note}\n")
    write_csv(folder / "chosen.csv", head, rows)


def _chosen(results: Results, algorithm: str) -> tuple[str, str]:
    """Return the best setting and the tried ones, as text."""
    searched = dict(results.experiment.search[algorithm])
    own = searched.pop("settings", {})
    settings = results.runs[algorithm][0].job.settings
    best = {key: getattr(settings, key) for key in searched}
    best |= {key: settings.settings[key] for key in own}
    tried = {**searched, **own}

    def text(value: Any) -> str:
        return f"{value:g}" if isinstance(value, float) else str(value)

    return (
        ", ".join(f"{key} {text(value)}" for key, value in best.items()),
        "; ".join(f"{key} {', '.join(map(text, values))}" for key, values in tried.items()),
    )


def comparison_table(results: Sequence[Results], width: int = 120) -> Table:
    """Return the comparison as a table for a terminal, with CPU-seconds.

    Arguments:
        results: the results, by model and radius.
        width: width of the terminal in characters; columns that do not fit are left out.
    """
    from rich.table import Table
    from rich.text import Text

    rows = comparison.algorithm_rows(results)
    every = [*_algorithm_columns(results), _CPU_SECONDS]
    shown = [(column, [column.text(row) for row in rows]) for column in every]

    def least(column: Column, cells: Sequence[str]) -> int:
        # Headings may be folded between words; numbers may not.
        return max(map(len, (*column.heading.split(), *cells)))

    for optional in _OPTIONAL:
        # Each column has a border and two blanks.
        if sum(least(*each) + 3 for each in shown) + 1 > width:
            shown = [each for each in shown if not each[0].heading.startswith(optional)]
    title = "worst-case values, best feasible in bold; table.md has every column"
    table = Table(title=title, title_justify="left")
    for column, cells in shown:
        side: Literal["left", "right"] = "left" if column.is_text else "right"
        table.add_column(column.heading, justify=side, width=least(column, cells))
    for i, row in enumerate(rows):
        style = "bold" if row.best else ("dim" if row.feasible < 1 else "")
        table.add_row(*(Text(cells[i], style) for _, cells in shown))
    return table


def _algorithm_columns(results: Sequence[Results]) -> list[Column]:
    """Return the columns of the comparison, without those that are empty."""
    shown = [
        *_model_columns(results),
        Column("runs", lambda row: str(row.runs)),
        Column("reward", lambda row: f"{_number(row.reward.value)} ± {_deviation(row)}"),
        Column("95 % interval", lambda row: "{} – {}".format(*map(_number, row.reward[1:]))),
        Column("interquartile mean", lambda row: _number(row.middle.value)),
        Column("smallest margin", lambda row: f"{row.margin:+.3g}"),
        Column("feasible", lambda row: _percent(row.feasible)),
        Column(_beats(results), lambda row: _percent(row.improvement.value)),
        Column("first feasible", lambda row: _number(row.first_feasible)),
        Column("infeasible iterates", lambda row: _percent(row.infeasible_share)),
    ]
    if any(run.certificate is not None for found in results for run in found):
        shown.append(Column("gap", lambda row: gap_text(row.gap)))
    return shown


def _overall_columns(results: Sequence[Results]) -> list[Column]:
    return [
        Column("algorithm", lambda row: label_of(row.algorithm), is_text=True),
        Column("runs", lambda row: str(row.runs)),
        Column("feasible", lambda row: _percent(row.feasible.value)),
        Column("95 % interval", lambda row: _percents(row.feasible)),
        Column("best feasible", lambda row: f"{row.best} of {row.cells}"),
        Column(_beats(results), lambda row: _percent(row.improvement.value)),
        Column("95 % interval", lambda row: _percents(row.improvement)),
        Column("shortfall", lambda row: gap_text(row.shortfall)),
    ]


def _timing_columns(results: Sequence[Results]) -> list[Column]:
    return [
        *_model_columns(results),
        Column("iterations", lambda row: str(row.iterations)),
        Column("seconds", lambda row: f"{row.seconds:.1f}"),
        _CPU_SECONDS,
    ]


_CPU_SECONDS = Column("CPU-seconds", lambda row: f"{row.cpu_seconds:.1f}")


def _model_columns(results: Sequence[Results]) -> list[Column]:
    shown = [Column("model", lambda row: row.environment, is_text=True)]
    if any(found.radius is not None for found in results):
        shown.append(Column("radius", lambda row: _number(row.radius)))
    return [*shown, Column("algorithm", lambda row: label_of(row.algorithm), is_text=True)]


def _beats(results: Sequence[Results]) -> str:
    return f"beats {label_of(next(iter(results[0].runs)))}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return "" if math.isnan(value) else f"{value:.6g}"


def _deviation(row: comparison.AlgorithmRow) -> str:
    # Runs that end in the same policy differ by rounding only.
    alike = row.deviation <= 1e-9 * max(1.0, abs(row.reward.value))
    return "0" if alike else f"{row.deviation:.2g}"


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{100 * share:.3g} %"


def _percents(estimate: IntervalEstimate) -> str:
    return f"{100 * estimate.low:.3g} – {100 * estimate.high:.3g} %"


def simulator_markdown(results: DeepResults) -> str:
    """Return the table of an experiment in a simulator as Markdown."""
    experiment = results.experiment
    noise, attack = f"noise {comparison.PAPER_NOISE:g} on actions", f"attack {experiment.radius:g}"
    heads = ["nominal reward", "nominal cost", f"reward, {noise}", f"cost, {noise}"]
    heads += [f"reward, {attack}", f"cost, {attack}"]
    shown = [
        Column("algorithm", lambda row: label_of(row.algorithm), is_text=True),
        Column("step", lambda row: f"{row.trust_region:g}"),
        *(Column(h, lambda row, i=i: _measured(row[i])) for i, h in enumerate(heads, start=2)),
        Column("critical radius", _critical),
    ]
    note = (
        f"Mean over {experiment.seeds} seeds of {experiment.episodes:,} episodes each, with the 95 % "
        f"confidence interval in brackets. The limit on the cost is {experiment.cost_limit:g}. An "
        "attack is the strongest adversary found against the frozen policy, separately for the reward "
        "and for the cost."
    )
    return f"{markdown(comparison.simulator_rows(results), shown)}\n{note}\n"


def _measured(value: Measured) -> str:
    return f"{value.mean:.3g} [{value.low:.3g}, {value.high:.3g}]"


def _critical(row: comparison.SimulatorRow) -> str:
    if math.isnan(row.critical_radius):
        return "over the limit nominally"
    return f"{'≥ ' if row.beyond_tested else ''}{row.critical_radius:.2g}"


def write_learning(path: Path, results: DeepResults) -> None:
    """Write every iteration of every training run as a row of a CSV file."""
    names = ("reward", "costs", "nominal_reward", "nominal_costs", "inner_limits", "kl")
    heads = ("reward", "cost", "nominal_reward", "nominal_cost", "inner_limit", "kl")
    rows = (
        (
            job.algorithm,
            job.trust_region,
            job.noise,
            row["seed"],
            row["iteration"],
            *(row[name][0] if isinstance(row[name], list) else row[name] for name in names),
        )
        for job, trained in results.runs.items()
        for row in trained.rows
    )
    write_csv(path, ("algorithm", "trust_region", "noise", "seed", "iteration", *heads), rows)
