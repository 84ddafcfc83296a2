"""The smallest KL ball that contains the true distribution, given counts.

For counts of n independent draws from p, with frequencies p̂ over k outcomes, Agrawal,
"Finite-sample concentration of the multinomial in relative entropy", IEEE Transactions on Information
Theory 2020, shows P(n·KL(p̂‖p) ≥ t) ≤ e^{−t}·(et/(k − 1))^{k−1} for t > k − 1. The method of types gives
(n + k − 1 choose k − 1)·e^{−t}, which is smaller for small n. Both say that p lies in a region
KL(p̂‖p) ≤ ε. `smallest_ball` encloses this region in a ball KL(p‖c) ≤ radius.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, lambertw, xlogy

# Steps of the ellipsoid method. Each shrinks the volume by a factor 0.85 in three dimensions, so 120
# steps reduce it by 1e-9.
_ROUNDS = 120
# Entries per batch: 512 KiB per array, which stays in the cache of one core.
_BATCH = 1 << 16
# Smallest λ, and smallest w relative to its first guess. The optimum is at λ near one and w near the
# guess; the bound is not defined at zero.
_LEAST = 1e-3


def smallest_ball(
    counts: Float[np.ndarray, "N K"], size: Float[np.ndarray, " N"], risk: float
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share w of the uniform row in the centre c = (1 − w)·p̂ + w/k, and the radius.

    The largest KL(p‖c) over all p with KL(p̂‖p) ≤ ε is the maximum of a convex function. Lagrangian
    duality bounds it from above for every λ ≥ 0 and ν: with g(a, b) = a·log(a/b) − a + b,

        KL(p‖c) ≤ λε + Σ_j max { g(p_j, c_j) − λ·g(p̂_j, p_j) − ν·(p_j − p̂_j) : 0 ≤ p_j ≤ u_j },

    where u_j is the largest p_j in the region. Each inner maximum is at u_j, or at the one point where
    the derivative changes from positive to negative. The bound is jointly convex in (w, λ, ν), and the
    ellipsoid method minimises it. It is valid wherever the search stops.

    Arguments:
        counts: rows with at least one visit each.
        size: k, the number of possible outcomes of each row, at least three.
        risk: probability that a row lies outside its ball.
    """
    # The radius does not depend on the order of the entries, and all unseen entries are alike.
    descending = -np.sort(-counts, axis=-1)[:, : int((counts > 0).sum(-1).max())]
    rows, back = np.unique(np.c_[size, descending], axis=0, return_inverse=True)
    step = max(1, _BATCH // rows.shape[1])
    batches = np.split(rows, range(step, len(rows), step))
    parts = [_minimise(_KLRegion.of(batch[:, 1:], batch[:, 0], risk)) for batch in batches]
    share, radius = (np.concatenate(column) for column in zip(*parts, strict=True))
    return share[back.ravel()], radius[back.ravel()]


def two_successors(
    lower: Float[np.ndarray, " N"], upper: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the probability with equal KL from both ends of an interval, and that divergence.

    KL(p‖c) is convex in p, so the ends are farthest from every centre.
    """
    slope = (_entropy(upper) - _entropy(lower)) / (upper - lower)
    centre = 1 / (1 + np.exp(slope))

    def distance(p: np.ndarray) -> np.ndarray:
        return _kl_terms(p, centre) + _kl_terms(1 - p, 1 - centre)

    return centre, np.maximum(distance(lower), distance(upper))


def _entropy(p: np.ndarray) -> np.ndarray:
    return -xlogy(p, p) - xlogy(1 - p, 1 - p)


def _kl_terms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a·log(a/b) − a + b, non-negative and exact for a near b; b for a = 0."""
    excess = (a - b) / b
    some = excess > -1
    log = np.log1p(np.where(some, excess, 0.0))
    return np.where(some, b * ((1 + excess) * log - excess), b)


def _deviation(n: np.ndarray, size: np.ndarray, risk: float) -> np.ndarray:
    """Return a t with P(n·KL(p̂‖p) ≥ t) ≤ risk, by the better of the two inequalities."""
    free, cost = size - 1, -np.log(risk)
    # Agrawal's bound equals the risk at t/free − log(t/free) = 1 + cost/free, t > free.
    # At t = free the equation is singular and SciPy returns NaN; `fmax` stays above by 1e-9 there.
    agrawal = free * np.fmax(-lambertw(-np.exp(-1 - cost / free), -1).real, 1 + 1e-9)
    types = gammaln(n + size) - gammaln(size) - gammaln(n + 1) + cost
    return np.minimum(agrawal, types)


def _largest(p: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Return the largest u with p·log(p/u) + (1 − p)·log((1 − p)/(1 − u)) ≤ bound, or slightly more."""
    rest = 1 - p
    furthest = -np.expm1(-(bound + _entropy(p)) / np.where(rest > 0, rest, 1.0))
    u = np.where(rest > 0, np.minimum(furthest, p + np.sqrt(bound / 2)), 1.0)
    # The divergence is convex in u, so Newton's method from the right stays on the right. It converges
    # quadratically; 30 steps are more than any float64 needs.
    for _ in range(30):
        inside = (u < 1) & (u > p)
        v = np.where(inside, u, 0.5 * (1 + p))
        excess = _kl_terms(p, v) + _kl_terms(rest, np.where(v < 1, 1 - v, 1.0)) - bound
        move = excess * v * (1 - v) / np.where(v > p, v - p, 1.0)
        u = np.where(inside & (excess > 0), np.maximum(v - move, p), u)
    return np.minimum(u, 1.0)


class _KLRegion(NamedTuple):
    """The rows p with KL(p̂‖p) ≤ ε. Columns are the seen entries; shorter rows are filled up.

    Attributes:
        p: frequencies p̂, one in filled places.
        top: the largest p_j in the region.
        seen: one for a seen entry, zero in filled places.
        size: number of possible outcomes.
        unseen: number of outcomes that were not seen.
        bound: ε.
    """

    p: Float[np.ndarray, "N M"]
    top: Float[np.ndarray, "N M"]
    seen: Float[np.ndarray, "N M"]
    size: Float[np.ndarray, " N"]
    unseen: Float[np.ndarray, " N"]
    bound: Float[np.ndarray, " N"]

    @classmethod
    def of(cls, counts: np.ndarray, size: np.ndarray, risk: float) -> Self:
        visits = counts.sum(-1)
        seen = counts > 0
        bound = _deviation(visits, size, risk) / visits
        # Filled places have value one and are multiplied by seen = 0 in all sums.
        p = np.where(seen, counts / visits[:, None], 1.0)
        top = np.where(seen, _largest(p, bound[:, None]), 1.0)
        return cls(p, top, seen.astype(float), size, size - seen.sum(-1), bound)

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
            return _kl_terms(q, centre) - each * _kl_terms(p, q) - tilt * (q - p)

        at_point, at_top = gain(point), gain(top)
        q = np.where(at_top > at_point, top, point)
        # The gain is convex in the mass of the unseen entries: one of them has all of it, or none has
        # any.
        most = -np.expm1(-self.bound)
        all_on_one = _kl_terms(most, uniform) - uniform - (price + level) * most
        some = (self.unseen > 0) & (all_on_one > 0)
        mass = np.where(some, most, 0.0)
        gains = (self.seen * np.maximum(at_point, at_top)).sum(-1) + np.where(some, all_on_one, 0.0)
        value = price * self.bound + gains + self.unseen * uniform
        by_share = (self.seen * (1 / self.size[:, None] - p) * (1 - q / centre)).sum(-1)
        by_share += self.unseen / self.size - mass / share
        by_price = self.bound - (self.seen * _kl_terms(p, q)).sum(-1) - mass
        by_level = -(self.seen * (q - p)).sum(-1) - mass
        return value, np.stack([by_share, by_price, by_level], -1)


def _minimise(region: _KLRegion) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return the share and the radius at the smallest bound that the ellipsoid method visits."""
    size, unseen, bound = region.size, region.unseen, region.bound
    # For large n an unseen entry may have mass up to ε. A pseudo-count of nε/max(e², unseen) makes its
    # divergence about equal to that of a seen entry.
    pseudo = size * bound / np.maximum(np.exp(2), unseen)
    guess = pseudo / (1 + pseudo)
    # With one seen entry all mass comes from the unseen ones, so ν is of order one.
    reach = np.where(unseen == size - 1, 1.0, np.sqrt(np.minimum(bound, 1.0)))
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
