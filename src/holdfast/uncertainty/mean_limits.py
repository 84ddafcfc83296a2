"""Limits on means of bounded numbers that hold for all numbers of observations at once.

The observations of a pair are numbers in [0, 1] with one mean, whatever happened before. How many there
are may depend on them. Two limits share the risk evenly, and the tighter one counts:

- *Mixture.* For X in [0, 1] with mean μ, E[(q/μ)^X·((1−q)/(1−μ))^(1−X)] ≤ 1 for every q, because a
  convex function of X lies below its chord. The mixture of these products over a Beta distribution of q
  is a supermartingale, and Ville's inequality bounds it for all n. The limit is that of a success
  probability (`tail_bounds`, adaptive sampling), with a sum in place of a number of successes. It is
  good for few observations.
- *Empirical Bernstein.* The confidence sequence of Waudby-Smith and Ramdas, "Estimating means of bounded
  random variables by betting" (JRSS B 2024, Theorem 2), with predictable weights. Its width follows the
  standard deviation of the observations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from holdfast.uncertainty.tail_bounds import lower_limits, upper_limits

# Largest bet of the empirical Bernstein sequence; 1/2 is the authors' own.
_LARGEST_BET = 0.5
# Limits are loosened by this. Cumulative sums of a million numbers in [0, 1] are accurate to 1e-10.
_ROUNDING = 1e-9


class MeanLimits(NamedTuple):
    """Limits on the mean of every group.

    Attributes:
        mean: mean of the observations; 1/2 of a group without any.
        lower: lower limits; 0 of a group without observations.
        upper: upper limits; 1 of a group without observations.
        visits: numbers of observations.
    """

    mean: Float[np.ndarray, " groups"]
    lower: Float[np.ndarray, " groups"]
    upper: Float[np.ndarray, " groups"]
    visits: Float[np.ndarray, " groups"]


def mean_limits(
    values: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], count: int, risk: float
) -> MeanLimits:
    """Return limits that contain the mean of each group, except with this risk for each group.

    Arguments:
        values: observations in [0, 1], in the order in which they were made.
        group: index of the group of each observation.
        count: number of groups.
        risk: probability that a group's limits fail for some number of observations.

    Example:
        >>> found = mean_limits(np.full(1000, 0.25), np.zeros(1000, int), 2, risk=0.01)
        >>> print(found.lower.round(2), found.upper.round(2))
        [0.24 0.  ] [0.26 1.  ]
    """
    visits = np.bincount(group, minlength=count).astype(float)
    sums = np.bincount(group, weights=values, minlength=count)
    lower, upper, seen = np.zeros(count), np.ones(count), visits > 0
    mean = np.where(seen, sums / np.maximum(visits, 1.0), 0.5)
    if not seen.any():
        return MeanLimits(mean, lower, upper, visits)
    question = np.clip(sums[seen], 0.0, visits[seen]), visits[seen], risk / 2, "adaptive"
    bernstein = _bernstein(values, group, risk / 2)
    lower[seen] = np.maximum(lower_limits(*question), bernstein[0]) - _ROUNDING  # type: ignore[arg-type]
    upper[seen] = np.minimum(upper_limits(*question), bernstein[1]) + _ROUNDING  # type: ignore[arg-type]
    # The two limits can exclude each other only if one of them failed.
    lower, upper = np.minimum(lower, mean), np.maximum(upper, mean)
    return MeanLimits(mean, np.maximum(lower, 0.0), np.minimum(upper, 1.0), visits)


def _bernstein(
    values: np.ndarray, group: np.ndarray, risk: float
) -> tuple[Float[np.ndarray, " seen"], Float[np.ndarray, " seen"]]:
    """Return the empirical Bernstein limits of the groups with observations."""
    order = np.argsort(group, kind="stable")
    x, group = values[order], group[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    lengths = np.diff(np.r_[starts, len(x)])

    def summed(terms: np.ndarray) -> np.ndarray:
        """Cumulative sums within each group."""
        total = np.cumsum(terms)
        return total - np.repeat(total[starts] - terms[starts], lengths)

    def before(after: np.ndarray, first: float) -> np.ndarray:
        """The values before each observation; `first` before the first one of a group."""
        shifted = np.r_[first, after[:-1]]
        shifted[starts] = first
        return shifted

    t = np.arange(len(x)) - np.repeat(starts, lengths) + 1.0
    centre = (0.5 + summed(x)) / (t + 1)
    variance = (0.25 + summed((x - centre) ** 2)) / (t + 1)
    log_risk = np.log(2 / risk)
    bet = np.sqrt(2 * log_risk / (before(variance, 0.25) * t * np.log1p(t)))
    bet = np.minimum(bet, _LARGEST_BET)
    spread = (x - before(centre, 0.5)) ** 2 * (-np.log1p(-bet) - bet)
    weight = summed(bet)
    middle, radius = summed(bet * x) / weight, (log_risk + summed(spread)) / weight
    # The limits hold for all numbers of observations at once, so the best of the past ones counts.
    return np.maximum.reduceat(middle - radius, starts), np.minimum.reduceat(
        middle + radius, starts
    )
