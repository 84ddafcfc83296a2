"""Statistics of few runs: means and robust summaries with bootstrap intervals.

The interquartile mean and the probability of improvement do not depend on a single outlier (Agarwal,
Schwarzer, Castro, Courville and Bellemare, Deep Reinforcement Learning at the Edge of the Statistical
Precipice, 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float


class IntervalEstimate(NamedTuple):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Float[np.ndarray, "... runs"]) -> Float[np.ndarray, "..."]:
    """Return the mean over the runs."""
    return np.asarray(values, float).mean(-1)


def interquartile_mean(values: Float[np.ndarray, "... runs"]) -> Float[np.ndarray, "..."]:
    """Return the mean of the middle half: a quarter of the runs, rounded down, is cut at either end.

    Example:
        >>> float(interquartile_mean(np.array([1.0, 2.0, 3.0, 4.0, 1000.0])))
        3.0
    """
    return scipy.stats.trim_mean(values, 0.25, axis=-1)


def probability_of_improvement(
    mine: Float[np.ndarray, "... n"], theirs: Float[np.ndarray, "... m"]
) -> Float[np.ndarray, "..."]:
    """Return how often a run of one algorithm exceeds a run of the other; a tie counts half.

    Example:
        >>> float(probability_of_improvement(np.array([1.0, 3.0]), np.array([2.0, 3.0])))
        0.375
    """
    difference = np.asarray(mine, float)[..., :, None] - np.asarray(theirs, float)[..., None, :]
    return (0.5 * (1 + np.sign(difference))).mean((-2, -1))


def bootstrap(
    values: Float[np.ndarray, " runs"],
    statistic: Callable[[Float[np.ndarray, "... runs"]], Float[np.ndarray, "..."]] = mean,
    **options: Any,
) -> IntervalEstimate:
    """Return a statistic of the runs with its percentile bootstrap interval.

    Arguments:
        values: one number per run.
        statistic: function of the runs along the last axis.
        **options: keyword arguments of `stratified_bootstrap`.

    Example:
        >>> bootstrap(np.array([1.0, 1.0, 1.0]))
        IntervalEstimate(value=1.0, low=1.0, high=1.0)
    """
    groups = [np.asarray(values, float)]
    return stratified_bootstrap(groups, lambda drawn: statistic(drawn[0]), **options)


def stratified_bootstrap(
    groups: Sequence[Float[np.ndarray, " runs"]],
    statistic: Callable[[Sequence[Float[np.ndarray, "... runs"]]], Float[np.ndarray, "..."]],
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> IntervalEstimate:
    """Return a statistic of several groups with its interval; each group is resampled on its own.

    Arguments:
        groups: the runs of each model, or of each algorithm.
        statistic: function of the groups, with runs along the last axis.
        confidence: confidence level of the interval.
        resamples: number of bootstrap samples; the ends of the interval vary by about 2 % of its
            width with 2,000.
        seed: seed of the samples, so that equal runs give equal intervals.

    Example:
        >>> runs = [np.array([1.0, 2.0]), np.array([3.0])]
        >>> stratified_bootstrap(runs, lambda groups: sum(map(mean, groups)))
        IntervalEstimate(value=4.5, low=4.0, high=5.0)
    """

    def resampled(*drawn: np.ndarray, axis: int) -> np.ndarray:
        del axis  # always the last one
        return statistic(
            [each[..., : len(group)] for each, group in zip(drawn, groups, strict=True)]
        )

    # SciPy requires two runs per group: a single one is doubled, and the copy ignored above.
    data = [np.resize(group, max(2, len(group))) for group in groups]
    found = scipy.stats.bootstrap(
        data,
        resampled,
        n_resamples=resamples,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return IntervalEstimate(float(statistic(groups)), float(found.low), float(found.high))
