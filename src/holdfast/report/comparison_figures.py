"""Figures that compare algorithms: reward against margin over training, and both as the radius grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.experiments.results import Results, smallest_margins
from holdfast.report.figures import PANEL_INCHES, STYLES, save_figure, style_of, styled


def write_plane(path: Path, results: Results) -> None:
    """Writes where each run went: worst-case reward against the smallest worst-case margin.

    A thin line is a run, a dot where it ended: filled where it is feasible.
    """
    with _figure(path, 1) as (axes,):
        for algorithm, style in _styles(results.runs):
            for i, run in enumerate(results.runs[algorithm]):
                margins, rewards = smallest_margins(run.history), run.history["reward"]
                axes.plot(margins, rewards, color=style.colour, lw=0.7, alpha=0.5)
                axes.plot(
                    margins[-1],
                    rewards[-1],
                    "o",
                    color=style.colour,
                    markerfacecolor=style.colour if run.feasible else "white",
                    label=style.label if i == 0 else None,
                )
        axes.axvline(0.0, color="#222222", lw=0.9, linestyle=(0, (8, 4)))
        low, high = axes.get_xlim()
        axes.axvspan(min(low, 0.0), 0.0, color="black", alpha=0.045, lw=0, zorder=0)
        axes.set_xlim(low, high)
        axes.set_xlabel("smallest worst-case margin (left of the line: violated)")
        axes.set_ylabel("worst-case reward (discounted)")
        axes.set_title(results.cell, fontsize=11)
        _legend(axes)


def write_radii(path: Path, results: Sequence[Results]) -> None:
    """Writes reward and smallest margin against the radius, for one model at several radii.

    Means over the seeds with their range; hollow where a seed is not feasible.
    """
    radii = [float(found.radius or 0.0) for found in results]
    names = {name: None for found in results for name in found.runs}
    panels: list[tuple[str, Callable[[Results, str], np.ndarray]]] = [
        ("worst-case reward (discounted)", Results.rewards),
        ("smallest worst-case margin", Results.margins),
    ]
    with _figure(path, 2) as axes:
        for panel, (label, of) in zip(axes, panels, strict=True):
            for algorithm, style in _styles(names):
                there = [
                    (r, found)
                    for r, found in zip(radii, results, strict=True)
                    if algorithm in found.runs
                ]
                values = [of(found, algorithm) for _, found in there]
                at = [r for r, _ in there]
                means = [v.mean() for v in values]
                panel.fill_between(
                    at,
                    [v.min() for v in values],
                    [v.max() for v in values],
                    color=style.colour,
                    alpha=0.15,
                    lw=0,
                )
                panel.plot(at, means, color=style.colour, linestyle=style.dashes, lw=style.width)
                for (r, found), height in zip(there, means, strict=True):
                    whole = bool(found.feasible(algorithm).all())
                    panel.plot(
                        r,
                        height,
                        "o",
                        ms=5,
                        color=style.colour,
                        markerfacecolor=style.colour if whole else "white",
                    )
                panel.plot([], [], "o-", color=style.colour, label=style.label)
            panel.set_xlabel("radius")
            panel.set_ylabel(label)
        axes[1].axhline(0.0, color="#222222", lw=0.9, linestyle=(0, (8, 4)))
        axes[0].set_title(
            f"{results[0].environment}: filled where every seed is feasible", fontsize=11
        )
        _legend(axes[1])


@contextmanager
def _figure(path: Path, panels: int) -> Iterator[Sequence[Any]]:
    """Axes to draw on; what was drawn is written as PNG and SVG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with styled():
        size = (panels * PANEL_INCHES[0] + 1.4, PANEL_INCHES[1] + 0.4)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.subplots(1, panels, squeeze=False)[0]
        save_figure(path, figure)


def _styles(names: Any) -> list[tuple[str, Any]]:
    """Every algorithm with how it is drawn, those of the paper last and so on top."""
    others = [name for name in names if name not in STYLES]
    return [
        (name, style_of(name, others)) for name in (*others, *(n for n in STYLES if n in names))
    ]


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
