"""The paper's figures: worst-case reward and worst-case utility against iterations."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast._support.files import write_bytes
from holdfast.experiments.results import ConstraintThreshold, Result, Results

DOTS_PER_INCH = 200
PANEL_INCHES = (5.0, 3.6)


class _End(NamedTuple):
    """A label beside the right end of a line."""

    height: float
    label: str
    colour: str


class LineStyle(NamedTuple):
    """How an algorithm is drawn: a colour and a dash pattern, either of which tells it apart."""

    label: str
    colour: str
    dashes: Any
    width: float


# Okabe and Ito's palette, told apart with any common colour blindness. RCPO is drawn last, on top.
STYLES = {
    "rvi": LineStyle("RVI", "#4d4d4d", (0, (1, 1.2)), 1.8),
    "trpo": LineStyle("TRPO", "#4d4d4d", (0, (1, 1.2)), 1.8),
    "cpo": LineStyle("CPO", "#009e73", (0, (6, 1.5, 1, 1.5)), 1.6),
    "pcpo": LineStyle("PCPO", "#d55e00", (0, (4, 1.5)), 1.6),
    "rcpo": LineStyle("RCPO", "#0072b2", "solid", 2.2),
}
_OTHER_COLOURS = ("#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933", "#332288", "#661100")
_OTHER_DASHES = ((0, (2, 1)), (0, (5, 1, 1, 1)), (0, (1, 2)))

_THRESHOLD_COLOUR = "#222222"
# Distance between the labels at the right, as a share of the panel's height.
_LABEL_SPACING = 0.07

_TITLES = {"gambler": "Gambler", "n-chain": "N-chain", "frozen-lake": "Frozen-Lake"}

SETTINGS = {
    "svg.hashsalt": "holdfast",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.linewidth": 0.8,
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
}


def write_figure(path: Path, results: Results) -> None:
    """Writes `path.png` and `path.svg`: mean and one standard deviation over the seeds.

    The SVG is the same byte for byte whenever the results are.
    """
    with styled():
        save_figure(path, draw(results))


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Nothing of the reader's own settings may show in a figure that others compare with theirs."""
    from matplotlib import style

    with style.context(SETTINGS, after_reset=True):
        yield


def save_figure(path: Path, figure: Any) -> None:
    """Writes a figure as `path.png` and `path.svg`, each whole or not at all."""
    for kind, options in (
        ("png", {"dpi": DOTS_PER_INCH}),
        ("svg", {"metadata": {"Date": None}}),
    ):
        image = io.BytesIO()
        figure.savefig(image, format=kind, **options)
        write_bytes(path.with_suffix(f".{kind}"), image.getvalue())


def draw(results: Results) -> Any:
    """The figure: a panel for the reward and one for each constraint."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bounds = results.bounds
    panels = 1 + len(bounds)
    figure = Figure(figsize=(panels * PANEL_INCHES[0], PANEL_INCHES[1]), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    name = _TITLES.get(results.environment, results.environment)
    radius = "" if results.radius is None else f", radius {results.radius:g}"
    spread = _spread(max(map(len, results.runs.values())))
    figure.suptitle(f"{name}{radius}: {spread}", fontsize=11)
    _curves(axes[0], results, lambda result: result.history["reward"])
    axes[0].set_ylabel("worst-case reward (discounted)")
    for i, bound in enumerate(bounds):
        _curves(
            axes[1 + i],
            results,
            lambda r, i=i: r.bounds[i].values(r.history["margins"][:, i]),
            bound,
        )
        named = f": {bound.name}" if bound.name not in (None, bound.kind) else ""
        axes[1 + i].set_ylabel(f"worst-case {bound.kind}{named} (discounted)")
    return figure


def _spread(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"mean ± 1 standard deviation, {seeds} seeds"


def style_of(algorithm: str, others: Sequence[str]) -> LineStyle:
    """An algorithm's own style, or one of those left for others."""
    if algorithm in STYLES:
        return STYLES[algorithm]
    place = others.index(algorithm)
    colour = _OTHER_COLOURS[place % len(_OTHER_COLOURS)]
    return LineStyle(algorithm.upper(), colour, _OTHER_DASHES[place % len(_OTHER_DASHES)], 1.6)


def _curves(
    axes: Any,
    results: Results,
    series: Callable[[Result], Float[np.ndarray, " rows"]],
    bound: ConstraintThreshold | None = None,
) -> None:
    others = [name for name in results.runs if name not in STYLES]
    order = [*others, *(name for name in STYLES if name in results.runs)]
    ends = []
    for algorithm in order:
        style = style_of(algorithm, others)
        mean, deviation = _over_seeds([series(run) for run in results.runs[algorithm]])
        iterations = np.arange(len(mean))
        axes.fill_between(
            iterations, mean - deviation, mean + deviation, color=style.colour, alpha=0.18, lw=0
        )
        axes.plot(iterations, mean, color=style.colour, linestyle=style.dashes, lw=style.width)
        ends.append(_End(float(mean[-1]), style.label, style.colour))
    _iterations(axes, results.iterations)
    axes.margins(y=0.08)
    if bound is not None:
        _threshold(axes, bound)
        ends.insert(0, _End(bound.threshold, f"threshold {bound.threshold:g}", _THRESHOLD_COLOUR))
    _label_ends(axes, ends)


def _iterations(axes: Any, iterations: int) -> None:
    """A square-root scale: most happens in the first iterations, the rest shows that it stays."""
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    axes.set_xlim(0, iterations)
    axes.set_xticks(iteration_ticks(iterations))
    axes.set_xlabel("iteration (square-root scale)")


def iteration_ticks(iterations: int, spacing: float = 0.06) -> list[int]:
    """Round numbers from 0 to the last iteration that stand apart on a square-root scale."""
    round_numbers = [first * 10**power for power in range(9) for first in (1, 2, 5)]
    ticks = [iterations]
    for tick in reversed([n for n in round_numbers if n < iterations]):
        place, right = math.sqrt(tick / iterations), math.sqrt(ticks[0] / iterations)
        if right - place >= spacing and place >= spacing:
            ticks.insert(0, tick)
    return [0, *ticks]


def _over_seeds(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    stacked = np.stack(curves)
    return stacked.mean(0), stacked.std(0)


def _threshold(axes: Any, bound: ConstraintThreshold) -> None:
    """A dashed line, on top since the best curves end on it, and its wrong side in grey."""
    axes.axhline(bound.threshold, color=_THRESHOLD_COLOUR, lw=0.9, linestyle=(0, (8, 4)), zorder=3)
    low, high = axes.get_ylim()
    below = bound.kind == "utility"
    violated = (low, bound.threshold) if below else (bound.threshold, high)
    axes.axhspan(*violated, color="black", alpha=0.045, lw=0, zorder=0)
    axes.text(
        0.985,
        0.015 if below else 0.985,
        "constraint violated",
        transform=axes.transAxes,
        ha="right",
        va="bottom" if below else "top",
        fontsize=8,
        color="#666666",
    )
    axes.set_ylim(low, high)


def _label_ends(axes: Any, ends: Sequence[_End]) -> None:
    """Names each line beside its right end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    # Lines that end together keep the given order, whatever their last digits are.
    ends = sorted(ends, key=lambda end: round((end.height - low) / (high - low), 3))
    anchors = np.array([(end.height - low) / (high - low) for end in ends])
    for end, anchor, place in zip(ends, anchors, spread_out(anchors, _LABEL_SPACING), strict=True):
        axes.annotate(
            end.label,
            xy=(1.0, anchor),
            xytext=(1.06, place),
            xycoords="axes fraction",
            color=end.colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.colour,
                "lw": 0.7,
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )


def spread_out(anchors: Float[np.ndarray, " n"], spacing: float) -> Float[np.ndarray, " n"]:
    """Places in [0, 1] at least `spacing` apart, in the sorted anchors' order, nearest to them.

    With the spacing taken off this is a least-squares fit by a sequence that never falls, which
    pooling neighbours that are out of order solves; cutting it to an interval keeps it nearest.
    """
    offsets = spacing * np.arange(len(anchors))
    pools: list[tuple[float, int]] = []
    for target in anchors - offsets:
        mean, size = float(target), 1
        while pools and pools[-1][0] > mean:
            last, count = pools.pop()
            mean, size = (mean * size + last * count) / (size + count), size + count
        pools.append((mean, size))
    fitted = np.repeat([mean for mean, _ in pools], [size for _, size in pools])
    return np.clip(fitted, 0.0, max(0.0, 1.0 - offsets[-1])) + offsets
