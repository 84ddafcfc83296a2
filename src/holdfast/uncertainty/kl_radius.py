"""The smallest KL ball that contains the true distribution, given counts.

Counts x of n draws from p, with frequencies p̂ over k outcomes, say that p lies in a region KL(p̂‖p) ≤ ε,
and that each p_j is at most u_j (`tail_bounds`). `smallest_ball` encloses this region in a ball
KL(p‖c) ≤ radius.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float

from holdfast.uncertainty.tail_bounds import (
    Sampling,
    divergence_limit,
    entropy,
    kl_terms,
    largest_probability,
    mixture_limit,
    upper_limits,
)

# Steps of the ellipsoid method. Each shrinks the volume by a factor 0.85 in three dimensions, so 120
# steps reduce it by 1e-9.
_ROUNDS = 120
# Entries per batch: 512 KiB per array, which stays in the cache of one core.
_BATCH = 1 << 16
# Smallest λ, and smallest w relative to its first guess. The optimum is at λ near one and w near the
# guess; the bound is not defined at zero.
_LEAST = 1e-3
# Division of the risk. One fifth goes to the limits on single probabilities: if few outcomes were seen,
# they reduce the radius by up to a half. Losing this fifth increases n·ε by 0.2. With fixed n,
# `mixture_limit` gets a twentieth for the same reason; it is the smaller limit if k is large.
_FOR_PROBABILITIES, _FOR_MIXTURE = 0.2, 0.05


def smallest_ball(
    counts: Float[np.ndarray, "N K"],
    size: Float[np.ndarray, " N"],
    risk: float,
    sampling: Sampling,
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share w of the uniform row in the centre c = (1 − w)·p̂ + w/k, and the radius.

    The largest KL(p‖c) over all p in the region is the maximum of a convex function. Lagrangian
    duality bounds it from above for every λ ≥ 0 and ν: with g(a, b) = a·log(a/b) − a + b,

        KL(p‖c) ≤ λε + Σ_j max { g(p_j, c_j) − λ·g(p̂_j, p_j) − ν·(p_j − p̂_j) : 0 ≤ p_j ≤ u_j },

    where g(0, p_j) = p_j for unseen entries. Each inner maximum is at u_j, or at the one point where
    the derivative changes from positive to negative. The bound is jointly convex in (w, λ, ν), and the
    ellipsoid method minimises it. It is valid wherever the search stops.

    Arguments:
        counts: rows with at least one visit each.
        size: k, the number of possible outcomes of each row, at least three.
        risk: probability that a row lies outside its ball.
        sampling: "fixed" or "adaptive", see `tail_bounds`.
    """
    # The radius does not depend on the order of the entries, and all unseen entries are alike.
    descending = -np.sort(-counts, axis=-1)[:, : int((counts > 0).sum(-1).max())]
    rows, back = np.unique(np.c_[size, descending], axis=0, return_inverse=True)
    step = max(1, _BATCH // rows.shape[1])
    batches = np.split(rows, range(step, len(rows), step))
    parts = [_enclose(_KLRegion.of(batch[:, 1:], batch[:, 0], risk, sampling)) for batch in batches]
    share, radius = (np.concatenate(column) for column in zip(*parts, strict=True))
    return share[back.ravel()], radius[back.ravel()]


def two_successors(
    lower: Float[np.ndarray, " N"], upper: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the probability with equal KL from both ends of an interval, and that divergence.

    KL(p‖c) is convex in p, so the ends are farthest from every centre.
    """
    slope = (entropy(upper) - entropy(lower)) / (upper - lower)
    centre = 1 / (1 + np.exp(slope))

    def distance(p: np.ndarray) -> np.ndarray:
        return kl_terms(p, centre) + kl_terms(1 - p, 1 - centre)

    return centre, np.maximum(distance(lower), distance(upper))


class _KLRegion(NamedTuple):
    """The rows p with KL(p̂‖p) ≤ ε and p_j ≤ u_j.

    Columns are the seen entries; shorter rows are filled up.

    Attributes:
        p: frequencies p̂, one in filled places.
        top: the largest p_j in the region.
        seen: one for a seen entry, zero in filled places.
        size: number of possible outcomes.
        unseen: number of outcomes that were not seen.
        bound: ε.
        most: largest probability of an unseen outcome.
    """

    p: Float[np.ndarray, "N M"]
    top: Float[np.ndarray, "N M"]
    seen: Float[np.ndarray, "N M"]
    size: Float[np.ndarray, " N"]
    unseen: Float[np.ndarray, " N"]
    bound: Float[np.ndarray, " N"]
    most: Float[np.ndarray, " N"]

    @classmethod
    def of(cls, counts: np.ndarray, size: np.ndarray, risk: float, sampling: Sampling) -> Self:
        visits = counts.sum(-1)
        seen = counts > 0
        if sampling == "fixed":
            kept = 1 - _FOR_PROBABILITIES - _FOR_MIXTURE
            limit = divergence_limit(visits, size, kept * risk)
            limit = np.minimum(limit, mixture_limit(counts, size, _FOR_MIXTURE * risk))
            # Only one side is needed, and `upper_limits` divides by two for the other.
            each = 2 * _FOR_PROBABILITIES * risk / size
        else:
            limit = mixture_limit(counts, size, (1 - _FOR_PROBABILITIES) * risk)
            each = _FOR_PROBABILITIES * risk / size
        bound = limit / visits
        # Filled places have value one and are multiplied by seen = 0 in all sums.
        p = np.where(seen, counts / visits[:, None], 1.0)
        wide = np.broadcast_to(visits[:, None], p.shape)
        single = upper_limits(np.where(seen, counts, wide), wide, each[:, None], sampling)
        top = np.minimum(single, largest_probability(p, bound[:, None]))
        # The divergence limits the mass of all unseen outcomes together.
        most = np.minimum(upper_limits(0 * visits, visits, each, sampling), -np.expm1(-bound))
        unseen = size - seen.sum(-1)
        return cls(p, np.maximum(top, p), seen.astype(float), size, unseen, bound, most)

    def unseen_masses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how many unseen outcomes can have the most at once, and what one more can have."""
        together = -np.expm1(-self.bound)
        full = np.floor(together / self.most)
        left = np.where(self.unseen > full, np.maximum(together - full * self.most, 0.0), 0.0)
        return np.minimum(full, self.unseen), left

    def bound_and_gradient(
        self, share: np.ndarray, price: np.ndarray, level: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bound at (w, λ, ν), and its gradient in three columns."""
        p, top, uniform = self.p, self.top, share / self.size
        centre = (1 - share)[:, None] * p + uniform[:, None]
        each, tilt = price[:, None], level[:, None]
        # With r = λ·p̂/p the derivative is zero at r − log r = h. The maximum is the root r > 1. Four
        # Newton steps from these two expansions reach rounding error.
        h = each + tilt - np.log(each * p / centre)
        inner = h > 1
        h = np.where(inner, h, 2.0)
        r = np.where(h < 3, 1 + np.sqrt(2 * (h - 1)) + (h - 1) * (2 / 3), h + np.log(h))
        for _ in range(4):
            r = np.maximum(r - (r - np.log(r) - h) * r / np.maximum(r - 1, 1e-300), 1.0)
        point = np.where(inner, np.minimum(each * p / r, top), top)

        def gain(q: np.ndarray) -> np.ndarray:
            return kl_terms(q, centre) - each * kl_terms(p, q) - tilt * (q - p)

        at_point, at_top = gain(point), gain(top)
        q = np.where(at_top > at_point, top, point)
        # The gain is convex in the masses of the unseen entries, so it is largest at an extreme point:
        # as many entries as possible at their maximum, one with the remaining mass, the others at zero.
        full, left = self.unseen_masses()

        def unseen_gain(mass: np.ndarray) -> np.ndarray:
            return kl_terms(mass, uniform) - uniform - (price + level) * mass

        at_most, at_left = unseen_gain(self.most), unseen_gain(left)
        full, left = np.where(at_most > 0, full, 0.0), np.where(at_left > 0, left, 0.0)
        mass = full * self.most + left
        gains = (self.seen * np.maximum(at_point, at_top)).sum(-1)
        gains += full * at_most + np.maximum(at_left, 0.0)
        value = price * self.bound + gains + self.unseen * uniform
        by_share = (self.seen * (1 / self.size[:, None] - p) * (1 - q / centre)).sum(-1)
        by_share += self.unseen / self.size - mass / share
        by_price = self.bound - (self.seen * kl_terms(p, q)).sum(-1) - mass
        by_level = -(self.seen * (q - p)).sum(-1) - mass
        return value, np.stack([by_share, by_price, by_level], -1)


def _enclose(region: _KLRegion) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share and the radius of the smallest ball that is found for each row."""
    one_seen = region.unseen == region.size - 1
    share, radius = np.ones_like(region.size), np.log(region.size)
    for rows, method in ((one_seen, _one_seen), (~one_seen, _minimise)):
        if rows.any():
            share[rows], radius[rows] = method(_KLRegion(*(x[rows] for x in region)))
    return share, radius


def _one_seen(region: _KLRegion) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share and the radius if only one outcome was seen.

    The region is then Σx ≤ 1 − e^{−ε}, x_j ≤ u, in the masses x of the unseen outcomes. KL(p‖c) is
    convex there, so the farthest point is one of three: no mass, as many masses u as possible, or these
    and one more that has the rest. The distance of each is convex in w.
    """
    size, unseen, most = region.size, region.unseen, region.most
    full, left = region.unseen_masses()

    def distance(log_share: np.ndarray) -> np.ndarray:
        uniform = np.exp(log_share) / size
        seen = 1 - unseen * uniform
        nothing = -np.log1p(-unseen * uniform)
        some = kl_terms(1 - full * most, seen) + full * kl_terms(most, uniform)
        rest = kl_terms(1 - full * most - left, seen) + full * kl_terms(most, uniform)
        some += (unseen - full) * uniform
        rest += kl_terms(left, uniform) + (unseen - full - 1) * uniform
        # Without a further unseen outcome there is nothing left, and the last two are the same.
        return np.maximum(nothing, np.where(unseen > full, np.maximum(some, rest), some))

    # Golden section in log w. The best w is near the mass of the unseen outcomes: 1e-4 of it is less.
    low, high = np.log(1e-4 * most), np.zeros_like(size)
    ratio = (5**0.5 - 1) / 2
    # 60 steps shorten the interval by 3e-13.
    for _ in range(60):
        left_point, right_point = high - ratio * (high - low), low + ratio * (high - low)
        to_left = distance(left_point) < distance(right_point)
        low, high = np.where(to_left, low, left_point), np.where(to_left, right_point, high)
    middle = (low + high) / 2
    return np.exp(middle), distance(middle)


def _minimise(region: _KLRegion) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share and the radius at the smallest bound that the ellipsoid method visits."""
    size, unseen, bound = region.size, region.unseen, region.bound
    # For large n an unseen entry may have mass up to ε. A pseudo-count of nε/max(e², unseen) makes its
    # divergence about equal to that of a seen entry.
    pseudo = size * bound / np.maximum(np.exp(2), unseen)
    guess = pseudo / (1 + pseudo)
    reach = np.sqrt(np.minimum(bound, 1.0))
    scale = np.stack([guess, 1 + np.log1p(unseen) / 2, reach], -1)
    centre = np.array([1.0, 1.2, 0.0]) * np.ones_like(scale)
    widths = np.stack([4 * np.ones_like(size), 2 * np.ones_like(size), np.log(size) + 2], -1)
    shape = widths[:, :, None] ** 2 * np.eye(3)
    # The whole simplex is a ball of radius log k around the uniform row.
    best, best_share = np.log(size), np.ones_like(size)
    for _ in range(_ROUNDS):
        share, price, level = (centre * scale).T
        inside = np.stack([share > _LEAST * guess, share <= 1, price > _LEAST])
        value, slope = region.bound_and_gradient(
            np.clip(share, _LEAST * guess, 1.0), np.maximum(price, _LEAST), level
        )
        better = inside.all(0) & (value < best)
        best, best_share = np.where(better, value, best), np.where(better, share, best_share)
        # Outside the domain of the bound, cut off the side that is outside.
        for fine, side in zip(inside, ([-1.0, 0, 0], [1.0, 0, 0], [0, -1.0, 0]), strict=True):
            slope = np.where(fine[:, None], slope, side / scale)
        # One step of the ellipsoid method in three dimensions, each with its own scale.
        slope = slope * scale
        image = np.einsum("nij,nj->ni", shape, slope)
        square = np.einsum("ni,ni->n", slope, image)[:, None]
        towards = np.where(square > 0, image / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)
        centre = centre - towards / 4
        shape = 9 / 8 * (shape - towards[:, :, None] * towards[:, None, :] / 2)
    return best_share, best
