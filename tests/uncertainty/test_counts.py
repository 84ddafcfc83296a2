"""Sets from counts: coverage, by enumeration and by simulation; tightness; invariants; bad input."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from holdfast.model import Kernel, RobustCMDP
from holdfast.uncertainty import KL, Interval, TotalVariation
from holdfast.uncertainty.kl_radius import _KLRegion


def kl_from_counts(counts, confidence, successors=None, support=None, sampling="fixed"):
    kernel, ball = KL.from_counts(
        counts, confidence=confidence, successors=successors, support=support, sampling=sampling
    )
    return kernel, ball.radius


def total_variation_from_counts(
    counts, confidence, successors=None, support=None, sampling="fixed"
):
    kernel, ball = TotalVariation.from_counts(
        counts, confidence=confidence, successors=successors, support=support, sampling=sampling
    )
    return kernel, ball.radius, ball.within_support


def interval_from_counts(counts, confidence, successors=None, support=None, sampling="fixed"):
    kernel, box = Interval.from_counts(
        counts, confidence=confidence, successors=successors, support=support, sampling=sampling
    )
    return kernel, box.lower, box.upper


MAKERS = [kl_from_counts, total_variation_from_counts, interval_from_counts]
every_maker = pytest.mark.parametrize("make", MAKERS)
both_kinds = pytest.mark.parametrize("sampling", ["fixed", "adaptive"])
seeds = st.integers(0, 2**32 - 1)
kinds = st.sampled_from(["fixed", "adaptive"])
# Nothing is gained by shrinking a seed.
light = settings(max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate])


def divergence(q, p):
    """KL(q‖p), row by row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(q > 0, q * np.log(q / p), 0.0).sum(-1)


def of_rows(make, counts, confidence=0.95, support=None, sampling="fixed"):
    """A maker's answer for rows of counts as lists: the nominal rows, and the rest, a row each."""
    counts = np.asarray(counts)[:, None]
    support = None if support is None else np.asarray(support)[:, None]
    kernel, *rest = make(counts, confidence, np.zeros(counts.shape, int), support, sampling)
    return kernel.probabilities[:, 0], *(x[:, 0] if np.ndim(x) else x for x in rest)


def every_outcome(n, k):
    """All counts of n draws over k successors."""
    bars = itertools.combinations(range(n + k - 1), k - 1)
    return np.array([np.diff([-1, *b, n + k - 1]) - 1 for b in bars])


def members(true, answers):
    """Whether the true rows are in the KL, total variation and interval sets, by their definitions."""
    (c, r), (f, radius, _), (_, lower, upper) = answers
    return (
        divergence(true, c) <= r,
        np.abs(true - f).sum(-1) / 2 <= radius,
        ((lower <= true) & (true <= upper)).all(-1),
    )


def some_rows(k, steps):
    """A grid of distributions, denser near the boundary of the simplex."""
    near = np.concatenate([[0.0, 1e-6, 1e-3, 0.02], np.linspace(0.05, 1, steps)])
    rows = np.array([p for p in itertools.product(near, repeat=k - 1) if sum(p) <= 1])
    rows = np.maximum(np.c_[rows, 1 - rows.sum(-1)], 0)
    return rows / rows.sum(-1, keepdims=True)


# --- coverage


@pytest.mark.parametrize(
    ("n", "k", "risk"), [(1, 3, 0.1), (5, 3, 0.04), (40, 2, 0.02), (12, 3, 0.01)]
)
def test_coverage_summed_over_every_outcome(n, k, risk):
    """Exact: the probability of all outcomes whose set has the true row, for a grid of true rows."""
    outcomes = every_outcome(n, k)
    # As many pairs as outcomes, so that each has this risk to itself.
    answers = [of_rows(make, outcomes, 1 - risk * len(outcomes)) for make in MAKERS]
    for true in some_rows(k, 20):
        chance = stats.multinomial(n, true).pmf(outcomes)
        for inside in members(true, answers):
            assert chance[inside].sum() >= 1 - risk - 1e-12, true


TRUE_KERNELS = {
    "spread": np.random.default_rng(0).dirichlet(np.ones(5), (5, 2)),
    "tiny": np.random.default_rng(1).dirichlet(np.full(5, 0.05), (5, 2)),
    "zeros": np.broadcast_to([0.7, 0.3, 0.0, 0.0, 0.0], (5, 2, 5)),
}


CASES = [(name, n, "fixed") for name in TRUE_KERNELS for n in (4, 60)]


@pytest.mark.parametrize(("name", "n", "sampling"), [*CASES, ("tiny", 60, "adaptive")])
def test_all_pairs_are_covered_at_once(name, n, sampling):
    """By the sets' own `contains`, with different visits for every pair, one of them none."""
    true, rng, trials, confidence = TRUE_KERNELS[name], np.random.default_rng(7), 20, 0.8
    hits = np.zeros(3)
    for _ in range(trials):
        visits = rng.integers(n // 2, 2 * n, (5, 2))
        visits[2, 1] = 0
        counts = rng.multinomial(visits, true)
        answers = [make(counts, confidence, sampling=sampling) for make in MAKERS]
        (p, radius), (frequencies, distance, within), (_, lower, upper) = answers
        near = TotalVariation(distance, within_support=within).contains(frequencies, true)
        between = Interval(lower, upper).contains(frequencies, true)
        inside = [KL(radius).contains(p, true), near, between]
        np.testing.assert_array_equal(inside, members(true, answers))
        hits += [rows.all() for rows in inside]
    error = math.sqrt(confidence * (1 - confidence) / trials)
    assert (hits / trials >= confidence - 2 * error).all()


def test_the_bounds_on_probabilities_are_exact():
    """At its own ends an interval's tails have the risk that they were given."""
    counts = np.array([[3, 5, 12], [0, 1, 999], [20, 0, 0]])
    _, lower, upper = of_rows(interval_from_counts, counts, 0.91)
    tail, n = 0.09 / 9 / 2, counts.sum(-1, keepdims=True)
    some, missed = counts > 0, counts < n
    at_least = stats.binom.sf(counts - 1, n, lower)
    at_most = stats.binom.cdf(counts, n, upper)
    np.testing.assert_allclose(at_least[some], tail, rtol=1e-9)
    np.testing.assert_allclose(at_most[missed], tail, rtol=1e-9)
    assert (lower[~some] == 0).all()
    assert (upper[~missed] == 1).all()


def test_weissman_s_inequality_is_met_with_equality():
    """With more than five successors, none of them rare, and half of the risk."""
    counts = np.array([[125] * 8, [10**6] * 8])
    _, radius, _ = of_rows(total_variation_from_counts, counts, 0.9)
    tail = (2**8 - 2) * np.exp(-counts.sum(-1) * (2 * radius) ** 2 / 2)
    np.testing.assert_allclose(tail, 0.05 / 2, rtol=1e-3)
    _, radius, _ = of_rows(total_variation_from_counts, counts, 0.9, sampling="adaptive")
    tail = (2**8 - 2) * np.exp(-counts.sum(-1) * (2 * radius) ** 2 / 2) * counts.sum(-1) ** 0.5
    np.testing.assert_allclose(tail, 0.05 / 2, rtol=1e-3)


# --- the KL radius: no smaller than it must be, and not much larger


def edge_of_region(p, bound, caps, rng, directions=4000):
    """The last rows with KL(p‖row) ≤ bound and row ≤ caps, in many directions and towards corners."""
    targets = np.concatenate([rng.dirichlet(np.full(len(p), a), directions) for a in (0.1, 1.0)])
    targets = np.concatenate([targets, np.eye(len(p)), 2 * p - targets[-directions:]])
    low, high = np.zeros(len(targets)), np.ones(len(targets))
    for _ in range(50):
        middle = (low + high) / 2
        rows = p + middle[:, None] * (targets - p)
        inside = ((rows >= 0) & (rows <= caps)).all(-1)
        inside &= divergence(np.broadcast_to(p, rows.shape), rows) <= bound
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.maximum(p + low[:, None] * (targets - p), 0.0)


FEW = [[3, 2, 0], [40, 30, 20, 10], [5, 0, 0, 0, 0, 0, 0, 0]]
MANY = [[200, 0, 0, 0], [900, 95, 5, 0], [10**6, 10**5, 30, 1]]


@both_kinds
@pytest.mark.parametrize("counts", FEW + MANY)
def test_the_radius_is_just_enough_for_the_region(counts, sampling):
    counts = np.array([counts])
    n, k, risk = counts.sum(), counts.shape[1], 0.01
    centre, radius = of_rows(kl_from_counts, counts, 1 - risk, sampling=sampling)
    seen = -np.sort(-counts[:, counts[0] > 0].astype(float))
    region = _KLRegion.of(seen, np.array([float(k)]), risk, sampling)
    caps = np.concatenate([region.top[0], np.full(k - region.p.shape[1], region.most[0])])
    caps[np.argsort(-counts[0], kind="stable")] = caps.copy()
    edge = edge_of_region(counts[0] / n, region.bound[0], caps, np.random.default_rng(3))
    farthest = divergence(edge, centre[0]).max()
    assert farthest <= radius[0] <= 1.2 * farthest


@pytest.mark.parametrize("counts", [[0, 1], [7, 3], [1000, 0], [10**9, 5]])
def test_with_two_successors_both_ends_are_as_far(counts):
    counts = np.array([counts])
    centre, radius = of_rows(kl_from_counts, counts)
    _, lower, upper = of_rows(interval_from_counts, counts)
    ends = np.array([[lower[0, 0], upper[0, 1]], [upper[0, 0], lower[0, 1]]])
    np.testing.assert_allclose(divergence(ends, centre), radius[0], rtol=1e-3)


def test_radii_fall_like_one_over_n():
    n = 10 ** np.arange(4, 10)
    profiles = ([4, 3, 2, 1], [9, 1, 0, 0], [10, 0, 0, 0])
    # A total variation radius falls like 1/√n, and like 1/n if only one successor was seen.
    for profile, power in zip(profiles, (0.5, 0.5, 1.0), strict=True):
        _, radius = of_rows(kl_from_counts, n[:, None] * np.array(profile))
        np.testing.assert_allclose(radius * n, radius[-1] * n[-1], rtol=0.12)
        _, radius, _ = of_rows(total_variation_from_counts, n[:, None] * np.array(profile))
        np.testing.assert_allclose(radius * n**power, radius[-1] * n[-1] ** power, rtol=0.015)


# --- invariants


@st.composite
def some_counts(draw):
    """Rows of counts, few or many, and the successors they declare."""
    rng = np.random.default_rng(draw(seeds))
    most = draw(st.sampled_from([2, 30, 10**4, 10**9]))
    counts = rng.integers(0, most, (6, 5)) * (rng.random((6, 5)) < 0.6)
    support = (counts > 0) | (rng.random((6, 5)) < 0.3)
    support[:, 0] |= ~support.any(-1)
    return counts, support


@given(data=some_counts(), confidence=st.sampled_from([1e-9, 0.5, 0.95, 1 - 1e-12]), sampling=kinds)
@light
def test_nominal_rows_are_distributions_over_what_is_declared(data, confidence, sampling):
    counts, support = data
    for make in MAKERS:
        rows, *_ = of_rows(make, counts, confidence, support, sampling)
        np.testing.assert_allclose(rows.sum(-1), 1, rtol=1e-12)
        assert (rows[~support] == 0).all()
        if make is not interval_from_counts:
            assert (rows[support] > 0).all()


@given(data=some_counts(), confidence=st.sampled_from([1e-9, 0.5, 0.95, 1 - 1e-12]), sampling=kinds)
@light
def test_sets_are_as_large_as_they_may_be_and_no_larger(data, confidence, sampling):
    counts, support = data
    size, visited = support.sum(-1), counts.sum(-1) > 0
    certain, free, doubtful = size == 1, ~visited & (size > 1), visited & (size > 1)
    _, radius = of_rows(kl_from_counts, counts, confidence, support, sampling)
    assert (radius[certain] == 0).all()
    assert np.isinf(radius[free]).all()
    assert (radius[doubtful] > 0).all()
    assert (radius[doubtful] <= np.log(size[doubtful]) * (1 + 1e-5)).all()
    _, radius, within = of_rows(total_variation_from_counts, counts, confidence, support, sampling)
    assert within
    assert (radius[certain] == 0).all()
    assert (radius[free] == 1).all()
    assert (radius <= 1).all()
    rows, lower, upper = of_rows(interval_from_counts, counts, confidence, support, sampling)
    assert ((lower >= 0) & (lower <= rows) & (rows <= upper) & (upper <= 1)).all()
    assert (upper[~support] == 0).all()
    assert (lower[certain[:, None] & support] == 1).all()
    assert (lower[free[:, None] & support] == 0).all()
    assert (upper[free[:, None] & support] == 1).all()


@given(data=some_counts(), seed=seeds)
@light
def test_the_order_of_successors_is_nothing_to_the_set(data, seed):
    counts, support = data
    order = np.random.default_rng(seed).permutation(counts.shape[1])
    for make in MAKERS:
        straight = of_rows(make, counts, 0.95, support)
        mixed = of_rows(make, counts[:, order], 0.95, support[:, order])
        for one, other in zip(straight, mixed, strict=True):
            expected = one[:, order] if np.ndim(one) == 2 else one
            np.testing.assert_allclose(other, expected, rtol=1e-6)


@given(data=some_counts(), factor=st.sampled_from([2, 3, 10]), sampling=kinds)
@light
def test_more_of_the_same_data_gives_smaller_sets(data, factor, sampling):
    counts, support = data
    few, many = counts, counts * factor
    for make in (kl_from_counts, total_variation_from_counts):
        before, after = (of_rows(make, c, 0.95, support, sampling)[1] for c in (few, many))
        assert (after <= before * (1 + 1e-3)).all()
    (_, low, high), (_, lower, upper) = (
        of_rows(interval_from_counts, c, 0.95, support, sampling) for c in (few, many)
    )
    assert (upper - lower <= high - low + 1e-12).all()


@given(data=some_counts())
@light
def test_a_narrower_declaration_gives_smaller_radii(data):
    counts, support = data
    visited = counts.sum(-1) > 0
    for make in (kl_from_counts, total_variation_from_counts):
        narrow = of_rows(make, counts, 0.95, support)[1]
        wide = of_rows(make, counts, 0.95)[1]
        assert (narrow <= wide * (1 + 1e-3))[visited].all()


def test_more_confidence_and_more_pairs_give_larger_radii():
    counts = np.array([[30, 20, 10, 0]])
    for make in (kl_from_counts, total_variation_from_counts):
        radii = [of_rows(make, counts, confidence)[1][0] for confidence in (0.5, 0.9, 0.99, 0.9999)]
        radii.append(of_rows(make, np.repeat(counts, 1000, 0), 0.9999)[1][0])
        assert (np.diff(radii) > 0).all()


@every_maker
def test_pairs_that_can_not_fail_cost_nothing(make):
    """Unvisited pairs, and those with one successor, take no share of the risk."""
    counts = np.array([[30, 20, 10], [0, 0, 0], [0, 9, 0]])
    support = np.array([[True] * 3, [True] * 3, [False, True, False]])
    together = of_rows(make, counts, 0.95, support)
    alone = of_rows(make, counts[:1], 0.95, support[:1])
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(np.atleast_1d(one)[:1], np.atleast_1d(other)[:1], rtol=1e-12)


@both_kinds
@pytest.mark.parametrize("n", [1, 10**6, 10**12, 10**15])
def test_extreme_counts_give_finite_radii(n, sampling):
    counts = np.array([[n, 0, 0, 0], [n, 1, 0, 0], [n, n, n, n], [n, n, 3, 1]])
    centre, radius = of_rows(kl_from_counts, counts, sampling=sampling)
    assert np.isfinite(radius).all()
    assert (radius > 0).all()
    assert (radius <= np.log(4) * (1 + 1e-5)).all()
    if n > 1:
        assert (radius <= 200 / n + 1e-12).all()
    assert (centre > 0).all()
    _, radius, _ = of_rows(total_variation_from_counts, counts, sampling=sampling)
    assert ((radius > 0) & (radius <= max(1, 7 * n**-0.5))).all()
    rows, lower, upper = of_rows(interval_from_counts, counts, sampling=sampling)
    assert (lower[rows > 0] > 0).all()
    assert (upper - lower <= 14 * n**-0.5).all()


# --- forms


@every_maker
def test_dense_counts_and_lists_of_all_states_agree(make):
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 50, (4, 2, 4))
    dense, *rest = make(counts, 0.95)
    lists, *others = make(counts, 0.95, np.broadcast_to(np.arange(4), counts.shape))
    assert isinstance(lists, Kernel)
    np.testing.assert_allclose(lists.dense(), dense, rtol=1e-12)
    if make is total_variation_from_counts:
        # Everything was seen, so nothing had to be smoothed; but lists keep to their support.
        assert (rest.pop(), others.pop()) == (False, True)
    for one, other in zip(rest, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_what_is_undeclared_is_left_out_of_a_dense_total_variation_ball():
    counts = np.array([[[5, 0, 0]], [[0, 0, 0]], [[1, 1, 1]]])
    centre, radius, within = total_variation_from_counts(counts, 0.95)
    assert not within
    np.testing.assert_array_equal(centre[:, 0], [[1, 0, 0], [1 / 3] * 3, [1 / 3] * 3])
    support = np.array([[[True, True, False]], [[True, True, True]], [[True] * 3]])
    centre, radius, within = total_variation_from_counts(counts, 0.95, support=support)
    assert within
    assert centre[0, 0, 1] == pytest.approx(1e-3 * radius[0, 0], rel=0.01)
    assert centre[0, 0, 2] == 0


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float32, jnp.asarray, np.ndarray.tolist])
def test_whole_numbers_of_any_kind(kind):
    counts = np.random.default_rng(2).integers(0, 99, (3, 1, 3))
    given_counts = counts.astype(kind) if isinstance(kind, type) else kind(counts)
    for make in MAKERS:
        for one, other in zip(make(given_counts, 0.9), make(counts, 0.9), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_model_takes_what_comes_out():
    rng = np.random.default_rng(4)
    counts = rng.integers(0, 9, (5, 2, 3))
    counts[1, 1] = 0
    successors = np.argsort(rng.random((5, 2, 5)), -1)[..., :3]
    (p, r), (q, radius, within), (f, lower, upper) = (
        make(counts, 0.95, successors) for make in MAKERS
    )
    sets = [KL(r), TotalVariation(radius, within_support=within), Interval(lower, upper)]
    shared = {"reward": np.ones((5, 2)), "discount": 0.9}
    for kernel, around in zip((p, q, f), sets, strict=True):
        model = RobustCMDP(transitions=kernel, uncertainty=around, **shared)
        np.testing.assert_array_equal(model.transitions.successors, successors)
        # Where nothing is known nature goes where it likes among the three.
        corners = np.broadcast_to(np.eye(3)[:, None, None], (3, 5, 2, 3))
        assert all(around.contains(kernel.probabilities, corner)[1, 1] for corner in corners)


# --- bad input

GOOD = np.ones((2, 2, 2))


def changed(value):
    counts = GOOD.copy()
    counts[1, 0, 1] = value
    return counts


DECLARED = np.ones((2, 2, 2), bool)
NOWHERE = DECLARED & (np.arange(4).reshape(2, 2, 1) != 2)
LISTS = np.zeros((2, 2, 2), int)
WHERE = r"\(state 1, action 0\)"
BAD = [
    *[({"counts": changed(x)}, rf"counts: .* {x} at {WHERE}") for x in (-1.0, 0.5, np.nan, np.inf)],
    *[({"counts": np.ones(x)}, "counts: got shape") for x in [(), (2, 2), (2, 2, 3), (0, 2, 0)]],
    ({"counts": "many"}, "counts: expected an array of numbers"),
    *[({"sampling": x}, "sampling: expected one of 'fixed', 'adaptive'") for x in ("often", None)],
    *[({"confidence": x}, "confidence: ") for x in (0, 1, -0.5, 95, np.nan, "high", [0.9])],
    ({"support": DECLARED[:1]}, r"support: shape \(1, 2, 2\) differs"),
    ({"support": DECLARED * 1.0}, "support: expected true or false"),
    ({"support": changed(0) > 0}, rf"support: excludes entry 1 of {WHERE}, seen 1 times"),
    ({"counts": 0 * GOOD, "support": NOWHERE}, rf"support: {WHERE} has no successor"),
    ({"successors": LISTS[:1]}, r"successors: shape \(1, 2, 2\) differs"),
    ({"successors": LISTS + 2}, r"successors: \(state 0, action 0, entry 0\) is 2"),
    ({"successors": LISTS * 1.0}, "successors: expected integers"),
]


@every_maker
@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_refused_by_name(make, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make(**{"counts": GOOD, "confidence": 0.95, **arguments})
