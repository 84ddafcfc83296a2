"""What `stress` found as one figure: what is left of reward and costs as the world gets worse."""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from holdfast._support.files import atomic_write
from holdfast.report.figures import DOTS_PER_INCH, SETTINGS, STYLES, LineStyle, style_of
from holdfast.simulators.certificates.stress_result import (
    ACTIONS,
    ATTACK,
    PARAMETER,
    SCALED,
    CriticalRadius,
    Stress,
)

PANEL_INCHES = (3.9, 2.75)
_LEGEND_INCHES = 0.55
_LIMIT_COLOUR, _QUIET = "#222222", "#666666"
_TITLES = {
    ATTACK: "under the strongest attack found",
    SCALED: "under more noise",
    ACTIONS: "under noise on actions",
}
_AXES = {
    ATTACK: "radius of the attack (square-root scale)",
    SCALED: "factor on the noise",
    ACTIONS: "standard deviation of the noise on actions",
}


class _Column(NamedTuple):
    """One kind of test; `subject` is a parameter's name."""

    kind: str
    subject: str


class Learning(NamedTuple):
    """Mean and standard deviation over seeds of the reward and every cost, iteration by iteration."""

    signals: Mapping[str, tuple[np.ndarray, np.ndarray]]


def plot_stress(
    path: str | os.PathLike[str],
    results: Mapping[str, Stress],
    *,
    learning: Mapping[str, Learning] | None = None,
) -> None:
    """Draws what `stress` found for one or several agents, as `.png` or `.svg`, whole or not at all.

    A row for the reward and one for each cost; a column for attacks, for noise and for every parameter
    that was tested. Lines are means, bands their confidence intervals. A cost's limit is a dashed line,
    and a dotted one down to the axis marks the critical radius: up to there the limit was seen to hold.

    Arguments:
        path: where to; its suffix says which of the two.
        results: by label; one that begins with "rcpo", "pcpo" or "cpo" has that algorithm's colour.
        learning: by label, what training measured under the nominal kernel: a column of its own, on the
            left; it may have labels that were not stressed.

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
        >>> found = Stress(("rcpo-0",), ("bombs",), (0.1,), rows, {"name": "point-gather"},
        ...                {"confidence": 0.95, "episodes": 100})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plot_stress(pathlib.Path(folder) / "stress.png", {"RCPO": found})
        ...     [file.name for file in pathlib.Path(folder).iterdir()]
        ['stress.png']
    """
    columns = _checked(results)
    _write(path, lambda: _figure(results, columns, learning or {}))


def plot_learning(
    path: str | os.PathLike[str], learning: Mapping[str, Learning], limits: Sequence[float]
) -> None:
    """Draws learning curves alone: a panel for the reward and one for each cost, with its limit."""
    _write(path, lambda: _learning_figure(learning, limits))


def _write(path: str | os.PathLike[str], draw: Callable[[], Any]) -> None:
    from matplotlib import style

    path = Path(path)
    options: dict[str, Any] = {
        ".png": {"dpi": DOTS_PER_INCH},
        ".svg": {"metadata": {"Date": None}},
    }
    if path.suffix not in options:
        raise ValueError(f"path: expected a name that ends in .png or .svg, got {path.name!r}")
    image = io.BytesIO()
    # Nothing of the reader's own settings may show.
    with style.context(SETTINGS, after_reset=True):
        draw().savefig(image, format=path.suffix[1:], **options[path.suffix])
    with atomic_write(path) as file:
        file.write(image.getvalue())


def _checked(results: Mapping[str, Stress]) -> list[_Column]:
    """The columns that any of the results has."""
    if not results:
        raise ValueError("results: expected at least one")
    first = next(iter(results.values()))
    for label, each in results.items():
        if (each.cost_names, each.limits) != (first.cost_names, first.limits):
            raise ValueError(f"results: {label} has other costs or limits than the first")
    columns = [
        _Column(row.kind, row.subject if row.kind == PARAMETER else "")
        for each in results.values()
        for row in each.rows[1:]
    ]
    if not columns:
        raise ValueError("results: nothing but the nominal kernel was tested")
    kinds = (ATTACK, SCALED, ACTIONS, PARAMETER)
    # A dict keeps the order in which parameters were given.
    return sorted(dict.fromkeys(columns), key=lambda column: kinds.index(column.kind))


def _figure(
    results: Mapping[str, Stress], columns: Sequence[_Column], learning: Mapping[str, Learning]
) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = next(iter(results.values()))
    signals = ("reward", *first.cost_names)
    before = 1 if learning else 0
    count = before + len(columns)
    size = (max(count, 1.6) * PANEL_INCHES[0], len(signals) * PANEL_INCHES[1] + _LEGEND_INCHES)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    cast(Any, figure.get_layout_engine()).set(wspace=0.05)
    axes = figure.subplots(len(signals), count, squeeze=False, sharex="col", sharey="row")
    styles = _styles([*results, *(label for label in learning if label not in results)])
    if learning:
        _learning_column(list(axes[:, 0]), signals, learning, styles)
    for j, column in enumerate(columns, start=before):
        axes[0, j].set_title(
            f"with another {column.subject}" if column.subject else _TITLES[column.kind],
            fontsize=10,
        )
        for i, signal in enumerate(signals):
            for label in styles:
                if label in results:
                    _curve(axes[i, j], results[label], signal, column, styles[label])
        _levels(axes[-1, j], results, column)
    for i, signal in enumerate(signals):
        axes[i, 0].set_ylabel(signal if signal == "reward" else f"cost: {signal}")
        axes[i, 0].margins(y=0.1)
    for i, limit in enumerate(first.limits, start=1):
        _to_scale(axes[i, 0], results, i - 1, limit)
        _limit(axes[i], limit)
        if columns[0].kind == ATTACK:
            found = {label: results[label].critical_radii[i - 1] for label in results}
            _mark_critical(axes[i, before], found, limit, styles)
    _legend(figure, results, learning, styles)
    return figure


def _to_scale(axes: Any, results: Mapping[str, Stress], cost: int, limit: float) -> None:
    """What was stressed fills the panel; a run that ignores the limit may leave it."""
    highest = max(row.costs[cost].high for each in results.values() for row in each.rows)
    lowest = min(row.costs[cost].low for each in results.values() for row in each.rows)
    reach = max(highest, limit) - min(lowest, limit)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, min(lowest, limit) - 0.25 * reach), min(high, highest + 0.5 * reach))


def _learning_column(
    column: Sequence[Any],
    signals: Sequence[str],
    learning: Mapping[str, Learning],
    styles: Mapping[str, LineStyle],
) -> None:
    """What training measured, signal by signal, from the top down."""
    column[0].set_title("while training, nominal kernel", fontsize=10)
    for axes, signal in zip(column, signals, strict=True):
        for label in styles:
            if label in learning:
                mean, deviation = learning[label].signals[signal]
                style, at = styles[label], np.arange(len(mean))
                axes.fill_between(
                    at, mean - deviation, mean + deviation, color=style.colour, alpha=0.2, lw=0
                )
                axes.plot(at, mean, color=style.colour, linestyle=style.dashes, lw=style.width)
        axes.set_xlim(0, max(len(each.signals[signal][0]) for each in learning.values()) - 1)
    column[-1].set_xlabel("iteration")


def _learning_figure(learning: Mapping[str, Learning], limits: Sequence[float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    signals = list(next(iter(learning.values())).signals)
    size = (len(signals) * PANEL_INCHES[0] * 1.2, PANEL_INCHES[1] + 2 * _LEGEND_INCHES)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(signals), squeeze=False)[0]
    styles = _styles(list(learning))
    _learning_column(axes, signals, learning, styles)
    axes[0].set_title("")
    for i, signal in enumerate(signals):
        axes[i].set_ylabel(signal if signal == "reward" else f"cost: {signal}")
        axes[i].set_xlabel("iteration")
    for i, limit in enumerate(limits, start=1):
        _limit(axes[i : i + 1], limit)
    figure.suptitle(
        "nothing disturbs the simulator: mean ± 1 standard deviation over seeds", fontsize=11
    )
    figure.legend(
        handles=[_handle(label, styles[label]) for label in learning],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9.5,
        handlelength=3.2,
    )
    return figure


def _handle(label: str, style: LineStyle, marker: str = "") -> Any:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        color=style.colour,
        linestyle=style.dashes,
        lw=style.width,
        marker=marker,
        ms=3.5,
        label=label,
    )


def _styles(labels: Sequence[str]) -> dict[str, LineStyle]:
    """A style for each label, in drawing order: RCPO comes last, on top."""
    known: dict[str, str] = {}
    for label in labels:
        first = re.split(r"\W", label.lower())[0]
        if first in STYLES and first not in known.values():
            known[label] = first
    others = [label for label in labels if label not in known]
    styles = {label: style_of(label, others)._replace(label=label) for label in others}
    # The palette's own order, in which RCPO is the last.
    for name in STYLES:
        styles |= {
            label: STYLES[name]._replace(label=label)
            for label in labels
            if known.get(label) == name
        }
    return styles


def _curve(axes: Any, found: Stress, signal: str, column: _Column, style: LineStyle) -> None:
    tested = any(row.kind == column.kind for row in found.rows)
    if not tested or (column.subject and column.subject not in found.environment["parameters"]):
        return
    points = found.curve(signal, column.kind, column.subject)
    levels = [level for level, _ in points]
    mean, low, high = (
        np.array([getattr(measured, name) for _, measured in points])
        for name in ("mean", "low", "high")
    )
    axes.fill_between(levels, low, high, color=style.colour, alpha=0.2, lw=0)
    axes.plot(
        levels,
        mean,
        color=style.colour,
        linestyle=style.dashes,
        lw=style.width,
        marker="o",
        ms=3.5,
        clip_on=False,
        zorder=4,
    )


def _levels(axes: Any, results: Mapping[str, Stress], column: _Column) -> None:
    """The horizontal axis, with a tick at every level that was tested."""
    levels: set[float] = set()
    for found in results.values():
        rows = [row for row in found.rows if row.kind == column.kind]
        if column.subject:
            rows = [row for row in rows if row.subject == column.subject]
            levels.add(found.environment["parameters"][column.subject])
        levels |= {row.level for row in rows}
    levels |= {ATTACK: {0.0}, ACTIONS: {0.0}, SCALED: {1.0}}.get(column.kind, set())
    ordered = sorted(levels)
    if column.kind == ATTACK:
        axes.set_xscale(
            "function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), lambda x: np.square(x))
        )
    axes.set_xlim(ordered[0], ordered[-1])
    axes.set_xticks(ordered, [f"{level:g}" for level in ordered], fontsize=9)
    axes.xaxis.set_minor_locator(_no_ticks())
    axes.set_xlabel(_AXES.get(column.kind, column.subject))
    if column.subject:
        found = next(iter(results.values()))
        nominal = found.environment["parameters"][column.subject]
        axes.set_xlabel(f"{column.subject} (nominal: {nominal:g})")


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _limit(row: Sequence[Any], limit: float) -> None:
    """The limit through a row of panels, and its wrong side in grey."""
    low, high = row[0].get_ylim()
    high = max(high, limit + 0.15 * (high - low))
    for axes in row:
        axes.axhline(limit, color=_LIMIT_COLOUR, lw=0.9, linestyle=(0, (8, 4)), zorder=3)
        axes.axhspan(limit, high, color="black", alpha=0.045, lw=0, zorder=0)
    row[0].set_ylim(low, high)
    row[-1].annotate(
        f"limit {limit:g}",
        (1, limit),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        annotation_clip=False,
    )


def _mark_critical(
    axes: Any,
    found: Mapping[str, CriticalRadius],
    limit: float,
    styles: Mapping[str, LineStyle],
) -> None:
    """A line from the limit down to each critical radius, with its number beside the axis."""
    low, _ = axes.get_ylim()
    marked = [
        (critical.radius, label)
        for label, critical in found.items()
        if not math.isnan(critical.radius) and not critical.beyond_tested
    ]
    for place, (radius, label) in enumerate(sorted(marked, reverse=True)):
        colour = styles[label].colour
        axes.plot([radius, radius], [low, limit], color=colour, lw=1.1, linestyle=":", zorder=5)
        axes.plot(radius, limit, "v", color=colour, ms=6, mec="white", mew=0.6, zorder=6)
        axes.annotate(
            f"holds up to {radius:.2g}",
            (radius, low),
            xytext=(4, 5 + 11 * place),
            textcoords="offset points",
            fontsize=8,
            color=colour,
            zorder=6,
            path_effects=_halo(),
        )


def _halo() -> list[Any]:
    """A white rim, so that letters can be read wherever they lie."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.5, foreground="white")]


def _legend(
    figure: Any,
    results: Mapping[str, Stress],
    learning: Mapping[str, Learning],
    styles: Mapping[str, LineStyle],
) -> None:
    """What the lines are, and over how much they are means."""
    first = next(iter(results.values()))
    handles = [
        _handle(f"{label}: {_critical_text(found)}", styles[label], "o")
        for label, found in results.items()
    ]
    handles += [
        _handle(f"{label}: {_unlimited(learning[label], first.cost_names)}", styles[label])
        for label in learning
        if label not in results
    ]
    agents = len(first.agents)
    of = "" if agents == 1 else f" of each of {agents} agents"
    figure.suptitle(
        f"{first.environment['name']}: mean over {first.setup['episodes']:,} episodes{of}, "
        f"with {100 * first.setup['confidence']:g} % confidence interval",
        fontsize=11,
    )
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 3),
        frameon=False,
        fontsize=9.5,
        handlelength=3.2,
    )


def _unlimited(learning: Learning, cost_names: Sequence[str]) -> str:
    """What a run that was not stressed ends at: its cost may be off the scale."""
    ends = ", ".join(f"{name} {learning.signals[name][0][-1]:.2g}" for name in cost_names)
    return f"not stressed, ends at {ends}"


def _critical_text(found: Stress) -> str:
    radius = found.critical_radius
    if math.isinf(radius):
        return "no limit to keep"
    if math.isnan(radius):
        return "over its limit even without an attack" if found.attacked else "no attack was run"
    return f"critical radius {'≥ ' if found.beyond_tested else ''}{radius:.2g}"
