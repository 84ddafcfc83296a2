"""Sets from data: the distance of the true kernel from the counted one, with a confidence.

`from_counts` takes visit counts and returns a nominal kernel and a set around it. The set contains the
true kernel, jointly over all (state, action) pairs, with at least the given confidence. The successors
of a pair must be independent draws from its row. There are two kinds of sampling:

- `sampling="fixed"`: the numbers of visits do not depend on the successors observed. A generative model
  with a fixed number of draws satisfies this, and so do the first n visits of each pair.
- `sampling="adaptive"`: they may depend on them in any way. Every log of a running system is of this
  kind, because the successors decide which pairs are visited next, and people decide when to stop.

The risk 1 − confidence is divided evenly over the pairs that can fail (a union bound). A pair with one
declared successor cannot fail. With fixed sampling neither can a pair without a visit, because its set
contains every row; with adaptive sampling which pairs are visited may depend on the outcomes, and all
pairs share the risk.

Why a union bound over pairs suffices for adaptive sampling: draw, before anything is observed, an
infinite sequence of successors for each pair; visit n of a pair uses entry n. However visits are
decided, the counts of a pair are those of the first n entries of its sequence, for some random n. The
limits of `tail_bounds` hold for all n at once, except with the risk of that pair.

The inequalities are described in `tail_bounds`; `kl_radius` and `tv_radius` turn them into radii.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Self, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_choice, numbers_of
from holdfast.registry import imported
from holdfast.uncertainty.kl_radius import smallest_ball, two_successors
from holdfast.uncertainty.responding import RespondingSet
from holdfast.uncertainty.tail_bounds import Sampling, lower_limits, upper_limits
from holdfast.uncertainty.tv_radius import largest_distance

Estimate: TypeAlias = Float[np.ndarray, "S A K"]

# Part of the radius of a total variation ball that is used to give unseen successors some mass. A
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
        sampling: Sampling = "fixed",
    ) -> tuple[Any, Self]:
        """Return a nominal kernel, and a set around it that contains the true kernel.

        The confidence holds jointly over all (s, a). The successors of a pair must be independent draws
        from its row. For a pair without a visit every row over its possible successors is in the set;
        the nominal row is uniform.

        With `sampling="fixed"` the numbers of visits must not depend on the observed successors:

        - `KL` uses the bound of Guo and Richardson on KL(p̂‖p) with limits on single probabilities (with
          two successors, the interval of Clopper and Pearson), and the largest KL(p‖centre) there. The
          centre is a smoothed estimate, because a ball around raw frequencies excludes all unseen
          successors.
        - `TotalVariation` uses exact binomial limits on all subsets of up to five successors; for more
          successors the smaller of Weissman's inequality and the intervals of Clopper and Pearson. If
          some states are not possible successors, the set keeps the support, and unseen successors get
          a little mass.
        - `Interval` uses the exact binomial intervals of Clopper and Pearson with Bonferroni's
          correction.

        With `sampling="adaptive"` the numbers of visits may depend on the observed successors, as in
        the log of a running system, or if sampling stops when the numbers look good. Limits from a
        mixture martingale (Ville's inequality), which hold for all numbers of visits at once, take the
        place of those above. Pairs without a visit share the risk too. The sets are larger: with four
        successors by 8 to 20 % at a hundred visits, and by 45 to 95 % at a million.

        Arguments:
            counts: (S, A, S) numbers of observed transitions, or (S, A, K) with `successors`.
            confidence: a number in (0, 1).
            successors: (S, A, K), the state that each column counts. The result is then a `Kernel`.
            support: booleans in the shape of the counts, the possible transitions; default: all. The
                fewer are possible, the smaller the set. It must not be read off the same data.
            sampling: "fixed" or "adaptive", how the numbers of visits came about.

        Example:
            >>> import holdfast as hf
            >>> seen = [[[40, 10], [0, 0]], [[3, 7], [25, 25]]]
            >>> kernel, ball = hf.KL.from_counts(seen, confidence=0.95)
            >>> print(kernel[0, 0].round(2), ball.radius.round(2))
            [0.79 0.21] [[0.06  inf]
             [0.27 0.06]]
        """
        given = _checked(counts, confidence, successors, support, sampling)
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
        sampling: whether the visits may depend on the outcomes.
    """

    counts: Float[np.ndarray, "S A K"]
    support: Bool[np.ndarray, "S A K"]
    successors: Any
    risk: float
    sampling: Sampling

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
        """Whether a pair needs a limit: it was visited and has more than one successor."""
        return (self.visits > 0) & (self.size > 1)

    @property
    def at_risk(self) -> Bool[np.ndarray, "S A"]:
        """Whether a pair could have failed, as far as is known before the outcomes."""
        return self.size > 1 if self.sampling == "adaptive" else self.in_doubt

    @property
    def risk_of_pair(self) -> float:
        """Risk of each pair that could have failed."""
        return self.risk / max(int(self.at_risk.sum()), 1)

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
    share is the one with the smallest radius (`kl_radius`). With k = 2 the limits on one probability
    are an interval, and the centre has the same divergence from both of its ends.

    The radius of a visited pair is at most log k. With fixed sampling it decreases like
    (k + log(pairs/risk))/n, times at most log k if few of the declared successors were seen; adaptive
    sampling adds up to ½·k·log n to the numerator. Other radii are infinite.
    """
    visits, size, doubtful = given.visits, given.size, given.in_doubt
    rows = given.uniform
    # A pair with one successor is known without data.
    radius = np.where(size > 1, np.inf, 0.0)
    risk, sampling = given.risk_of_pair, given.sampling

    several = doubtful & (size > 2)
    if several.any():
        share, found = smallest_ball(given.counts[several], size[several], risk, sampling)
        rows[several] += (1 - share)[:, None] * (given.frequencies - rows)[several]
        radius[several] = found * (1 + _ROUNDING)

    pair = doubtful & (size == 2)
    if pair.any():
        first = given.support & (np.cumsum(given.support, -1) == 1)
        question = (given.counts * first).sum(-1)[pair], visits[pair], risk, sampling
        centre, found = two_successors(lower_limits(*question), upper_limits(*question))
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
    size, doubtful = given.size, given.in_doubt
    within = given.successors is not None or not bool(given.support.all())
    radius = np.where(size > 1, 1.0, 0.0)
    # Declared successors first, so that rows with the same number of them have the same columns.
    order = np.argsort(~given.support, axis=-1, kind="stable")
    declared_first = np.take_along_axis(given.counts, order, -1)
    for width in np.unique(size[doubtful]):
        rows = doubtful & (size == width)
        counts = declared_first[rows][:, : int(width)]
        radius[rows] = largest_distance(counts, given.risk_of_pair, given.sampling)
    radius = np.minimum(radius, 1.0)
    centre = given.frequencies
    if within:
        unseen = given.support & (centre == 0)
        # Mixing in a share w of a row on the unseen successors moves the centre by w.
        share = np.where(unseen.any(-1), _SMOOTHING_SHARE * radius, 0.0)
        extra = unseen / np.maximum(unseen.sum(-1, keepdims=True), 1)
        centre = (1 - share[..., None]) * centre + share[..., None] * extra
        radius = radius + share
    return centre, np.minimum(radius * (1 + _ROUNDING), 1.0), within


def interval_around(given: VisitCounts) -> tuple[Estimate, Estimate, Estimate]:
    """Return rows and bounds with lower ≤ true ≤ upper in every entry.

    The limits are those on one probability (`tail_bounds`): with fixed sampling Clopper and Pearson's,
    which are exact. The risk is divided over the declared entries of the pairs that can fail; two
    successors are one event and count once. The rows are the frequencies, which always lie inside.
    Pairs without a visit have bounds 0 and 1.
    """
    size = given.size
    events = np.where(size == 2, 1.0, size)[given.at_risk].sum()
    entries = given.support & given.in_doubt[..., None]
    lower = np.where(given.support & (size == 1)[..., None], 1.0, 0.0)
    upper = given.support.astype(float)
    if entries.any():
        visits = np.broadcast_to(given.visits[..., None], entries.shape)[entries]
        question = given.counts[entries], visits, given.risk / events, given.sampling
        lower[entries], upper[entries] = lower_limits(*question), upper_limits(*question)
    rows = given.frequencies
    return rows, np.minimum(lower, rows), np.maximum(upper, rows)


def _checked(
    counts: ArrayLike,
    confidence: float,
    successors: ArrayLike | None,
    support: ArrayLike | None,
    sampling: Sampling,
) -> VisitCounts:
    """Return the arguments as arrays, or raise a ValueError that names the wrong one."""
    check_choice("sampling", sampling, get_args(Sampling))
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
    return VisitCounts(counts, declared, successors, 1 - float(level), sampling)
