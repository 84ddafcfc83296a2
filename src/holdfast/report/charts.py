"""Charts of experiments and of stress results, as records.

Matplotlib draws figures from the records, and the HTML page its own. A record holds whole arrays. The
page rounds and thins them when it writes JSON.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast import registry
from holdfast.experiments.results import ConstraintThreshold, Result, Results, smallest_margins
from holdfast.simulators.certificates.stress_result import ACTIONS, ATTACK, NOMINAL, SCALED, Stress

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


def over_seeds(
    name: str, style: Style, curves: Sequence[np.ndarray], *, band: str = "range", start: int = 0
) -> Series:
    """Return the mean over seeds with a band.

    Arguments:
        name: label of the series.
        style: colour and dashes.
        curves: one array per seed; longer ones are cut to the shortest.
        band: "range" from the lowest to the highest seed, or "deviation" for one standard deviation.
        start: horizontal coordinate of the first point.
    """
    rows = min(map(len, curves))
    stacked = np.stack([np.asarray(values, float)[:rows] for values in curves])
    mean, deviation = stacked.mean(0), stacked.std(0)
    series = Series(name, *style, np.arange(start, start + rows), mean)
    if len(curves) == 1:
        return series
    if band == "range":
        return series._replace(low=stacked.min(0), high=stacked.max(0))
    return series._replace(low=mean - deviation, high=mean + deviation)


def iteration_axis(iterations: int) -> Axis:
    """Return an axis with a square-root scale: most changes happen in the first iterations."""
    return Axis("iteration (square-root scale)", "sqrt", iteration_ticks(max(iterations, 1)))


def iteration_ticks(iterations: int, spacing: float = 0.06) -> list[int]:
    """Return round tick positions from 0 to the last iteration, apart on a square-root scale.

    Arguments:
        iterations: the last iteration.
        spacing: least distance between two ticks, as a fraction of the axis. At 0.06 the labels of a
            five-inch panel do not touch.
    """
    round_numbers = [first * 10**power for power in range(9) for first in (1, 2, 5)]
    ticks = [iterations]
    for tick in reversed([n for n in round_numbers if n < iterations]):
        place, right = math.sqrt(tick / iterations), math.sqrt(ticks[0] / iterations)
        if right - place >= spacing and place >= spacing:
            ticks.insert(0, tick)
    return [0, *ticks]


def iterate_chart(
    results: Results,
    name: str,
    values: Callable[[Result], np.ndarray],
    limits: Sequence[Limit] = (),
    *,
    band: str = "range",
) -> Chart:
    """Return a quantity of every iterate, with one series per algorithm.

    Arguments:
        results: runs of several algorithms on one model.
        name: the quantity.
        values: the quantity of every iterate of one run.
        limits: thresholds of the quantity.
        band: as in `over_seeds`.
    """
    styles = styles_of(results.runs)
    series = [
        over_seeds(label_of(name), styles[name], [values(run) for run in runs], band=band)
        for name, runs in results.runs.items()
    ]
    return Chart(name, iteration_axis(results.iterations), name, series, limits)


def figure_charts(results: Results) -> list[Chart]:
    """Return the charts of the paper's figure: worst-case reward, and each constraint."""
    shown: list[tuple[str, Callable[[Result], np.ndarray], list[Limit]]] = [
        ("reward", lambda run: run.history["reward"], [])
    ]

    def constraint(i: int) -> Callable[[Result], np.ndarray]:
        return lambda run: run.bounds[i].values(run.history["margins"][:, i])

    for i, bound in enumerate(results.bounds):
        named = f": {bound.name}" if bound.name not in (None, bound.kind) else ""
        shown.append((f"{bound.kind}{named}", constraint(i), [Limit.of(bound)]))
    return [
        iterate_chart(results, f"worst-case {name} (discounted)", values, limits, band="deviation")
        for name, values, limits in shown
    ]


def margin_plane(results: Results) -> Plane:
    """Return worst-case reward against the smallest worst-case margin, with the path of every run."""
    styles = styles_of(results.runs)
    clouds = [
        Cloud(
            label_of(name),
            *styles[name],
            [
                EndPoint(run.margin, run.reward, f"seed {run.job.seed}", run.feasible)
                for run in runs
            ],
            [Trace(smallest_margins(run.history), run.history["reward"]) for run in runs],
        )
        for name, runs in results.runs.items()
    ]
    margin = "smallest worst-case margin"
    return Plane(margin, "worst-case reward", clouds, [Limit(0.0, "margin ≥ 0", "below", "x")])


def radius_charts(results: Sequence[Results]) -> list[Chart]:
    """Return reward and smallest margin against the radius, for one model at several radii.

    Bands are ranges over the seeds. A point is hollow if a seed is infeasible there.
    """
    names = list(dict.fromkeys(name for found in results for name in found.runs))

    def chart(y: str, values: Callable[[Results, str], np.ndarray], limits: list[Limit]) -> Chart:
        series = []
        for name, style in styles_of(names).items():
            there = [found for found in results if name in found.runs]
            seeds = [values(found, name) for found in there]
            series.append(
                Series(
                    label_of(name),
                    *style,
                    [float(found.radius or 0.0) for found in there],
                    [each.mean() for each in seeds],
                    [each.min() for each in seeds],
                    [each.max() for each in seeds],
                    [not found.feasible(name).all() for found in there],
                )
            )
        return Chart(y, Axis("radius"), y, series, limits)

    return [
        chart("worst-case reward (discounted)", Results.rewards, []),
        chart("smallest worst-case margin", Results.margins, [Limit(0.0, "margin ≥ 0", "below")]),
    ]


# Names and axes of the tests that do not concern a parameter, in their order on the page.
_TESTS = {
    ATTACK: ("attack", "radius of the attack (square-root scale)"),
    SCALED: ("more noise", "factor on the noise"),
    ACTIONS: ("noise on actions", "standard deviation of the noise on actions"),
}


def stress_charts(found: Mapping[str, Stress]) -> dict[str, list[Chart]]:
    """Return, for the reward and for each cost, one chart per kind of test.

    If drawn and most likely actions were tested, the latter are dotted lines with rings.

    Arguments:
        found: stress results by label, all with the same costs and limits.
    """
    first = next(iter(found.values()))
    kinds = list(_TESTS)
    tests = dict.fromkeys(
        (row.kind, "" if row.kind in kinds else row.subject)
        for each in found.values()
        for row in each.rows
        if row.kind != NOMINAL
    )

    def place(test: tuple[str, str]) -> int:
        return kinds.index(test[0]) if test[0] in kinds else len(kinds)

    limits = {
        name: [Limit.at_most(name, limit)]
        for name, limit in zip(first.cost_names, first.limits, strict=True)
    }
    return {
        signal: [
            _stress_chart(found, signal, kind, subject, limits.get(signal, []))
            for kind, subject in sorted(tests, key=place)
        ]
        for signal in ("reward", *first.cost_names)
    }


def _stress_chart(
    found: Mapping[str, Stress], signal: str, kind: str, subject: str, limits: list[Limit]
) -> Chart:
    series = []
    for label, style in styles_of(found).items():
        result = found[label]
        tested = any(row.kind == kind and subject in ("", row.subject) for row in result.rows)
        for i, actions in enumerate(result.actions if tested else ()):
            levels, measured = zip(*result.curve(signal, kind, subject, actions), strict=True)
            y, low, high = np.array([[each.mean, each.low, each.high] for each in measured]).T
            look = (f"{label}, {actions} actions", style.colour, "dotted") if i else (label, *style)
            series.append(Series(*look, levels, y, low, high, [True] * len(levels) if i else ()))
    if kind in _TESTS:
        name, label = _TESTS[kind]
    else:
        nominal = next(iter(found.values())).environment["parameters"][subject]
        name, label = subject, f"{subject} (nominal: {nominal:g})"
    ticks = sorted({level for each in series for level in each.x})
    axis = Axis(label, "sqrt" if kind == ATTACK else "linear", ticks)
    return Chart(name, axis, signal, series, limits)
