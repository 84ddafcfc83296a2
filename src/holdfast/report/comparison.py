"""Compares algorithms: one row per algorithm and model, and one per algorithm over all models.

All numbers except the times are identical, byte for byte, for identical runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast.experiments import statistics
from holdfast.experiments.results import DeepResults, Results, Trained, feasible_rows
from holdfast.experiments.statistics import IntervalEstimate, bootstrap, stratified_bootstrap
from holdfast.simulators.certificates.intervals import Measured
from holdfast.simulators.certificates.stress_result import ACTIONS, ATTACK

# The standard deviation of the noise on actions in the paper's tests.
PAPER_NOISE = 0.1


class AlgorithmRow(NamedTuple):
    """The runs of one algorithm on one model: worst-case values of the last iterates.

    Attributes:
        environment: name of the model.
        radius: radius of the uncertainty set; NaN for the model's own set.
        algorithm: the algorithm, with the variant of its settings.
        runs: number of runs.
        reward: mean over the runs.
        deviation: standard deviation over the runs.
        middle: interquartile mean.
        nominal_reward: mean nominal reward.
        margin: smallest margin over runs and constraints.
        feasible: fraction of the runs that provably end feasible.
        improvement: probability that a run is better than one of the first algorithm's. A feasible run
            is better than an infeasible one; two feasible runs compare by reward, two others by margin.
        best: whether every run is feasible, and no other such algorithm has a larger mean reward.
        first_feasible: index of the first feasible iterate, median over the runs that have one; inf if
            no run has.
        infeasible_share: fraction of infeasible iterates, without the start.
        gap: largest certified optimality gap over the runs; NaN without certificates.
        iterations: number of iterations of the longest run.
        seconds: elapsed time of all runs.
        cpu_seconds: processor time of all runs.
    """

    environment: str
    radius: float
    algorithm: str
    runs: int
    reward: IntervalEstimate
    deviation: float
    middle: IntervalEstimate
    nominal_reward: float
    margin: float
    feasible: float
    improvement: IntervalEstimate
    best: bool
    first_feasible: float
    infeasible_share: float
    gap: float
    iterations: int
    seconds: float
    cpu_seconds: float


class OverallRow(NamedTuple):
    """The runs of one algorithm on all models.

    Attributes:
        algorithm: the algorithm, with the variant of its settings.
        runs: number of runs.
        feasible: fraction of the runs that provably end feasible.
        best: number of models, with their radii, on which it is the best feasible algorithm.
        cells: number of models, with their radii, on which it was run.
        improvement: probability of improvement over the first algorithm, mean over the models.
        shortfall: interquartile mean, over the feasible runs, of the relative difference to the reward
            of the best feasible algorithm; NaN if there is none.
    """

    algorithm: str
    runs: int
    feasible: IntervalEstimate
    best: int
    cells: int
    improvement: IntervalEstimate
    shortfall: float


def algorithm_rows(results: Sequence[Results]) -> list[AlgorithmRow]:
    """Return one row per algorithm, model and radius."""
    return [_algorithm_row(found, algorithm) for found in results for algorithm in found.runs]


def _algorithm_row(results: Results, algorithm: str) -> AlgorithmRow:
    runs, rewards = results.runs[algorithm], results.rewards(algorithm)
    starts = [run.feasible_from for run in runs if run.feasible_from is not None]
    later = np.concatenate([feasible_rows(run.history)[1:] for run in runs])
    gaps = [run.gap for run in runs]
    return AlgorithmRow(
        environment=results.environment,
        radius=math.nan if results.radius is None else results.radius,
        algorithm=algorithm,
        runs=len(runs),
        reward=bootstrap(rewards),
        deviation=float(rewards.std()),
        middle=bootstrap(rewards, statistics.interquartile_mean),
        nominal_reward=float(np.mean([run.history["nominal_reward"][-1] for run in runs])),
        margin=float(results.margins(algorithm).min()),
        feasible=float(results.feasible(algorithm).mean()),
        improvement=_improvement([_ranks(results, algorithm)]),
        best=algorithm in best_feasible(results),
        first_feasible=float(np.median(starts)) if starts else math.inf,
        infeasible_share=float(np.mean(~later)) if later.size else math.nan,
        gap=math.nan if np.isnan(gaps).all() else float(np.nanmax(gaps)),
        iterations=max(len(run.history["reward"]) for run in runs) - 1,
        seconds=sum(run.seconds for run in runs),
        cpu_seconds=sum(run.cpu_seconds for run in runs),
    )


def best_feasible(results: Results) -> list[str]:
    """Return the algorithms with the largest mean reward among those feasible in every run.

    Rewards within their numerical error of the largest are ties, and so are rewards within 1e-9 of it:
    runs that end in the same policy differ by rounding only.
    """
    whole = [name for name in results.runs if results.feasible(name).all()]
    if not whole:
        return []
    top = max(results.rewards(name).mean() for name in whole)
    least = top - 1e-9 * max(1, abs(top))
    return [
        name
        for name in whole
        if results.rewards(name).mean() + results.errors(name).mean() >= least
    ]


def _ranks(
    results: Results, algorithm: str
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """Return the ranks of an algorithm's runs and of the first algorithm's, among each other."""
    first = next(iter(results.runs))
    keys = [run.merit for name in (algorithm, first) for run in results.runs[name]]
    order = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    ranks = np.array([order[key] for key in keys], float)
    mine = len(results.runs[algorithm])
    return ranks[:mine], ranks[mine:]


def _improvement(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> IntervalEstimate:
    """Return the probability of improvement, averaged over models; every group is resampled."""
    groups = [group for pair in pairs for group in pair]

    def average(drawn: Sequence[np.ndarray]) -> np.ndarray:
        each = map(statistics.probability_of_improvement, drawn[::2], drawn[1::2])
        return np.mean(list(each), axis=0)

    return stratified_bootstrap(groups, average)


def overall_rows(results: Sequence[Results]) -> list[OverallRow]:
    """Return one row per algorithm over all models and radii."""
    names = list(dict.fromkeys(name for found in results for name in found.runs))
    return [_overall(name, [found for found in results if name in found.runs]) for name in names]


def _overall(algorithm: str, results: Sequence[Results]) -> OverallRow:
    feasible = [found.feasible(algorithm).astype(float) for found in results]
    shortfalls: list[Any] = [np.zeros(0)]
    for found in results:
        for best in best_feasible(found)[:1]:
            top = found.rewards(best).mean()
            kept = found.rewards(algorithm)[found.feasible(algorithm)]
            # 1e-12 avoids a division by zero for a best reward of zero.
            shortfalls.append((top - kept) / max(abs(top), 1e-12))
    every = np.concatenate(shortfalls)
    return OverallRow(
        algorithm=algorithm,
        runs=sum(map(len, feasible)),
        feasible=stratified_bootstrap(feasible, lambda g: np.concatenate(g, axis=-1).mean(-1)),
        best=sum(algorithm in best_feasible(found) for found in results),
        cells=len(results),
        improvement=_improvement([_ranks(found, algorithm) for found in results]),
        shortfall=float(statistics.interquartile_mean(every)) if every.size else math.nan,
    )


class SimulatorRow(NamedTuple):
    """One algorithm in a simulator: nominal, under noise on actions, and under attack.

    Attributes:
        algorithm: the algorithm.
        trust_region: its step size.
        nominal_reward: reward under the nominal kernel.
        nominal_cost: cost under the nominal kernel.
        perturbed_reward: reward under the paper's noise on actions.
        perturbed_cost: cost under the paper's noise on actions.
        attacked_reward: reward under the strongest attack found on the reward.
        attacked_cost: cost under the strongest attack found on the cost.
        critical_radius: largest radius at which the limit holds; NaN if it does not hold nominally.
        beyond_tested: whether the limit holds at every tested radius.
    """

    algorithm: str
    trust_region: float
    nominal_reward: Measured
    nominal_cost: Measured
    perturbed_reward: Measured
    perturbed_cost: Measured
    attacked_reward: Measured
    attacked_cost: Measured
    critical_radius: float
    beyond_tested: bool


def simulator_rows(results: DeepResults) -> list[SimulatorRow]:
    """Return one row per step size and algorithm."""
    experiment = results.experiment
    return [
        _simulator_row(results.of(algorithm, trust_region), experiment.radius)
        for trust_region in experiment.trust_regions
        for algorithm in experiment.algorithms
    ]


def _simulator_row(trained: Trained, radius: float) -> SimulatorRow:
    found = trained.stress
    assert found is not None, trained.job

    values: list[Any] = [found.rows[0].reward, found.rows[0].costs[0]]
    for kind, level in ((ACTIONS, PAPER_NOISE), (ATTACK, radius)):
        for signal in ("reward", found.cost_names[0]):
            values.append(dict(found.curve(signal, kind))[level])
    values += [found.critical_radius, found.beyond_tested]
    return SimulatorRow(trained.job.algorithm, trained.job.trust_region, *values)
