"""Sets from data: the distance of the true kernel from the counted one, with a confidence.

`from_counts` takes visit counts and returns a nominal kernel and a set around it. The set contains the
true kernel, jointly over all (state, action) pairs, with at least the given confidence. The n
successors counted for a pair must be independent draws, and n must not depend on them. A generative
model satisfies this, and so do the first n visits of a long trajectory.

The risk 1 − confidence is divided evenly over the pairs that can fail (a union bound). A pair without a
visit cannot fail, because nature is free in its row; neither can a pair with one declared successor.

The inequalities:

- Weissman, Ordentlich, Seroussi, Verdú, Weinberger, "Inequalities for the L1 deviation of the
  empirical distribution", HP Labs 2003: P(‖p̂ − p‖₁ ≥ ε) ≤ (2^k − 2)·exp(−nε²/2).
- Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case of the
  binomial", Biometrika 1934: exact bounds on one probability.
- Agrawal, "Finite-sample concentration of the multinomial in relative entropy", IEEE Transactions on
  Information Theory 2020, and the method of types: bounds on KL(p̂‖p), see `kl_radius`.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from holdfast._support.arguments import numbers_of
from holdfast.registry import imported
from holdfast.uncertainty.kl_radius import smallest_ball, two_successors
from holdfast.uncertainty.protocol import RespondingSet

Estimate: TypeAlias = Float[np.ndarray, "S A K"]

# Part of the radius of a total variation ball that pays for giving unseen successors some mass. A
# thousandth makes the ball hardly larger, and the mass is far from rounding error.
_SMOOTHING_SHARE = 1e-3
# Radii are enlarged by this share. It covers the rounding error of the searches, below 1e-9.
_ROUNDING = 1e-6


class FromCounts(RespondingSet):
    """A set that can be made from transition counts."""

    @classmethod
    def from_counts(
        cls,
        counts: ArrayLike,
        *,
        confidence: float = 0.95,
        successors: ArrayLike | None = None,
        support: ArrayLike | None = None,
    ) -> tuple[Any, Self]:
        """Return a nominal kernel, and a set around it that contains the true kernel.

        The confidence holds jointly over all (s, a). The numbers of visits must not depend on the
        observed successors. A pair without a visit gets a uniform row in which nature is free.

        - `KL` uses Agrawal's bound on KL(p̂‖p) or the method of types (with two successors, the
          interval of Clopper and Pearson), and the largest KL(p‖centre) there. The centre is a
          smoothed estimate, because a ball around raw frequencies excludes all unseen successors.
        - `TotalVariation` uses the inequality of Weissman and others. If some states are not possible
          successors, the set keeps the support, and unseen successors get a little mass.
        - `Interval` uses the exact binomial intervals of Clopper and Pearson with Bonferroni's
          correction.

        Arguments:
            counts: (S, A, S) numbers of observed transitions, or (S, A, K) with `successors`.
            confidence: a number in (0, 1).
            successors: (S, A, K), the state that each column counts. The result is then a `Kernel`.
            support: booleans in the shape of the counts, the possible transitions; default: all. The
                fewer are possible, the smaller the set.

        Example:
            >>> import holdfast as hf
            >>> seen = [[[40, 10], [0, 0]], [[3, 7], [25, 25]]]
            >>> kernel, ball = hf.KL.from_counts(seen, confidence=0.95)
            >>> print(kernel[0, 0].round(2), ball.radius.round(2))
            [0.79 0.21] [[0.06  inf]
             [0.27 0.06]]
        """
        given = _checked(counts, confidence, successors, support)
        rows, found = cls._around(given)
        kernel = imported("holdfast.model:Kernel")
        return rows if given.successors is None else kernel(given.successors, rows), found

    @classmethod
    @abc.abstractmethod
    def _around(cls, given: VisitCounts) -> tuple[Estimate, Self]:
        """Return nominal rows, and the set around them."""


class VisitCounts(NamedTuple):
    """Checked counts.

    Attributes:
        counts: (S, A, K) visits, as floats.
        support: (S, A, K), the declared successors.
        successors: (S, A, K) states, or None for a dense kernel.
        risk: one minus the confidence.
    """

    counts: Float[np.ndarray, "S A K"]
    support: Bool[np.ndarray, "S A K"]
    successors: Any
    risk: float

    @property
    def visits(self) -> Float[np.ndarray, "S A"]:
        """Number of visits of each pair."""
        return self.counts.sum(-1)

    @property
    def size(self) -> Float[np.ndarray, "S A"]:
        """Number of declared successors of each pair."""
        return self.support.sum(-1).astype(float)

    @property
    def in_doubt(self) -> Bool[np.ndarray, "S A"]:
        """Whether a pair can fail: it was visited and has more than one successor."""
        return (self.visits > 0) & (self.size > 1)

    @property
    def uniform(self) -> Estimate:
        """Uniform rows on the declared successors."""
        return self.support / self.size[..., None]

    @property
    def frequencies(self) -> Estimate:
        """Counts divided by visits; uniform rows for pairs without a visit."""
        visits = self.visits[..., None]
        return np.where(visits > 0, self.counts / np.maximum(visits, 1.0), self.uniform)


def kl_around(given: VisitCounts) -> tuple[Estimate, Float[np.ndarray, "S A"]]:
    """Return rows and radii with KL(true‖row) ≤ radius.

    A row with k ≥ 3 declared successors mixes a share of the uniform row into the frequencies; the
    share is the one with the smallest radius (`kl_radius`). With k = 2 the interval of Clopper and
    Pearson is exact, and the centre has the same divergence from both of its ends.

    The radius of a visited pair is at most log k, and decreases like (k + log(pairs/risk))/n, times at
    most log k if few of the declared successors were seen. Other radii are infinite.
    """
    visits, size, doubtful = given.visits, given.size, given.in_doubt
    rows = given.uniform
    # A pair with one successor is known without data.
    radius = np.where(size > 1, np.inf, 0.0)
    risk = given.risk / max(int(doubtful.sum()), 1)

    several = doubtful & (size > 2)
    if several.any():
        share, found = smallest_ball(given.counts[several], size[several], risk)
        rows[several] += (1 - share)[:, None] * (given.frequencies - rows)[several]
        radius[several] = found * (1 + _ROUNDING)

    pair = doubtful & (size == 2)
    if pair.any():
        first = given.support & (np.cumsum(given.support, -1) == 1)
        seen = (given.counts * first).sum(-1)[pair]
        centre, found = two_successors(*_clopper_pearson(seen, visits[pair], risk))
        both = np.where(first[pair], centre[:, None], (1 - centre)[:, None])
        rows[pair] = both * given.support[pair]
        radius[pair] = found * (1 + _ROUNDING)
    return rows, radius


def total_variation_around(
    given: VisitCounts,
) -> tuple[Estimate, Float[np.ndarray, "S A"], bool]:
    """Return rows and radii with ½‖true − row‖₁ ≤ radius, and whether the set keeps the support.

    If every state is a possible successor, the rows are the frequencies and the set is over the whole
    space. Otherwise the set keeps the declared successors and must contain the unseen ones, so these
    get a little mass; the radius grows by the distance that this moves the row. Pairs without a visit
    have radius 1.
    """
    visits, size, doubtful = given.visits, given.size, given.in_doubt
    within = given.successors is not None or not bool(given.support.all())
    risk = given.risk / max(int(doubtful.sum()), 1)
    # log(2^k − 2). The radius of rows with k = 1 is not used.
    subsets = size * np.log(2) + np.log1p(-(2.0 ** (1 - np.maximum(size, 2.0))))
    deviation = np.sqrt((subsets - np.log(risk)) / (2 * np.maximum(visits, 1.0)))
    radius = np.where(size > 1, np.where(doubtful, np.minimum(deviation, 1.0), 1.0), 0.0)
    rows = given.frequencies
    if within:
        unseen = given.support & (rows == 0)
        # Mixing in a share w of a row on the unseen successors moves the centre by w.
        share = np.where(unseen.any(-1), _SMOOTHING_SHARE * radius, 0.0)
        extra = unseen / np.maximum(unseen.sum(-1, keepdims=True), 1)
        rows = (1 - share[..., None]) * rows + share[..., None] * extra
        radius = np.minimum(radius + share, 1.0)
    return rows, np.minimum(radius * (1 + _ROUNDING), 1.0), within


def interval_around(given: VisitCounts) -> tuple[Estimate, Estimate, Estimate]:
    """Return rows and bounds with lower ≤ true ≤ upper in every entry.

    The bounds are Clopper and Pearson's, exact for one probability. The risk is divided over the
    declared entries of the visited pairs; two successors are one event and count once. The rows are
    the frequencies, which always lie inside. Pairs without a visit have bounds 0 and 1.
    """
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
    return rows, np.minimum(lower, rows), np.maximum(upper, rows)


def _clopper_pearson(
    seen: Float[np.ndarray, " N"], visits: Float[np.ndarray, " N"], risk: float
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return bounds that exclude the true probability with at most this risk, half on either side."""
    missed = visits - seen
    lower = np.where(seen > 0, betaincinv(np.maximum(seen, 1.0), missed + 1, risk / 2), 0.0)
    upper = np.where(missed > 0, betainccinv(seen + 1, np.maximum(missed, 1.0), risk / 2), 1.0)
    return lower, upper


def _checked(
    counts: ArrayLike, confidence: float, successors: ArrayLike | None, support: ArrayLike | None
) -> VisitCounts:
    """Return the arguments as arrays, or raise a ValueError that names the wrong one."""
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
        uniform = np.full(shape, 1 / shape[2])
        successors = imported("holdfast.model:Kernel")(np.asarray(successors), uniform).successors
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
    return VisitCounts(counts, declared, successors, 1 - float(level))
