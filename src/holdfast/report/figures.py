"""Draws the chart records with matplotlib, as PNG and SVG."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast._support.files import write_bytes
from holdfast.experiments.results import Results
from holdfast.report import charts
from holdfast.report.charts import STYLES, Chart, Limit, Plane, Series, Trace

DOTS_PER_INCH = 200
PANEL_INCHES = (5.0, 3.6)
_DASHES: dict[str, Any] = {
    "solid": "solid",
    "dashed": (0, (4, 1.5)),
    "dotted": (0, (1, 1.2)),
    "dash-dot": (0, (6, 1.5, 1, 1.5)),
}
_LIMIT_COLOUR, _QUIET = "#222222", "#666666"
_LIMIT_LINE = {"color": _LIMIT_COLOUR, "lw": 0.9, "linestyle": (0, (8, 4)), "zorder": 3}
# Curves with at most this many points get a marker at each.
_FEW_POINTS = 12
_TITLES = {"gambler": "Gambler", "n-chain": "N-chain", "frozen-lake": "Frozen-Lake"}
_SETTINGS = {
    "svg.hashsalt": "holdfast",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _QUIET,
    "axes.linewidth": 0.8,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
}


def write_figure(path: Path, results: Results) -> None:
    """Write `path.png` and `path.svg`: the paper's figure, mean and one standard deviation over seeds.

    The SVG file is identical, byte for byte, for identical results.
    """
    name = _TITLES.get(results.environment, results.environment)
    radius = "" if results.radius is None else f", radius {results.radius:g}"
    seeds = max(map(len, results.runs.values()))
    spread = "one seed" if seeds == 1 else f"mean ± 1 standard deviation, {seeds} seeds"
    write_charts(path, charts.figure_charts(results), f"{name}{radius}: {spread}")


def write_plane(path: Path, results: Results) -> None:
    """Write `path.png` and `path.svg`: reward against margin, with the path of every run.

    A square marks the start of a run, an arrow its direction and a disc its end; the disc is hollow if
    the end is infeasible.
    """
    plane = charts.margin_plane(results)
    with panels(path, (".png", ".svg"), 1, 1, PANEL_INCHES, 1.4, 0.4) as (_, ((axes,),)):
        _draw_plane(axes, plane)
        axes.set_title(results.cell, fontsize=11)


def write_radii(path: Path, results: Sequence[Results]) -> None:
    """Write `path.png` and `path.svg`: reward and smallest margin against the radius of one model."""
    title = f"{results[0].environment}: filled where every seed is feasible"
    write_charts(path, charts.radius_charts(results), title)


def write_charts(
    path: Path, shown: Sequence[Chart], title: str, suffixes: Sequence[str] = (".png", ".svg")
) -> None:
    """Write charts side by side, with labels at the limits and one legend below."""
    size = (1, len(shown), PANEL_INCHES, 0.0, 0.4)
    with panels(path, suffixes, *size) as (figure, ((*axes,),)):
        figure.suptitle(title, fontsize=11)
        for panel, chart in zip(axes, shown, strict=True):
            draw_chart(panel, chart)
            label_limits(panel, chart)
        legend_below(figure, {each.name: each for each in shown[0].series})


@contextlib.contextmanager
def panels(
    path: Path,
    suffixes: Sequence[str],
    rows: int,
    columns: int,
    panel: tuple[float, float],
    extra_width: float = 0.0,
    extra_height: float = 0.0,
) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its (rows, columns) axes, then write the figure in every format.

    The style ignores the user's own matplotlib settings, so that figures are comparable.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with style.context(_SETTINGS, after_reset=True):
        size = (columns * panel[0] + extra_width, rows * panel[1] + extra_height)
        # The space between panels keeps the outer tick labels of neighbours apart.
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06))
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False)
        for suffix in suffixes:
            options: dict[str, Any] = (
                {"dpi": DOTS_PER_INCH} if suffix == ".png" else {"metadata": {"Date": None}}
            )
            image = io.BytesIO()
            figure.savefig(image, format=suffix[1:], **options)
            write_bytes(path.with_suffix(suffix), image.getvalue())


def draw_chart(axes: Any, chart: Chart, heights: tuple[float, float] | None = None) -> None:
    """Draw the series and limits of a chart on matplotlib axes.

    Arguments:
        axes: the axes.
        chart: the chart.
        heights: vertical range, with 8 % of room added at both ends; by default it contains every
            series and every limit.
    """
    # RCPO is drawn last, on top of the others.
    for series in sorted(chart.series, key=lambda each: each.colour == STYLES["rcpo"].colour):
        is_spaced = len(chart.x.ticks) > 0 or len(series.hollow) > 0
        _draw_series(axes, series, marked=is_spaced and len(series.x) <= _FEW_POINTS)
    axis = chart.x
    if axis.scale == "sqrt":
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    if len(axis.ticks):
        axes.set_xticks(axis.ticks, [f"{tick:g}" for tick in axis.ticks], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(axis.ticks[0], axis.ticks[-1])
    axes.set_xlabel(axis.name)
    axes.set_ylabel(chart.y)
    low, high = span_of([chart]) if heights is None else heights
    room = 0.08 * ((high - low) or max(abs(high), 1.0))
    axes.set_ylim(low - room, high + room)
    for limit in chart.limits:
        _draw_limit(axes, limit)


def _draw_series(axes: Any, series: Series, *, marked: bool) -> None:
    x = np.asarray(series.x, float)
    if series.low is not None:
        axes.fill_between(x, series.low, series.high, color=series.colour, alpha=0.18, lw=0)
    # Markers at the ends of the axis are drawn whole.
    marker = {"marker": "o" if marked else "", "ms": 3.5, "clip_on": not marked}
    axes.plot(x, series.y, **_look(series), **marker, zorder=4)
    ring = {"color": series.colour, "markerfacecolor": "white", "clip_on": False, "zorder": 5}
    for at, height, hollow in zip(x, series.y, series.hollow or [False] * len(x), strict=True):
        if hollow:
            axes.plot(at, height, "o", ms=5, **ring)


def _look(series: Series) -> dict[str, Any]:
    width = 2.2 if series.colour == STYLES["rcpo"].colour else 1.6
    return {"color": series.colour, "linestyle": _DASHES[series.dash], "lw": width}


def span_of(shown: Sequence[Chart]) -> tuple[float, float]:
    """Return the lowest and the highest value of all series, bands and limits."""
    values = [limit.value for chart in shown for limit in chart.limits]
    for chart in shown:
        for series in chart.series:
            for part in (series.y, series.low, series.high):
                values += [] if part is None else list(np.asarray(part, float))
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    return min(finite), max(finite)


def _draw_limit(axes: Any, limit: Limit) -> None:
    """Draw a dashed line, and shade the side on which the constraint is violated."""
    line, span, ends, set_ends = (
        (axes.axvline, axes.axvspan, axes.get_xlim(), axes.set_xlim)
        if limit.axis == "x"
        else (axes.axhline, axes.axhspan, axes.get_ylim(), axes.set_ylim)
    )
    line(limit.value, **_LIMIT_LINE)
    edge = ends[1] if limit.violated == "above" else ends[0]
    span(limit.value, edge, color="black", alpha=0.045, lw=0, zorder=0)
    set_ends(ends)


def _draw_plane(axes: Any, plane: Plane) -> None:
    """Draw every run from its start, a square, along an arrow to its end, a disc."""
    from matplotlib.lines import Line2D

    handles = []
    hollow: dict[str, Any] = {"color": _QUIET, "markerfacecolor": "white", "ls": ""}
    start = {**hollow, "marker": "s", "ms": 4.5}
    for cloud in plane.clouds:
        for trace in cloud.traces:
            axes.plot(*trace, color=cloud.colour, lw=0.8, alpha=0.6)
            axes.plot(trace.x[0], trace.y[0], **start, zorder=3)
        for point in cloud.points:
            fill = cloud.colour if point.feasible else "white"
            axes.plot(point.x, point.y, "o", color=cloud.colour, markerfacecolor=fill, zorder=4)
        handles.append(Line2D([], [], color=cloud.colour, marker="o", lw=0.8, label=cloud.name))
    for cloud in plane.clouds:
        for trace in cloud.traces:
            _draw_arrow(axes, trace, cloud.colour)
    for limit in plane.limits:
        _draw_limit(axes, limit)
    axes.set_xlabel(f"{plane.x} (left of the line: violated)")
    axes.set_ylabel(plane.y)
    handles.append(Line2D([], [], **start, label="start"))
    handles.append(Line2D([], [], **hollow, marker="o", ms=6, label="infeasible end"))
    beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(handles=handles, frameon=False, fontsize=8, **beside)


def _draw_arrow(axes: Any, trace: Trace, colour: str) -> None:
    """Draw an arrowhead halfway along a path, as lengths appear on the page."""
    points = np.column_stack([np.asarray(trace.x, float), np.asarray(trace.y, float)])
    shown = axes.transAxes.inverted().transform(axes.transData.transform(points))
    lengths = np.cumsum(np.hypot(*np.diff(shown, axis=0).T))
    # A path shorter than a twentieth of the panel has no room for an arrowhead.
    if len(lengths) == 0 or lengths[-1] < 0.05:
        return
    i = int(np.searchsorted(lengths, lengths[-1] / 2))
    head = {"arrowstyle": "-|>", "color": colour, "lw": 0.8, "mutation_scale": 11}
    axes.annotate("", (points[i] + points[i + 1]) / 2, points[i], arrowprops={**head, "shrinkA": 0})


def label_limits(axes: Any, chart: Chart) -> None:
    """Write the labels of a chart's limits at the right end of their lines."""
    for limit in chart.limits:
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        look = {"va": "center", "fontsize": 9, "annotation_clip": False}
        axes.annotate(limit.label, (1.0, limit.value), xytext=(5, 0), **place, **look)


def legend_below(figure: Any, shown: Mapping[str, Series]) -> None:
    """Draw a legend of series by label below the panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **_look(each), label=label) for label, each in shown.items()]
    # A character takes 0.07 inches at this size, the line and the gaps 0.9.
    fitting = figure.get_figwidth() / (0.07 * max(map(len, shown)) + 0.9)
    columns = max(1, min(len(handles), int(fitting)))
    look = {"frameon": False, "fontsize": 9.5, "handlelength": 3.2}
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, **look)
