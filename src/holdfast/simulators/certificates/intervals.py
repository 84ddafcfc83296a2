"""Means over episodes with confidence intervals, and the verdict on a cost limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

# 2,000 resamples put the ends of a 95 % interval at the 50th smallest and largest resampled mean, which
# moves them by about 2 % of the interval's width from seed to seed.
_RESAMPLES = 2000
# Resampling 20,000 episodes takes half a second for every signal. Means of equal blocks have the same
# spread; estimated from 2,000 blocks it is within 1/√(2·2000) = 1.6 %, and takes a tenth of the time.
_BLOCKS = 2000


class ConfidenceInterval(NamedTuple):
    """A mean, or a share, with the ends of its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measured value of one signal.

    Attributes:
        mean: mean over agents of each agent's mean over episodes.
        low: lower end of its confidence interval, from resampling episodes within each agent.
        high: upper end.
        spread: standard deviation of the agents' means; None with one agent.
        agents: each agent's own mean and interval.
    """

    mean: float
    low: float
    high: float
    spread: float | None
    agents: tuple[ConfidenceInterval, ...]

    def __str__(self) -> str:
        return str(ConfidenceInterval(self.mean, self.low, self.high))


def measured(
    returns: Sequence[Float[np.ndarray, " episodes"]], confidence: float, seed: int
) -> Measured:
    """Return the mean over agents of their episodes, with percentile bootstrap intervals.

    Arguments:
        returns: returns of each agent's episodes, at least two of each agent.
        confidence: level of the intervals.
        seed: seed of the resampling.

    Example:
        >>> import numpy as np
        >>> value = measured([np.array([1.0, 2.0, 3.0, 4.0])], confidence=0.95, seed=0)
        >>> value.mean, value.low < 2 < 3 < value.high
        (2.5, True)
    """
    agents = tuple(bootstrap_interval([each], confidence, seed) for each in returns)
    if len(agents) == 1:
        return Measured(*agents[0], None, agents)
    spread = float(np.std([each.mean for each in agents]))
    return Measured(*bootstrap_interval(returns, confidence, seed), spread, agents)


def bootstrap_interval(
    samples: Sequence[Float[np.ndarray, " episodes"]], confidence: float, seed: int
) -> ConfidenceInterval:
    """Return the mean of the samples' means with its percentile bootstrap interval."""
    from scipy.stats import bootstrap

    def mean_of_means(*resampled: Any, axis: int) -> Any:
        return np.mean([each.mean(axis) for each in resampled], axis=0)

    samples = [np.asarray(each, float) for each in samples]
    found = bootstrap(
        [_block_means(each) for each in samples],
        mean_of_means,
        n_resamples=_RESAMPLES,
        batch=100,  # resamples drawn together: 100 of 2,000 numbers fit in a processor's cache
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    mean = float(np.mean([each.mean() for each in samples]))
    return ConfidenceInterval(mean, float(found.low), float(found.high))


def _block_means(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " blocks"]:
    """Return means of at most 2,000 equal blocks; fewer than one block's values are left out."""
    size = -(-len(values) // _BLOCKS)
    return values[: len(values) // size * size].reshape(-1, size).mean(1)


def share_interval(successes: int, trials: int, confidence: float) -> ConfidenceInterval:
    """Return a share with its Wilson interval, which has a positive width also at 0 and 1.

    Example:
        >>> print(share_interval(0, 100, 0.95))
        0 [0, 0.03699]
    """
    from scipy.stats import binomtest

    found = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return ConfidenceInterval(successes / trials, float(found.low), float(found.high))


def verdict(cost: ConfidenceInterval | Measured, limit: float) -> str:
    """Return "violated" above the limit, "undecided" if the interval contains it, otherwise "".

    Example:
        >>> [verdict(ConfidenceInterval(1.0, 0.9, 1.1), limit) for limit in (0.5, 1.0, 2.0)]
        ['violated', 'undecided', '']
    """
    if cost.low > limit:
        return "violated"
    return "undecided" if cost.high > limit else ""


VERDICT_TEXTS = {
    "violated": "limit violated",
    "undecided": "undecided: the interval contains the limit",
    "": "",
}


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of text with aligned columns: the first and the last to the left, others right.

    Example:
        >>> text_table([("", "mean", ""), ("reward", "1", "low")])
        ['        mean', 'reward     1  low']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        padded = (f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True))
        lines.append("  ".join([f"{first:{widths[0]}}", *padded, last]).rstrip())
    return lines
