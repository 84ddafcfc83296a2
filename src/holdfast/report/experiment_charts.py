"""Makes the chart records of experiments and of stress results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from holdfast.experiments.results import Result, Results, smallest_margins
from holdfast.report.charts import (
    Axis,
    Chart,
    Cloud,
    EndPoint,
    Limit,
    Plane,
    Series,
    Style,
    Trace,
    label_of,
    styles_of,
)
from holdfast.simulators.certificates.stress_result import (
    ACTIONS,
    ATTACK,
    PARAMETER,
    SCALED,
    Stress,
)


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
    low, high = (
        (stacked.min(0), stacked.max(0))
        if band == "range"
        else (mean - deviation, mean + deviation)
    )
    series = Series(name, *style, np.arange(start, start + rows), mean)
    return series if len(curves) == 1 else series._replace(low=low, high=high)


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
    charts = [
        iterate_chart(
            results,
            "worst-case reward (discounted)",
            lambda run: run.history["reward"],
            band="deviation",
        )
    ]
    for i, bound in enumerate(results.bounds):
        named = f": {bound.name}" if bound.name not in (None, bound.kind) else ""
        charts.append(
            iterate_chart(
                results,
                f"worst-case {bound.kind}{named} (discounted)",
                lambda run, i=i: run.bounds[i].values(run.history["margins"][:, i]),
                [Limit.of(bound)],
                band="deviation",
            )
        )
    return charts


def margin_plane(results: Results) -> Plane:
    """Return worst-case reward against the smallest worst-case margin, with the path of every run."""
    styles = styles_of(results.runs)
    clouds = [
        Cloud(
            label_of(name),
            *styles[name],
            [EndPoint(run.margin, run.reward, f"seed {run.seed}", run.feasible) for run in runs],
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


_TEST_NAMES = {ATTACK: "attack", SCALED: "more noise", ACTIONS: "noise on actions"}
_TEST_AXES = {
    ATTACK: "radius of the attack (square-root scale)",
    SCALED: "factor on the noise",
    ACTIONS: "standard deviation of the noise on actions",
}


def stress_charts(found: Mapping[str, Stress]) -> dict[str, list[Chart]]:
    """Return, for the reward and for each cost, one chart per kind of test.

    Arguments:
        found: stress results by label, all with the same costs and limits.
    """
    first = next(iter(found.values()))
    kinds = (ATTACK, SCALED, ACTIONS, PARAMETER)
    tests = dict.fromkeys(
        (row.kind, row.subject if row.kind == PARAMETER else "")
        for each in found.values()
        for row in each.rows[1:]
    )
    limits = {
        name: [Limit.at_most(name, limit)]
        for name, limit in zip(first.cost_names, first.limits, strict=True)
    }
    return {
        signal: [
            _stress_chart(found, signal, kind, subject, limits.get(signal, []))
            for kind, subject in sorted(tests, key=lambda test: kinds.index(test[0]))
        ]
        for signal in ("reward", *first.cost_names)
    }


def _stress_chart(
    found: Mapping[str, Stress], signal: str, kind: str, subject: str, limits: list[Limit]
) -> Chart:
    series = []
    for label, style in styles_of(found).items():
        each = found[label]
        if any(row.kind == kind and (not subject or row.subject == subject) for row in each.rows):
            curve = each.curve(signal, kind, subject)
            values = [[value.mean, value.low, value.high] for _, value in curve]
            series.append(Series(label, *style, [level for level, _ in curve], *np.array(values).T))
    nominal = next(iter(found.values())).environment["parameters"].get(subject)
    axis = Axis(
        _TEST_AXES.get(kind) or f"{subject} (nominal: {nominal:g})",
        "sqrt" if kind == ATTACK else "linear",
        sorted({level for each in series for level in each.x}),
    )
    return Chart(_TEST_NAMES.get(kind, subject), axis, signal, series, limits)
