"""The largest total variation distance of the true distribution from a centre, given counts.

The total variation of p and the frequencies p̂ is the largest excess p(J) − p̂(J) of a subset J of the
outcomes. Limits on p(J), for some or all J, therefore limit it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from holdfast.uncertainty.tail_bounds import Sampling, lower_limits, subset_limit, upper_limits

# Up to this number of outcomes every subset has its own limit. With five, 30 subsets share the risk,
# against 20 ends of intervals with half the risk; with six it would be 62 against 24.
_ALL_SUBSETS = 5
# Up to this number of outcomes the farthest point of a box is found by trying all 2^k subsets.
_TRY_SUBSETS = 10
# Entries per batch: 32 MiB per array.
_BATCH = 1 << 22


def largest_distance(
    counts: Float[np.ndarray, "N K"], risk: float, sampling: Sampling
) -> Float[np.ndarray, " N"]:
    """Return r with P(½‖p − p̂‖₁ > r) ≤ risk for each row; if adaptive, for some number of visits.

    - Up to five outcomes: the 2^k − 2 proper subsets share the risk, and each has its own exact
      binomial limit. This is Weissman's inequality without Hoeffding's part in it.
    - More: half of the risk is used for Weissman's inequality (`subset_limit`), the other half for an
      interval around each probability. The first is better for rows without small probabilities, the
      second if most of the mass is on few outcomes.

    Arguments:
        counts: rows with at least one visit each; every column is a possible outcome.
        risk: probability that a row is farther away.
        sampling: "fixed" or "adaptive", see `tail_bounds`.

    Example:
        >>> seen = np.array([[60.0, 30.0, 9.0, 1.0]])
        >>> largest_distance(seen, 0.05, "fixed").round(3)
        array([0.139])
        >>> largest_distance(seen, 0.05, "adaptive").round(3)
        array([0.192])
    """
    width = counts.shape[1]
    step = max(1, _BATCH >> min(width, _TRY_SUBSETS))
    parts = np.split(counts, range(step, len(counts), step))
    by_rows = _by_subsets if width <= _ALL_SUBSETS else _by_intervals
    return np.concatenate([by_rows(part, risk, sampling) for part in parts])


def _by_subsets(counts: np.ndarray, risk: float, sampling: Sampling) -> np.ndarray:
    visits = counts.sum(-1, keepdims=True)
    # Each subset is as far from the start of the list as its complement is from the end.
    members = _subsets(counts.shape[1])[1:-1]
    seen = counts @ members.T
    upper = upper_limits(seen, visits, 2 * risk / len(members), sampling)
    single = 2 ** np.arange(counts.shape[1]) - 1
    largest, smallest = upper[:, single], 1 - upper[:, ::-1][:, single]
    in_box = _excesses(counts / visits, smallest, largest, members)
    return np.minimum(upper - seen / visits, in_box).max(-1)


def _by_intervals(counts: np.ndarray, risk: float, sampling: Sampling) -> np.ndarray:
    visits, width = counts.sum(-1), counts.shape[1]
    limit = subset_limit(visits, np.full(visits.shape, float(width)), risk / 2, sampling)
    weissman = np.sqrt(limit / (2 * visits))
    each, all_visits = risk / 2 / width, np.broadcast_to(visits[:, None], counts.shape)
    p = counts / all_visits
    lower = np.minimum(lower_limits(counts, all_visits, each, sampling), p)
    upper = np.maximum(upper_limits(counts, all_visits, each, sampling), p)
    return np.minimum(weissman, farthest_in_box(p, lower, upper))


def farthest_in_box(
    centre: Float[np.ndarray, "N K"],
    lower: Float[np.ndarray, "N K"],
    upper: Float[np.ndarray, "N K"],
) -> Float[np.ndarray, " N"]:
    """Return the largest total variation distance from the centre of a distribution in a box.

    A distribution in the box takes mass from some entries and gives it to the others, J. So the
    distance is the largest min(Σ_J (upper − centre), Σ_{not J} (centre − lower)) of all J. Up to ten
    entries all J are tried. For more entries (the exact problem is a partition problem, which is
    NP-hard) one entry may be split between both sides. This increases the distance by less than the
    width of that entry.

    Example:
        >>> farthest_in_box(np.array([[0.7, 0.2, 0.1]]), np.array([[0.6, 0.1, 0.0]]),
        ...                 np.array([[0.8, 0.25, 0.3]]))
        array([0.2])
    """
    width = centre.shape[1]
    if width <= _TRY_SUBSETS:
        return _excesses(centre, lower, upper, _subsets(width)).max(-1)
    up, down = upper - centre, centre - lower
    # First those entries whose growth costs the least room to shrink.
    order = np.argsort(np.arctan2(down, up), axis=-1)
    up, down = np.take_along_axis(up, order, -1), np.take_along_axis(down, order, -1)
    taken = np.cumsum(up, -1) - up
    left = np.cumsum(down[:, ::-1], -1)[:, ::-1]
    # Last entry for which the growth of the earlier ones is at most the total shrinkage of this and the
    # later ones.
    split = np.maximum((taken <= left).sum(-1, keepdims=True) - 1, 0)
    taken, left, up, down = (
        np.take_along_axis(x, split, -1)[:, 0] for x in (taken, left, up, down)
    )
    both = up + down
    part = np.clip((left - taken) / np.where(both > 0, both, 1.0), 0.0, 1.0)
    return np.minimum(taken + part * up, left)


def _excesses(
    centre: np.ndarray, lower: np.ndarray, upper: np.ndarray, members: Bool[np.ndarray, "J K"]
) -> np.ndarray:
    """Return for each subset the largest mass that it can gain inside a box."""
    return np.minimum((upper - centre) @ members.T, (centre - lower) @ ~members.T)


def _subsets(width: int) -> Bool[np.ndarray, "J K"]:
    """Return all subsets, as rows of a table. Reversed, it lists their complements."""
    return (np.arange(2**width)[:, None] >> np.arange(width)) % 2 == 1
