"""Draws the results of `stress`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.report import figures
from holdfast.report.charts import Chart, critical_text, stress_charts, styles_of
from holdfast.simulators.certificates.stress_result import ATTACK, Stress

_PANEL_INCHES = (3.9, 2.75)
_LEGEND_INCHES = 0.55


def plot_stress(
    path: str | os.PathLike[str],
    results: Mapping[str, Stress],
    *,
    learning: Mapping[str, Chart] | None = None,
) -> None:
    """Draw the results of `stress` for one or several agents, as `.png` or `.svg`.

    There is one row for the reward and one for each cost, and one column for attacks, for noise and for
    every tested parameter. Lines are means, bands their confidence intervals. A dashed line is the limit
    of a cost. A dotted line marks the critical radius, up to which the limit was measured to hold.

    Arguments:
        path: the file; its suffix selects the format.
        results: stress results by label; a label that begins with "rcpo", "pcpo" or "cpo" has that
            algorithm's colour.
        learning: charts of training under the nominal kernel by signal, drawn as the first column; they
            may contain labels that were not stressed.

    Raises:
        ValueError: the suffix is another, there is nothing to draw, or costs and limits differ.

    Example:
        >>> import pathlib, tempfile
        >>> from holdfast.simulators.certificates.intervals import Measured
        >>> from holdfast.simulators.certificates.stress_result import Row, Stress
        >>> def row(kind, level, subject, cost):
        ...     value = Measured(cost, cost - 0.01, cost + 0.01, None, ())
        ...     return Row(kind, level, subject, value, (value,))
        >>> rows = (row("nominal", 0.0, "", 0.05), row("attack", 0.1, "reward", 0.1),
        ...         row("attack", 0.1, "bombs", 0.2))
        >>> environment = {"name": "point-gather", "parameters": {}}
        >>> found = Stress(("rcpo-0",), ("bombs",), (0.1,), rows, environment,
        ...                {"confidence": 0.95, "episodes": 100})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_stress(pathlib.Path(folder) / "stress.png", {"RCPO": found})
        ...     [file.name for file in pathlib.Path(folder).iterdir()]
        ['stress.png']
    """
    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"path: expected a name that ends in .png or .svg, got {path.name!r}")
    if not results:
        raise ValueError("results: expected at least one")
    first = next(iter(results.values()))
    for label, each in results.items():
        if (each.cost_names, each.limits) != (first.cost_names, first.limits):
            raise ValueError(f"results: {label} has other costs or limits than the first")
    charts = stress_charts(results)
    if not charts["reward"]:
        raise ValueError("results: nothing but the nominal kernel was tested")
    rows = [([learning[signal]] if learning else []) + tests for signal, tests in charts.items()]
    size = (len(rows), len(rows[0]), _PANEL_INCHES)
    extra = max(0.0, 1.6 - len(rows[0])) * _PANEL_INCHES[0]
    with figures.panels(path, (path.suffix,), *size, extra, _LEGEND_INCHES) as (figure, axes):
        for i, row in enumerate(rows):
            _stress_row(axes[i], row, charts[row[0].y], is_last=i == len(rows) - 1)
        for panel, chart in zip(axes[0], rows[0], strict=True):
            panel.set_title(chart.name, fontsize=10)
        if any(row.kind == ATTACK for row in first.rows):
            column = 1 if learning else 0
            for i, limit in enumerate(first.limits):
                _mark_critical(axes[i + 1][column], results, i, limit)
        _stress_legend(figure, results, [chart for row in rows for chart in row], first)


def _stress_row(
    row: Sequence[Any], charts: Sequence[Chart], tests: Sequence[Chart], *, is_last: bool
) -> None:
    """Draw one signal: charts side by side with one vertical scale, the limit's name at the right.

    The tests set the scale. A training run that ignores the limit may leave the panel.
    """
    low, high = figures.span_of(tests)
    reach = high - low
    least, most = figures.span_of(charts)
    low, high = max(least, low - 0.25 * reach), min(most, high + 0.5 * reach)
    for i, (panel, chart) in enumerate(zip(row, charts, strict=True)):
        figures.draw_chart(panel, chart, (low, high))
        if i:
            panel.set_ylabel("")
            panel.tick_params(labelleft=False)
        if not is_last:
            panel.set_xlabel("")
            panel.tick_params(labelbottom=False)
    figures.label_limits(row[-1], charts[-1])


def _mark_critical(axes: Any, results: Mapping[str, Stress], cost: int, limit: float) -> None:
    """Draw a dotted line from the limit down to each critical radius; the legend has the numbers."""
    low, _ = axes.get_ylim()
    for label, style in styles_of(results).items():
        critical = results[label].critical_radii[cost]
        if not (math.isnan(critical.radius) or critical.beyond_tested):
            at, look = [critical.radius] * 2, {"color": style.colour, "zorder": 5}
            axes.plot(at, [low, limit], lw=1.1, linestyle=":", **look)
            axes.plot(critical.radius, limit, "v", ms=6, mec="white", mew=0.6, **look)


def _stress_legend(
    figure: Any, results: Mapping[str, Stress], charts: Sequence[Chart], first: Stress
) -> None:
    """Write the title, and a legend with the critical radius of every agent."""
    series = {each.name: each for chart in charts for each in chart.series}
    labels = {
        label: f"{label}: critical radius {critical_text(found)}"
        for label, found in results.items()
    }
    for chart in charts:
        # A run that was not stressed may leave its panel: the legend has the cost of its last iterate.
        for each in chart.series:
            if each.name not in results and not each.hollow and chart.y != "reward":
                text = labels.get(each.name, f"{each.name}: not stressed, ends at")
                labels[each.name] = f"{text} {chart.y} {each.y[-1]:.2g}"
    agents = len(first.agents)
    of = "" if agents == 1 else f" of each of {agents} agents"
    rings = "; rings: most likely actions" if len(first.actions) > 1 else ""
    figure.suptitle(
        f"{first.environment['name']}: mean over {first.setup['episodes']:,} episodes{of}, "
        f"with {100 * first.setup['confidence']:g} % confidence interval{rings}",
        fontsize=11,
    )
    figures.legend_below(figure, {labels[name]: series[name] for name in labels})
