"""What several runs say together, with how sure that is.

Runs are few, so means are told with bootstrap intervals, and beside them what one odd run cannot move:
interquartile means and probabilities of improvement (Agarwal, Schwarzer, Castro, Courville and
Bellemare, Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

RESAMPLES = 2_000
CONFIDENCE = 0.95

# From arrays of runs along the last axis to a number each.
Statistic = Callable[[Float[np.ndarray, "... runs"]], Float[np.ndarray, "..."]]


class Estimate(NamedTuple):
    """A number with its confidence interval."""

    value: float
    low: float
    high: float


def mean(values: Float[np.ndarray, "... runs"]) -> Float[np.ndarray, "..."]:
    """The mean over runs."""
    return np.asarray(values, float).mean(-1)


def interquartile_mean(values: Float[np.ndarray, "... runs"]) -> Float[np.ndarray, "..."]:
    """The mean of the middle half: a quarter of the runs, rounded down, is left out at either end.

    Example:
        >>> float(interquartile_mean(np.array([1.0, 2.0, 3.0, 4.0, 1000.0])))
        3.0
    """
    ordered = np.sort(np.asarray(values, float), axis=-1)
    runs = ordered.shape[-1]
    cut = runs // 4
    return ordered[..., cut : runs - cut].mean(-1)


def bootstrap(
    values: Float[np.ndarray, " runs"],
    statistic: Statistic = mean,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of the runs with its percentile bootstrap interval.

    Arguments:
        values: a number for each run.
        statistic: of the runs.
        confidence: of the interval.
        resamples: samples that are drawn from the runs, with replacement.
        seed: of the drawing, so that equal runs give equal intervals.

    Example:
        >>> bootstrap(np.array([1.0, 1.0, 1.0]))
        Estimate(value=1.0, low=1.0, high=1.0)
    """
    values = np.asarray(values, float)
    return stratified_bootstrap(
        [values],
        lambda groups: statistic(groups[0]),
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def stratified_bootstrap(
    groups: Sequence[Float[np.ndarray, " runs"]],
    statistic: Callable[[Sequence[Float[np.ndarray, "... runs"]]], Float[np.ndarray, "..."]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """A statistic of several groups of runs, each of which is resampled on its own.

    Arguments:
        groups: the runs of each model, or of each algorithm.
        statistic: from the groups, with any leading axes, to a number each.
        confidence: of the interval.
        resamples: samples that are drawn.
        seed: of the drawing.
    """
    generator = np.random.default_rng(seed)
    drawn = [
        group[generator.integers(len(group), size=(resamples, len(group)))] for group in groups
    ]
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    low, high = np.percentile(statistic(drawn), tails)
    return Estimate(float(statistic(groups)), float(low), float(high))


def pooled_interquartile_mean(
    groups: Sequence[Float[np.ndarray, "... runs"]],
) -> Float[np.ndarray, "..."]:
    """The interquartile mean of all runs of all groups together."""
    return interquartile_mean(np.concatenate(groups, axis=-1))


def probability_of_improvement(
    mine: Float[np.ndarray, "... n"], theirs: Float[np.ndarray, "... m"]
) -> Float[np.ndarray, "..."]:
    """How often a run of one is better than a run of the other, a tie counting half.

    Example:
        >>> float(probability_of_improvement(np.array([1.0, 3.0]), np.array([2.0, 3.0])))
        0.375
    """
    difference = np.asarray(mine, float)[..., :, None] - np.asarray(theirs, float)[..., None, :]
    return (0.5 * (1 + np.sign(difference))).mean((-2, -1))
