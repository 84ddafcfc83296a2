"""Records of charts, from which matplotlib draws the figures and the HTML page its own.

A chart record holds whole arrays. The page rounds and thins them when it writes JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast import registry
from holdfast.experiments.results import ConstraintThreshold
from holdfast.simulators.certificates.stress_result import Stress

Numbers = Sequence[Any] | np.ndarray


class Style(NamedTuple):
    """The colour and the dash pattern of an algorithm; either one identifies it."""

    colour: str
    dash: str


# Okabe and Ito's palette, which people with any common colour blindness can tell apart.
STYLES = {
    "rvi": Style("#4d4d4d", "dotted"),
    "trpo": Style("#4d4d4d", "dotted"),
    "cpo": Style("#009e73", "dash-dot"),
    "pcpo": Style("#d55e00", "dashed"),
    "rcpo": Style("#0072b2", "solid"),
}
_OTHER_COLOURS = ("#cc79a7", "#e69f00", "#56b4e9", "#882255", "#999933", "#332288", "#661100")
_DASHES = ("solid", "dashed", "dotted", "dash-dot")


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each name; names that begin with the same algorithm share its colour.

    Arguments:
        names: names or labels that begin with an algorithm, such as "rcpo taylor" or "PCPO".

    Example:
        >>> styles_of(["rcpo", "pcpo", "rcpo taylor"])["rcpo taylor"]
        Style(colour='#0072b2', dash='dashed')
    """
    algorithms = {name: re.split(r"\W", name.lower())[0] for name in names}
    others = [name for name in dict.fromkeys(algorithms.values()) if name not in STYLES]
    used: dict[str, int] = {}
    styles = {}
    for label, name in algorithms.items():
        if name in STYLES:
            key, (colour, dash) = name, STYLES[name]
        else:
            # With more algorithms than colours, dashes distinguish those of one colour.
            key = colour = _OTHER_COLOURS[others.index(name) % len(_OTHER_COLOURS)]
            dash = "dashed"
        turn = (_DASHES.index(dash) + used.get(key, 0)) % len(_DASHES)
        used[key] = used.get(key, 0) + 1
        styles[label] = Style(colour, _DASHES[turn])
    return styles


def label_of(name: str) -> str:
    """Return the label of an algorithm: built-in names in capitals, registered ones unchanged.

    Example:
        >>> label_of("rcpo taylor"), label_of("my-search")
        ('RCPO taylor', 'my-search')
    """
    algorithm, _, variant = name.partition(" ")
    targets = {**registry.SIMULATOR_ALGORITHMS.targets, **registry.ALGORITHMS.targets}
    built_in = str(targets.get(algorithm, "")).startswith("holdfast.")
    return f"{algorithm.upper() if built_in else algorithm} {variant}".strip()


class Series(NamedTuple):
    """A curve with an optional band.

    Attributes:
        name: label in the legend; series with the same name are shown and hidden together.
        colour: colour on a light background, as `#rrggbb`.
        dash: "solid", "dashed", "dotted" or "dash-dot".
        x: horizontal coordinates.
        y: vertical coordinates, NaN where there is no value.
        low: lower end of the band at each point.
        high: upper end of the band at each point.
        hollow: whether each point is drawn as a ring; empty for no.
    """

    name: str
    colour: str
    dash: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    hollow: Sequence[bool] = ()


class Limit(NamedTuple):
    """A threshold line.

    Attributes:
        value: position of the line.
        label: text beside the line.
        violated: the side on which the constraint is violated, "above" or "below".
        axis: the axis along which `value` is measured, "x" or "y".
    """

    value: float
    label: str
    violated: str
    axis: str = "y"

    @classmethod
    def at_most(cls, name: str, limit: float, axis: str = "y") -> Limit:
        """Return the line of an upper limit."""
        return cls(limit, f"{name} ≤ {limit:g}", "above", axis)

    @classmethod
    def of(cls, bound: ConstraintThreshold) -> Limit:
        """Return the threshold line of a constraint."""
        name = bound.name or bound.kind
        if bound.kind == "cost":
            return cls.at_most(name, bound.threshold)
        return cls(bound.threshold, f"{name} ≥ {bound.threshold:g}", "below")


class Axis(NamedTuple):
    """A horizontal axis.

    Attributes:
        name: the quantity on the axis.
        scale: "linear" or "sqrt".
        ticks: positions of the ticks; empty lets the renderer choose.
    """

    name: str
    scale: str = "linear"
    ticks: Sequence[float] = ()


class Chart(NamedTuple):
    """Curves over one horizontal axis, with limits."""

    name: str
    x: Axis
    y: str
    series: Sequence[Series]
    limits: Sequence[Limit] = ()


class EndPoint(NamedTuple):
    """The last iterate of one run."""

    x: float
    y: float
    label: str
    feasible: bool


class Trace(NamedTuple):
    """The iterates of one run, from the start to the end."""

    x: Numbers
    y: Numbers


class Cloud(NamedTuple):
    """The end points of one algorithm, and the paths to them."""

    name: str
    colour: str
    dash: str
    points: Sequence[EndPoint]
    traces: Sequence[Trace] = ()


class Plane(NamedTuple):
    """End points of runs in the plane of two quantities."""

    x: str
    y: str
    clouds: Sequence[Cloud]
    limits: Sequence[Limit] = ()


def critical_text(found: Stress) -> str:
    """Return the critical radius of a stress result, as text; "≥" if every tested radius holds."""
    radius = found.critical_radius
    if math.isnan(radius):
        return "none, over the limit nominally" if found.attacked else "unknown, no attack was run"
    return "∞" if math.isinf(radius) else f"{'≥ ' if found.beyond_tested else ''}{radius:.3g}"
