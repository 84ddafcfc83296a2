"""Sets from data: how far the true kernel may be from what was counted.

Each function takes visit counts and a confidence and gives a nominal kernel and what makes a set
around it: one that holds the true kernel, jointly over all (state, action) pairs, with at least that
confidence. The n successors counted for a pair have to be independent draws, and n settled without
looking at them: a generative model gives that, and so do the first n visits of a long trajectory.

The risk 1 − confidence is shared out evenly over the pairs that can fail (a union bound). One that was
never visited can not: its row is uniform and nature is free in it. Neither can one with a single
declared successor.

The inequalities:

- Weissman, Ordentlich, Seroussi, Verdú, Weinberger, "Inequalities for the L1 deviation of the
  empirical distribution", HP Labs 2003: P(‖p̂ − p‖₁ ≥ ε) ≤ (2^k − 2)·exp(−nε²/2).
- Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case of the
  binomial", Biometrika 1934: exact bounds on one probability.
- Agrawal, "Finite-sample concentration of the multinomial in relative entropy", IEEE Transactions on
  Information Theory 2020: P(n·KL(p̂‖p) ≥ t) ≤ e^{−t}·(et/(k − 1))^{k−1} for t > k − 1. The method of
  types, (n + k − 1 choose k − 1)·e^{−t}, bounds the same probability, better where n is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv, gammaln, xlogy

from holdfast._support.arguments import numbers_of
from holdfast.registry import imported

if TYPE_CHECKING:
    _Nominal = Any  # an (S, A, S) array or a `Kernel`
    _Maybe = ArrayLike | None

# Of the radius of a total variation ball, what is spent on giving every declared successor some mass.
_SMOOTHING_SHARE = 1e-3
# Radii are computed to better than this, relative to themselves.
_ROUNDING = 1e-6
# Of the search for the smallest KL radius: its steps, the entries that it takes at a time, and the
# least λ that it tries (and the least w, relative to its first guess).
_ROUNDS, _BATCH, _LEAST = 120, 1 << 16, 1e-3


class _Counts(NamedTuple):
    """Checked counts, as floats, with what is read from them."""

    counts: Float[np.ndarray, "S A K"]
    support: Bool[np.ndarray, "S A K"]
    successors: Any
    risk: float

    @property
    def visits(self) -> Float[np.ndarray, "S A"]:
        return self.counts.sum(-1)

    @property
    def size(self) -> Float[np.ndarray, "S A"]:
        """How many successors each row declares."""
        return self.support.sum(-1).astype(float)

    @property
    def in_doubt(self) -> Bool[np.ndarray, "S A"]:
        """The pairs that were visited and have more than one successor: those that can fail."""
        return (self.visits > 0) & (self.size > 1)

    @property
    def uniform(self) -> Float[np.ndarray, "S A K"]:
        return self.support / self.size[..., None]

    @property
    def frequencies(self) -> Float[np.ndarray, "S A K"]:
        """Counts over visits; uniform where there are none."""
        visits = self.visits[..., None]
        return np.where(visits > 0, self.counts / np.maximum(visits, 1.0), self.uniform)

    def kernel(self, rows: Float[np.ndarray, "S A K"]) -> _Nominal:
        """Rows in the form that the counts had."""
        Kernel = imported("holdfast.model:Kernel")
        return rows if self.successors is None else Kernel(self.successors, rows)


def kl_from_counts(
    counts: ArrayLike, confidence: float, successors: _Maybe = None, support: _Maybe = None
) -> tuple[_Nominal, Float[np.ndarray, "S A"]]:
    """A kernel and radii with KL(true‖kernel) ≤ radius in every row, with the confidence.

    What is known of a row with k ≥ 3 declared successors is that KL(p̂‖p) ≤ ε (Agrawal, or the method
    of types). The centre mixes a share of the uniform row into the frequencies, for a set around p̂
    itself could not reach what has not been seen; the radius bounds KL(p‖centre) over all p that are
    left; and the share is the one that makes this bound smallest. With k = 2 the exact interval of
    Clopper and Pearson takes the region's place, and the centre is that nearest to both of its ends.

    Where a pair was visited the radius is never above log k, and falls like (k + log(pairs/risk))/n,
    times log k at most where few of the declared successors were seen. Elsewhere it is infinite.
    """
    given = _checked(counts, confidence, successors, support)
    visits, size, doubtful = given.visits, given.size, given.in_doubt
    rows = given.uniform
    # A single successor needs no data: nothing can be wrong about it.
    radius = np.where(size > 1, np.inf, 0.0)
    risk = given.risk / max(int(doubtful.sum()), 1)

    several = doubtful & (size > 2)
    if several.any():
        share, found = _kl_share_and_radius(given.counts[several], size[several], risk)
        rows[several] += (1 - share)[:, None] * (given.frequencies - rows)[several]
        radius[several] = found * (1 + _ROUNDING)

    pair = doubtful & (size == 2)
    if pair.any():
        first = given.support & (np.cumsum(given.support, -1) == 1)
        seen = (given.counts * first).sum(-1)[pair]
        centre, found = _two_successors(*_clopper_pearson(seen, visits[pair], risk))
        both = np.where(first[pair], centre[:, None], (1 - centre)[:, None])
        rows[pair] = both * given.support[pair]
        radius[pair] = found * (1 + _ROUNDING)
    return given.kernel(rows), radius


def total_variation_from_counts(
    counts: ArrayLike, confidence: float, successors: _Maybe = None, support: _Maybe = None
) -> tuple[_Nominal, Float[np.ndarray, "S A"], bool]:
    """A kernel and radii with ½‖true − kernel‖₁ ≤ radius, and whether nature keeps to the support.

    Where every state may follow (a dense kernel, no support declared) the centre is the frequencies
    and the set is over the whole space. Otherwise the set has to keep within the declared successors
    and yet reach those that were never seen, so these get a little mass; the distance by which that
    moves the centre, a thousandth of the radius, is added to it. Unvisited pairs have radius 1: all
    that is declared.
    """
    given = _checked(counts, confidence, successors, support)
    visits, size, doubtful = given.visits, given.size, given.in_doubt
    within = successors is not None or not bool(given.support.all())
    risk = given.risk / max(int(doubtful.sum()), 1)
    # log(2^k − 2), for k = 1 whatever: its radius is not used.
    subsets = size * np.log(2) + np.log1p(-(2.0 ** (1 - np.maximum(size, 2.0))))
    deviation = np.sqrt((subsets - np.log(risk)) / (2 * np.maximum(visits, 1.0)))
    radius = np.where(size > 1, np.where(doubtful, np.minimum(deviation, 1.0), 1.0), 0.0)
    rows = given.frequencies
    if within:
        unseen = given.support & (rows == 0)
        # Mixing in a share w of the row that is uniform over the unseen moves the centre by w.
        share = np.where(unseen.any(-1), _SMOOTHING_SHARE * radius, 0.0)
        extra = unseen / np.maximum(unseen.sum(-1, keepdims=True), 1)
        rows = (1 - share[..., None]) * rows + share[..., None] * extra
        radius = np.minimum(radius + share, 1.0)
    return given.kernel(rows), np.minimum(radius * (1 + _ROUNDING), 1.0), within


def interval_from_counts(
    counts: ArrayLike, confidence: float, successors: _Maybe = None, support: _Maybe = None
) -> tuple[_Nominal, Float[np.ndarray, "S A K"], Float[np.ndarray, "S A K"]]:
    """A kernel and bounds with lower ≤ true ≤ upper in every entry, with the confidence.

    The bounds are Clopper and Pearson's, exact for one probability; the risk is shared out over the
    declared entries of the visited pairs. Two successors are one event, and count once. The centre is
    the frequencies, which are always inside; unvisited pairs have the bounds 0 and 1.
    """
    given = _checked(counts, confidence, successors, support)
    size, doubtful = given.size, given.in_doubt
    events = np.where(size == 2, 1.0, size)[doubtful].sum()
    entries = given.support & doubtful[..., None]
    lower = np.where(given.support & (size == 1)[..., None], 1.0, 0.0)
    upper = given.support.astype(float)
    if entries.any():
        visits = np.broadcast_to(given.visits[..., None], entries.shape)
        seen, risk = given.counts[entries], given.risk / events
        lower[entries], upper[entries] = _clopper_pearson(seen, visits[entries], risk)
    rows = given.frequencies
    return given.kernel(rows), np.minimum(lower, rows), np.maximum(upper, rows)


def _clopper_pearson(
    seen: Float[np.ndarray, " N"], visits: Float[np.ndarray, " N"], risk: float
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Bounds that miss a probability with at most this risk, half of it on either side."""
    missed = visits - seen
    lower = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), missed + 1, risk / 2), 0.0)
    upper = np.where(missed > 0, betainccinv(seen + 1, np.maximum(missed, 1.0), risk / 2), 1.0)
    return lower, upper


def _two_successors(
    lower: Float[np.ndarray, " N"], upper: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The probability as far in KL from one end of an interval as from the other, and how far.

    KL(p‖c) is convex in p, so the ends are farthest; no other centre has both of them as near.
    """
    slope = (_entropy(upper) - _entropy(lower)) / (upper - lower)
    centre = 1 / (1 + np.exp(slope))

    def distance(p: np.ndarray) -> np.ndarray:
        return _kl_terms(p, centre) + _kl_terms(1 - p, 1 - centre)

    return centre, np.maximum(distance(lower), distance(upper))


def _entropy(p: np.ndarray) -> np.ndarray:
    return -xlogy(p, p) - xlogy(1 - p, 1 - p)


def _kl_terms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a·log(a/b) − a + b, never negative and exact where a is close to b; b where a is zero."""
    excess = (a - b) / b
    some = excess > -1
    log = np.log1p(np.where(some, excess, 0.0))
    return np.where(some, b * ((1 + excess) * log - excess), b)


def _kl_share_and_radius(
    counts: Float[np.ndarray, "N K"], size: Float[np.ndarray, " N"], risk: float
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The share w of the uniform row in the centre c = (1 − w)·p̂ + w/k, and the radius around it.

    The largest KL(p‖c) over all p with KL(p̂‖p) ≤ ε is the maximum of a convex function. Lagrange
    bounds it from above, whatever λ ≥ 0 and ν are: with g(a, b) = a·log(a/b) − a + b,

        KL(p‖c) ≤ λε + Σ_j max { g(p_j, c_j) − λ·g(p̂_j, p_j) − ν·(p_j − p̂_j) : 0 ≤ p_j ≤ u_j },

    u_j the largest p_j that the region allows. Each inner maximum is at u_j, or at the one point where
    the derivative falls through zero. The bound is jointly convex in (w, λ, ν), so an ellipsoid
    shrinks onto its minimum; and it is a bound wherever that search stops.

    Arguments:
        counts: rows with at least one visit each.
        size: k, how many successors each row has, at least three, whether counted or not.
        risk: of each row's being outside.
    """
    # The order of the entries is nothing to the radius, and unseen ones are all alike.
    descending = -np.sort(-counts, axis=-1)[:, : int((counts > 0).sum(-1).max())]
    rows, back = np.unique(np.c_[size, descending], axis=0, return_inverse=True)
    step = max(1, _BATCH // rows.shape[1])
    batches = np.split(rows, range(step, len(rows), step))
    parts = [_smallest(_Region.of(batch[:, 1:], batch[:, 0], risk)) for batch in batches]
    share, radius = (np.concatenate(column) for column in zip(*parts, strict=True))
    return share[back.ravel()], radius[back.ravel()]


def _deviation(n: np.ndarray, size: np.ndarray, risk: float) -> np.ndarray:
    """A t with P(n·KL(p̂‖p) ≥ t) ≤ risk: the better of Agrawal's and the method of types'."""
    free, cost = size - 1, -np.log(risk)
    # t − free·log(e·t/free) is convex in t, so Newton from the right stays on the safe side.
    t = 3 * free + 2 * cost
    for _ in range(40):
        step = (t - free * (1 + np.log(t / free)) - cost) / (1 - free / t)
        t = np.maximum(t - step, free * (1 + 1e-9))
    types = gammaln(n + size) - gammaln(size) - gammaln(n + 1) + cost
    return np.minimum(t, types)


def _largest(p: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """The largest u with p·log(p/u) + (1 − p)·log((1 − p)/(1 − u)) ≤ bound, or a little above."""
    rest = 1 - p
    furthest = -np.expm1(-(bound + _entropy(p)) / np.where(rest > 0, rest, 1.0))
    u = np.where(rest > 0, np.minimum(furthest, p + np.sqrt(bound / 2)), 1.0)
    # The divergence is convex in u, so Newton from the right stays on the right.
    for _ in range(30):
        inside = (u < 1) & (u > p)
        v = np.where(inside, u, 0.5 * (1 + p))
        excess = _kl_terms(p, v) + _kl_terms(rest, np.where(v < 1, 1 - v, 1.0)) - bound
        move = excess * v * (1 - v) / np.where(v > p, v - p, 1.0)
        u = np.where(inside & (excess > 0), np.maximum(v - move, p), u)
    return np.minimum(u, 1.0)


class _Region(NamedTuple):
    """Rows p with KL(p̂‖p) ≤ ε. Columns are the seen entries; where a row has fewer, p̂ is zero."""

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
        # Ones in place of what is not there: they are multiplied by zero in the end.
        p = np.where(seen, counts / visits[:, None], 1.0)
        top = np.where(seen, _largest(p, bound[:, None]), 1.0)
        return cls(p, top, seen.astype(float), size, size - seen.sum(-1), bound)

    def bound_and_gradient(
        self, share: np.ndarray, price: np.ndarray, level: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The bound at (w, λ, ν), and its slopes, a column each."""
        p, top, uniform = self.p, self.top, share / self.size
        centre = (1 - share)[:, None] * p + uniform[:, None]
        each, tilt = price[:, None], level[:, None]
        # With r = λ·p̂/p the derivative vanishes where r − log r = h. The maximum is the root r > 1.
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
        # Unseen entries: the gain is convex in their mass, so it is all on one of them, or none is.
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


def _smallest(region: _Region) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The share and the radius at the smallest bound that the search comes across."""
    size, unseen, bound = region.size, region.unseen, region.bound
    # Where n is large: an unseen entry may have mass up to ε, and with a pseudo-count of
    # nε/max(e², unseen) reaching there is about as far as reaching for any of the seen ones.
    pseudo = size * bound / np.maximum(np.exp(2), unseen)
    guess = pseudo / (1 + pseudo)
    # One seen entry has only the unseen ones to trade with, so ν is of another order there.
    reach = np.where(unseen == size - 1, 1.0, np.sqrt(np.minimum(bound, 1.0)))
    scale = np.stack([guess, 1 + np.log1p(unseen) / 2, reach], -1)
    centre = np.array([1.0, 1.2, 0.0]) * np.ones_like(scale)
    widths = np.stack([4 * np.ones_like(size), 2 * np.ones_like(size), np.log(size) + 2], -1)
    shape = widths[:, :, None] ** 2 * np.eye(3)
    # The whole simplex around the uniform row is always an answer.
    best, best_share = np.log(size), np.ones_like(size)
    for _ in range(_ROUNDS):
        share, price, level = (centre * scale).T
        inside = np.stack([share > _LEAST * guess, share <= 1, price > _LEAST])
        value, slope = region.bound_and_gradient(
            np.clip(share, _LEAST * guess, 1.0), np.maximum(price, _LEAST), level
        )
        better = inside.all(0) & (value < best)
        best, best_share = np.where(better, value, best), np.where(better, share, best_share)
        # Outside of where the bound holds, cut off that side.
        for fine, side in zip(inside, ([-1.0, 0, 0], [1.0, 0, 0], [0, -1.0, 0]), strict=True):
            slope = np.where(fine[:, None], slope, side / scale)
        # One step of the ellipsoid method in three dimensions, each in its own scale.
        slope = slope * scale
        image = np.einsum("nij,nj->ni", shape, slope)
        square = np.einsum("ni,ni->n", slope, image)[:, None]
        towards = np.where(square > 0, image / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)
        centre = centre - towards / 4
        shape = 9 / 8 * (shape - towards[:, :, None] * towards[:, None, :] / 2)
    return best_share, best


def _checked(counts: ArrayLike, confidence: float, successors: _Maybe, support: _Maybe) -> _Counts:
    """The arguments as arrays, or a ValueError that says what is wrong with which."""
    Kernel = imported("holdfast.model:Kernel")
    level = numbers_of("confidence", confidence)
    if level.shape != () or not 0 < level < 1:
        raise ValueError(
            f"confidence: expected a number in (0, 1), such as 0.95, got {confidence!r}"
        )
    counts = numbers_of("counts", counts)
    shape = counts.shape
    if len(shape) != 3 or 0 in shape or (successors is None and shape[0] != shape[2]):
        form = "states); for successor lists give successors too" if successors is None else "K)"
        raise ValueError(f"counts: got shape {shape}, expected (states, actions, {form}")
    wrong = ~((counts >= 0) & (counts < np.inf) & (np.floor(counts) == counts))
    if wrong.any():
        s, a, j = np.argwhere(wrong)[0]
        found = f"{counts[s, a, j]} at (state {s}, action {a}), entry {j}"
        raise ValueError(f"counts: expected whole numbers of at least 0, got {found}")
    for name, given in (("successors", successors), ("support", support)):
        if given is not None and np.shape(given) != shape:
            raise ValueError(
                f"{name}: shape {np.shape(given)} differs from that of counts, {shape}"
            )
    if successors is not None:
        successors = Kernel(np.asarray(successors), np.full(shape, 1 / shape[2])).successors
    declared = np.ones(shape, bool) if support is None else np.asarray(support)
    if declared.dtype != bool:
        raise ValueError(f"support: expected true or false for every entry, got {declared.dtype}")
    if not declared.any(-1).all():
        s, a = np.argwhere(~declared.any(-1))[0]
        raise ValueError(f"support: (state {s}, action {a}) has no successor at all")
    excluded = ~declared & (counts > 0)
    if excluded.any():
        s, a, j = np.argwhere(excluded)[0]
        seen = f"(state {s}, action {a}), seen {counts[s, a, j]:g} times"
        raise ValueError(f"support: excludes entry {j} of {seen}")
    return _Counts(counts, declared, successors, 1 - float(level))
