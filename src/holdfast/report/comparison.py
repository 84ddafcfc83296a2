"""Algorithms compared: a line for each on each model, and one for each over all models.

All numbers but the timings are the same, byte for byte, whenever the runs are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast.experiments.results import Results, feasible_rows
from holdfast.experiments.statistics import (
    IntervalEstimate,
    bootstrap,
    interquartile_mean,
    mean,
    probability_of_improvement,
    stratified_bootstrap,
)


class Line(NamedTuple):
    """What the runs of one algorithm on one model say; in the worst case, at the end.

    Attributes:
        environment: the model.
        radius: of its uncertainty set; NaN for the model's own.
        algorithm: with the variant of its settings.
        runs: how many there are.
        reward: mean over the runs.
        deviation: standard deviation of the runs at hand.
        middle: interquartile mean.
        margin: smallest over runs and constraints.
        feasible: share of the runs that certainly end feasible.
        improvement: how often a run is better than one of the first algorithm's. A feasible run is
            better than one that is not; feasible ones compare by reward, the others by margin.
        best: whether no algorithm whose runs are all feasible has a larger mean reward.
        first_feasible: the iterate that is the first feasible one, median over the runs; inf where
            most have none.
        infeasible_share: of the iterates that are not feasible, the start left out.
        gap: largest over the runs of what a certificate leaves open; NaN where there is none.
        iterations: of the longest run.
    """

    environment: str
    radius: float
    algorithm: str
    runs: int
    reward: IntervalEstimate
    deviation: float
    middle: IntervalEstimate
    margin: float
    feasible: float
    improvement: IntervalEstimate
    best: bool
    first_feasible: float
    infeasible_share: float
    gap: float
    iterations: int


class Timing(NamedTuple):
    """How long the runs of one algorithm on one model took, together."""

    environment: str
    radius: float
    algorithm: str
    iterations: int
    seconds: float
    cpu_seconds: float


class Overall(NamedTuple):
    """What the runs of one algorithm on all models say.

    Attributes:
        algorithm: with the variant of its settings.
        runs: how many there are.
        feasible: share of the runs that certainly end feasible.
        best: models, with their radii, on which it is the best feasible one.
        cells: models, with their radii, that it was run on.
        improvement: how often a run is better than one of the first algorithm's, mean over the models.
        shortfall: interquartile mean, over the feasible runs, of what the reward lacks of the best
            feasible algorithm's, as a share of the latter; NaN where there is none.
    """

    algorithm: str
    runs: int
    feasible: IntervalEstimate
    best: int
    cells: int
    improvement: IntervalEstimate
    shortfall: float


def lines(results: Sequence[Results]) -> list[Line]:
    """A line for each algorithm on each model with each radius."""
    return [line for found in results for line in _lines(found)]


def _lines(results: Results) -> list[Line]:
    best = best_feasible(results)
    first = next(iter(results.runs))
    return [_line(results, algorithm, first, algorithm in best) for algorithm in results.runs]


def _line(results: Results, algorithm: str, first: str, best: bool) -> Line:
    runs, rewards = results.runs[algorithm], results.rewards(algorithm)
    begun = [run.feasible_from for run in runs]
    later = np.concatenate([feasible_rows(run.history)[1:] for run in runs])
    gaps = [run.gap for run in runs]
    mine, theirs = scores(results, algorithm, first)
    return Line(
        environment=results.environment,
        radius=math.nan if results.radius is None else results.radius,
        algorithm=algorithm,
        runs=len(runs),
        reward=bootstrap(rewards),
        deviation=float(rewards.std()),
        middle=bootstrap(rewards, interquartile_mean),
        margin=float(results.margins(algorithm).min()),
        feasible=float(results.feasible(algorithm).mean()),
        improvement=_improvement([(mine, theirs)]),
        best=best,
        first_feasible=float(np.median([math.inf if i is None else i for i in begun])),
        infeasible_share=float(np.mean(~later)) if later.size else math.nan,
        gap=math.nan if np.isnan(gaps).all() else float(np.nanmax(gaps)),
        iterations=max(len(run.history["reward"]) for run in runs) - 1,
    )


def best_feasible(results: Results) -> list[str]:
    """The algorithms all of whose runs are feasible with the largest mean reward, ties by error."""
    whole = [name for name in results.runs if results.feasible(name).all()]
    if not whole:
        return []
    top = max(results.rewards(name).mean() for name in whole)
    return [
        name
        for name in whole
        if results.rewards(name).mean() + results.errors(name).mean()
        >= top - 1e-9 * max(1, abs(top))
    ]


def scores(
    results: Results, algorithm: str, other: str
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """Ranks of two algorithms' runs among each other, feasible runs before the others."""
    keys = [run.merit for name in (algorithm, other) for run in results.runs[name]]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    ranks = np.array([order[key] for key in keys], float)
    mine = len(results.runs[algorithm])
    return ranks[:mine], ranks[mine:]


def _improvement(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> IntervalEstimate:
    """The mean over models of the probability of improvement, every group of runs resampled."""
    groups = [group for pair in pairs for group in pair]

    def average(drawn: Sequence[np.ndarray]) -> np.ndarray:
        each = [
            probability_of_improvement(mine, theirs)
            for mine, theirs in zip(drawn[::2], drawn[1::2], strict=True)
        ]
        return np.mean(each, axis=0)

    return stratified_bootstrap(groups, average)


def timings(results: Sequence[Results]) -> list[Timing]:
    """How long each algorithm took on each model."""
    return [
        Timing(
            environment=found.environment,
            radius=math.nan if found.radius is None else found.radius,
            algorithm=algorithm,
            iterations=max(len(run.history["reward"]) for run in runs) - 1,
            seconds=sum(run.seconds for run in runs),
            cpu_seconds=sum(run.cpu_seconds for run in runs),
        )
        for found in results
        for algorithm, runs in found.runs.items()
    ]


def overall(results: Sequence[Results]) -> list[Overall]:
    """A line for each algorithm over all models and radii."""
    names = list(dict.fromkeys(name for found in results for name in found.runs))
    return [_overall(name, [found for found in results if name in found.runs]) for name in names]


def _overall(algorithm: str, results: Sequence[Results]) -> Overall:
    feasible = [found.feasible(algorithm).astype(float) for found in results]
    shortfalls: list[Any] = []
    for found in results:
        whole = best_feasible(found)
        if whole:
            top = found.rewards(whole[0]).mean()
            kept = found.rewards(algorithm)[found.feasible(algorithm)]
            shortfalls.append((top - kept) / max(abs(top), 1e-12))
    every = np.concatenate(shortfalls) if shortfalls else np.zeros(0)
    return Overall(
        algorithm=algorithm,
        runs=sum(map(len, feasible)),
        feasible=stratified_bootstrap(feasible, lambda g: mean(np.concatenate(g, axis=-1))),
        best=sum(algorithm in best_feasible(found) for found in results),
        cells=len(results),
        improvement=_improvement(
            [scores(found, algorithm, next(iter(found.runs))) for found in results]
        ),
        shortfall=float(interquartile_mean(every)) if every.size else math.nan,
    )
