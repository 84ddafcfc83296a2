"""Limits from counts: against exact arithmetic, enumeration, and every way to stop."""

import functools
import itertools
import os
from decimal import Decimal, localcontext
from fractions import Fraction
from math import comb, factorial, log, prod

import numpy as np
import pytest
from scipy import optimize, special, stats

from holdfast.uncertainty import KL, Interval, TotalVariation
from holdfast.uncertainty.counts import VisitCounts
from holdfast.uncertainty.kl_radius import _enclose, _KLRegion, _one_seen
from holdfast.uncertainty.tail_bounds import (
    divergence_limit,
    largest_probability,
    lower_limits,
    mixture_limit,
    smallest_probability,
    subset_limit,
    upper_limits,
)
from holdfast.uncertainty.tv_radius import farthest_in_box, largest_distance

SETS = [KL, TotalVariation, Interval]
FULL = bool(os.environ.get("HOLDFAST_CAMPAIGN"))


def every_outcome(n, k):
    """All counts of n draws over k outcomes."""
    bars = itertools.combinations(range(n + k - 1), k - 1)
    return np.array([np.diff([-1, *b, n + k - 1]) - 1 for b in bars])


def some_rows(k, steps):
    """A grid of distributions, denser near the boundary of the simplex."""
    near = np.concatenate([[0.0, 1e-6, 1e-3, 0.02], np.linspace(0.05, 1, steps)])
    rows = np.array([p for p in itertools.product(near, repeat=k - 1) if sum(p) <= 1])
    rows = np.maximum(np.c_[rows, 1 - rows.sum(-1)], 0)
    return rows / rows.sum(-1, keepdims=True)


def divergence(q, p):
    """KL(q‖p), row by row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(q > 0, q * np.log(q / p), 0.0).sum(-1)


def guo_richardson(n, k):
    """The coefficients of G, as fractions."""
    return [
        Fraction(comb(m + k - 2, k - 2) * factorial(n), n**m * factorial(n - m))
        for m in range(n + 1)
    ]


def of_each_row(kind, counts, risk, sampling):
    """Nominal rows and the set of each row, every row with this risk to itself."""
    counts = np.asarray(counts, float)[:, None]
    lists = np.broadcast_to(np.arange(counts.shape[2]), counts.shape)
    pairs = len(counts)
    if kind is Interval:
        pairs *= 1 if counts.shape[2] == 2 else counts.shape[2]
        risk = risk / (1 if counts.shape[2] == 2 else counts.shape[2])
    given = VisitCounts(counts, np.ones(counts.shape, bool), lists, risk * pairs, sampling)
    return kind._around(given)


def holds(kind, answer, true):
    """Whether a true row is in the set of each row, by the set's definition."""
    rows, found = answer
    if kind is Interval:
        return ((found.lower <= true) & (true <= found.upper))[:, 0].all(-1)
    if kind is KL:
        return divergence(true, rows[:, 0]) <= found.radius[:, 0]
    return np.abs(true - rows[:, 0]).sum(-1) / 2 <= found.radius[:, 0]


# --- one number of draws


@pytest.mark.parametrize(("n", "k"), [(1, 2), (3, 2), (6, 3), (4, 4), (9, 3)])
def test_guo_and_richardson_s_polynomial_bounds_the_generating_function(n, k):
    """By enumeration. At λ = 1 it is the expectation itself, for every true row without zeros."""
    outcomes, coefficients = every_outcome(n, k), guo_richardson(n, k)
    ways = special.gammaln(n + 1) - special.gammaln(outcomes + 1).sum(-1)
    for true in some_rows(k, 5)[:: 1 if k < 4 else 7]:
        possible = (outcomes[:, true == 0] == 0).all(-1)
        distance = n * divergence(outcomes[possible] / n, true)
        chance = np.exp(ways[possible] + special.xlogy(outcomes[possible], true).sum(-1))
        for price in (0.1, 0.5, 0.9, 1.0):
            exact = (chance * np.exp(price * distance)).sum()
            bound = sum(float(c) * price**m for m, c in enumerate(coefficients))
            assert exact <= bound * (1 + 1e-9)
            if price == 1 and (true > 0).all():
                assert exact == pytest.approx(bound, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "k", "risk"), [(1, 3, 0.1), (7, 3, 0.05), (30, 12, 1e-3), (300, 40, 1e-6), (55, 4, 0.9)]
)
def test_the_limit_is_the_best_of_guo_and_richardson_s(n, k, risk):
    """Against the same inequality in fractions, on a fine grid of λ, and against the gamma limit."""
    coefficients = [float(c) for c in guo_richardson(n, k)]
    prices = np.linspace(0.01, 1, 2000)
    totals = np.polynomial.polynomial.polyval(prices, coefficients)
    best = ((np.log(totals) - log(risk)) / prices).min()
    gamma = (k - 1) * log(2) + stats.gamma(k - 1).isf(risk)
    found = divergence_limit(np.array([float(n)]), np.array([float(k)]), risk)[0]
    best = min(best, gamma)
    assert best * (1 - 1e-9) <= found <= best * (1 + 2e-3)


@pytest.mark.parametrize("risk", [1e-9, 0.05, 0.99, 1.0])
def test_the_limit_is_never_above_agrawal_s_or_the_method_of_types(risk):
    size = np.array([3.0, 5.0, 400.0])
    agrawal = [
        optimize.brentq(lambda t, f=f: -t + f * (1 + log(t / f)) - log(risk), f, 1e6)
        if risk < 1
        else f
        for f in size - 1
    ]
    for n in (1.0, 3.0, 50.0, 1e4, 1e9):
        t = divergence_limit(np.full(3, n), size, risk)
        types = special.gammaln(n + size) - special.gammaln(size) - special.gammaln(n + 1)
        assert (t <= (types - log(risk)) * (1 + 1e-9)).all()
        assert (t <= np.array(agrawal) * (1 + 1e-6)).all()
    # With many outcomes and draws there is nothing better. (A risk of one needs no limit.)
    assert risk == 1 or t[2] == pytest.approx(agrawal[2], rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(2, 3), (11, 3), (7, 4), (40, 3)])
def test_tails_summed_over_every_outcome(n, k):
    """Exact: P(n·KL ≥ t) at the limit of each risk, for a grid of true rows."""
    outcomes = every_outcome(n, k)
    ways = special.gammaln(n + 1) - special.gammaln(outcomes + 1).sum(-1)
    risks = (0.5, 0.1, 0.01, 1e-4)
    limits = [divergence_limit(np.array([float(n)]), np.array([float(k)]), r)[0] for r in risks]
    # The gamma limit alone, which would be the larger one for so few draws.
    gamma = [(k - 1) * log(2) + stats.gamma(k - 1).isf(r) for r in risks]
    for true in some_rows(k, 12 if k == 3 else 5):
        possible = (outcomes[:, true == 0] == 0).all(-1)
        distance = n * divergence(outcomes[possible] / n, true)
        chance = np.exp(ways[possible] + special.xlogy(outcomes[possible], true).sum(-1))
        for risk, *both in zip(risks, limits, gamma, strict=True):
            assert all(chance[distance >= t].sum() <= risk * (1 + 1e-9) for t in both)


COUNTS = [[3, 4, 2, 0], [1, 0, 0, 0], [12, 7, 1, 1], [9, 0, 1, 0]]


@pytest.mark.parametrize("counts", COUNTS)
def test_the_mixture_predicts_like_a_dirichlet_distribution(counts):
    """In fractions, one draw after the other; with k = 4, α = 1/4 occurs once and 2^{−3/2} once."""
    n, k = sum(counts), len(counts)

    def predicted(alpha):
        draws = [j for j, c in enumerate(counts) for _ in range(c)]
        before = [draws[:i].count(j) for i, j in enumerate(draws)]
        return prod((b + alpha) / (i + k * alpha) for i, b in enumerate(before))

    half, fourth = predicted(Fraction(1, 2)), predicted(Fraction(1, 4))
    mixture = 0.6 * float(half) + 0.2 * float(fourth) + 0.2 * predicted(8**-0.5)
    likelihood = prod((c / n) ** c for c in counts)
    found = mixture_limit(np.array([counts], float), np.array([float(k)]), 0.05)[0]
    assert found == pytest.approx(log(likelihood / mixture) - log(0.05), rel=1e-12)
    # Order and unseen columns do not matter.
    some = np.array([[c for c in reversed(counts) if c]], float)
    assert mixture_limit(some, np.array([float(k)]), 0.05)[0] == pytest.approx(found, rel=1e-12)


def test_the_mixture_limit_is_accurate_for_many_draws():
    """Rows of the same shape differ by ½·(k − 1)·log of the factor, up to terms of order 1/n."""
    counts, size = np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([4.0])
    small, large = (mixture_limit(counts * x, size, 0.1)[0] for x in (1e6, 1e14))
    # α = 1/2 gives the exact power; the two others have other powers of p̂, equal for both.
    assert large - small == pytest.approx(1.5 * log(1e8), abs=1e-4)


def test_the_limit_for_subsets_covers_the_worst_counts():
    """For two outcomes, α = 1/2 costs at most ½·log n + log 2: over all counts."""
    for n in (1, 2, 3, 10, 100, 1000):
        x = np.arange(n + 1.0)
        p = x / n
        log_predicted = special.betaln(x + 0.5, n - x + 0.5) - log(np.pi)
        likelihood = special.xlogy(x, p) + special.xlogy(n - x, 1 - p)
        limit = subset_limit(np.array([float(n)]), np.array([2.0]), 1.0, "adaptive")[0]
        assert (likelihood - log_predicted).max() <= limit + 1e-12


@pytest.mark.parametrize("n", [1.0, 7.0, 1e3, 1e9])
def test_adaptive_limits_on_a_probability_are_the_ends_of_their_region(n):
    seen = np.unique(np.round(np.array([0, 1, 2, n / 3, n - 1, n])).clip(0, n))
    visits, risk = np.full(seen.shape, n), 1e-4
    lower, upper = (f(seen, visits, risk, "adaptive") for f in (lower_limits, upper_limits))
    p = seen / n
    assert (lower <= p).all()
    assert (upper >= p).all()
    limit = mixture_limit(np.stack([seen, n - seen], -1), np.full(seen.shape, 2.0), risk)
    # A limit nearer to one than 1e-15 is given as one.
    for end, inside in ((lower, seen > 0), (upper, upper < 1)):
        distance = n * (special.rel_entr(p, end) + special.rel_entr(1 - p, 1 - end))
        # The differences of 1 − p and 1 − end lose about n·1e-16.
        np.testing.assert_allclose(distance[inside], limit[inside], rtol=1e-5)
    assert (lower[seen == 0] == 0).all()
    assert (upper[seen == n] == 1).all()


def test_roots_of_the_divergence_are_on_the_safe_side():
    rng = np.random.default_rng(0)
    p, bound = rng.choice([1e-12, 0.01, 0.5, 0.99], 400), 10.0 ** rng.uniform(-9, 2, 400)
    lower, upper = smallest_probability(p, bound), largest_probability(p, bound)
    assert ((lower < p) & (p < upper)).all()
    with localcontext(prec=50):
        for a, b, *ends in zip(p, bound, lower, upper, strict=True):
            for u in ends:
                if 0 < u < 1:
                    x, v = Decimal(float(a)), Decimal(float(u))
                    distance = x * (x / v).ln() + (1 - x) * ((1 - x) / (1 - v)).ln()
                    assert float(distance) >= b * (1 - 1e-14)
                    assert float(distance) <= b * (1 + 1e-3) or u > 1 - 1e-12


# --- every way to stop


def worst_stopping(kind, most, true, risk, sampling):
    """The largest probability to stop in a failure, over all rules that stop after `most` draws.

    Dynamic programming over the counts, for all true rows at once. It is best to stop at a failure, and
    otherwise to go on.
    """
    k = true.shape[1]
    layers = [every_outcome(n, k) for n in range(most + 1)]
    answer = of_each_row(kind, np.concatenate(layers[1:]), risk, sampling)
    fails = np.stack([~holds(kind, answer, row) for row in true], -1)
    fails = np.split(fails, np.cumsum([len(x) for x in layers[1:-1]]))
    value = fails[-1].astype(float)
    for n in range(most - 1, -1, -1):
        place = {tuple(x): i for i, x in enumerate(layers[n + 1].tolist())}
        after = [
            [place[tuple(x)] for x in (layers[n] + step).tolist()] for step in np.eye(k, dtype=int)
        ]
        value = sum(true[:, j] * value[after[j]] for j in range(k))
        if n:
            value = np.where(fails[n - 1], 1.0, value)
    return value[0]


SIZES = [(30, 2, 0.1), (8, 3, 0.3), (5, 4, 0.2)]
if FULL:
    SIZES += [(150, 2, 0.05), (150, 2, 0.5), (24, 3, 0.1), (24, 3, 0.5), (12, 4, 0.1), (8, 6, 0.2)]


@pytest.mark.campaign
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize(("most", "k", "risk"), SIZES)
def test_no_way_to_stop_makes_adaptive_sets_fail_too_often(kind, most, k, risk):
    """Exact, for a grid of true rows."""
    true = some_rows(k, {2: 40, 3: 9, 4: 3, 6: 1}[k])
    assert (worst_stopping(kind, most, true, risk, "adaptive") <= risk * (1 + 1e-9)).all()


COVERAGE = [(2, 3, 0.3), (9, 3, 0.05), (9, 3, 0.5), (5, 4, 0.2), (3, 6, 0.2)]
if FULL:
    COVERAGE += [(n, 3, risk) for n in (20, 40, 80) for risk in (0.01, 0.1, 0.5)]
    COVERAGE += [(14, 4, 0.02), (14, 4, 0.3), (9, 5, 0.1), (7, 6, 0.1), (7, 6, 0.5)]


@pytest.mark.campaign
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize(("n", "k", "risk"), COVERAGE)
def test_fixed_sets_miss_the_true_row_with_at_most_their_risk(kind, n, k, risk):
    """Exact: the probability of all outcomes whose set misses it, for a grid of true rows."""
    outcomes, true = every_outcome(n, k), some_rows(k, {3: 20, 4: 6, 5: 2, 6: 1}[k])
    answer = of_each_row(kind, outcomes, risk, "fixed")
    for row in true:
        missed = outcomes[~holds(kind, answer, row)]
        ways = special.gammaln(n + 1) - special.gammaln(missed + 1).sum(-1)
        assert np.exp(ways + special.xlogy(missed, row).sum(-1)).sum() <= risk * (1 + 1e-9), row


@pytest.mark.parametrize("kind", SETS)
def test_stopping_makes_fixed_sets_fail_too_often(kind):
    """The test above would notice sets that are too small."""
    assert worst_stopping(kind, 60, np.array([[0.5, 0.5]]), 0.2, "fixed")[0] > 1.5 * 0.2


@pytest.mark.campaign
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("true", [[0.5, 0.2], [0.9, 0.02], [0.6, 0.6]][: 3 if FULL else 1])
def test_no_order_of_visits_makes_two_pairs_fail_too_often(kind, true):
    """Exact: an adversary chooses which of two pairs to visit next, and when to stop."""
    most, risk = (6 if FULL else 4), 0.45
    single = [(i, n - i) for n in range(most + 1) for i in range(n + 1)]
    both = np.array(list(itertools.product(single, repeat=2)), float)
    one, other = np.split(both, 2, axis=1)
    # Each combination of counts is a data set of two pairs, one in each column.
    inside = {}
    for x, y in zip(one[:, 0], other[:, 0], strict=True):
        counts = np.stack([x, y])[:, None]
        lists = np.broadcast_to([0, 1], counts.shape)
        rows, found = kind.from_counts(
            counts, confidence=1 - risk, successors=lists, sampling="adaptive"
        )
        truth = np.array([[[p, 1 - p]] for p in true])
        inside[(*x, *y)] = bool(found.contains(rows.probabilities, truth).all())

    @functools.cache
    def value(x, y):
        if not inside[(*x, *y)]:
            return 1.0
        values = [0.0]
        for j, (counts, p) in enumerate(zip((x, y), true, strict=True)):
            if sum(counts) < most:
                more = (counts[0] + 1, counts[1]), (counts[0], counts[1] + 1)
                up, down = (value(c, y) if j == 0 else value(x, c) for c in more)
                values.append(p * up + (1 - p) * down)
        return max(values)

    assert value((0, 0), (0, 0)) <= risk


def test_pairs_that_were_not_visited_share_the_risk_of_adaptive_sampling():
    counts = np.array([[[30, 20, 10]], [[0, 0, 0]], [[0, 0, 0]]])
    lists = np.broadcast_to(np.arange(3), counts.shape)
    for kind in SETS:
        _, alone = of_each_row(kind, counts[:1, 0], 0.05 / 3, "adaptive")
        _, found = kind.from_counts(counts, successors=lists, sampling="adaptive")
        size, expected = (x.upper if kind is Interval else x.radius for x in (found, alone))
        np.testing.assert_allclose(size[0], expected[0], rtol=1e-9)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("true", [[0.5, 0.3, 0.15, 0.05], [0.97, 0.01, 0.01, 0.005, 0.004, 0.001]])
def test_stopping_at_the_worst_moment_of_long_records(kind, true):
    """Simulation: a record fails if its set misses the true row after any of the first n draws."""
    records, most = (400, 1000) if FULL else (40, 300)
    risk, true = 0.2, np.array(true)
    rng = np.random.default_rng(11)
    draws = np.eye(len(true))[rng.choice(len(true), (records, most), p=true)]
    counts = draws.cumsum(1)
    rows, back = np.unique(counts.reshape(-1, len(true)), axis=0, return_inverse=True)
    inside = holds(kind, of_each_row(kind, rows, risk, "adaptive"), true)
    failed = ~inside[back.ravel()].reshape(records, most).all(1)
    assert failed.mean() <= risk + 2 * (risk * (1 - risk) / records) ** 0.5


# --- total variation


def box_around(p, rng):
    room = rng.uniform(0, 0.3, (2, *p.shape)) * (rng.random((2, *p.shape)) < 0.8)
    return np.maximum(p - room[0], 0), np.minimum(p + room[1], 1)


def farthest_by_programs(p, lower, upper):
    """The largest distance in a box: a linear program for every set of entries that grow."""
    k, best = len(p), 0.0
    for grows in itertools.product([0.0, 1.0], repeat=k):
        gain = np.array(grows)
        found = optimize.linprog(
            -gain, A_eq=np.ones((1, k)), b_eq=[1.0], bounds=np.c_[lower, upper], method="highs"
        )
        best = max(best, -found.fun - gain @ p)
    return best


def test_the_farthest_point_of_a_box_is_exact():
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(4), 6)
    lower, upper = box_around(p, rng)
    expected = [farthest_by_programs(*row) for row in zip(p, lower, upper, strict=True)]
    np.testing.assert_allclose(farthest_in_box(p, lower, upper), expected, atol=1e-9)


def test_in_wide_boxes_the_distance_is_off_by_less_than_one_entry():
    rng = np.random.default_rng(6)
    p = np.concatenate([rng.dirichlet(np.full(12, a), 40) for a in (0.1, 1.0, 10.0)])
    lower, upper = box_around(p, rng)
    lower[0], upper[0] = p[0], p[0]
    members = np.array(list(itertools.product([False, True], repeat=12)))
    grow, shrink = (upper - p) @ members.T, (p - lower) @ ~members.T
    exact, found = np.minimum(grow, shrink).max(-1), farthest_in_box(p, lower, upper)
    assert (found >= exact - 1e-12).all()
    assert (found <= exact + (upper - lower).max(-1) + 1e-12).all()
    assert np.median(found / np.maximum(exact, 1e-12)) < 1.02
    # One linear program that allows an entry on both sides has the same value.
    for row in range(0, 120, 17):
        up, down = (upper - p)[row], (p - lower)[row]
        found_here = optimize.linprog(
            np.r_[-1.0, np.zeros(12)],
            A_ub=np.array([np.r_[1.0, -up], np.r_[1.0, down]]),
            b_ub=[0.0, down.sum()],
            bounds=[(0, None)] + [(0, 1)] * 12,
            method="highs",
        )
        assert found[row] == pytest.approx(-found_here.fun, abs=1e-9)


def test_total_variation_radii_are_the_largest_excess_of_a_subset():
    """Against every subset's own exact binomial limit, one by one."""
    counts, risk = np.array([[12, 5, 3], [20, 0, 0], [1, 1, 0]]), 0.03
    for row, found in zip(counts, largest_distance(counts * 1.0, risk, "fixed"), strict=True):
        n, excesses = row.sum(), []
        for subset in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
            x = row[subset].sum()
            limit = 1.0
            if x < n:
                limit = optimize.brentq(
                    lambda q, x=x, n=n: stats.binom.cdf(x, n, q) - risk / 6, 0, 1
                )
            excesses.append(limit - x / n)
        assert found == pytest.approx(max(excesses), rel=1e-9)


# --- how much smaller than before


def earlier_kl_radius(counts, k, risk):
    """The radius from the smaller of Agrawal's inequality and the method of types alone, in our ball."""
    n = counts.sum()
    free, cost = k - 1, -log(risk)
    agrawal = optimize.brentq(lambda t: -t + free * (1 + log(t / free)) + cost, free, 1e4)
    types = special.gammaln(n + k) - special.gammaln(k) - special.gammaln(n + 1) + cost
    bound = np.array([min(agrawal, types) / n])
    p = counts[counts > 0][None] / n
    size = np.array([float(k)])
    together, ones = -np.expm1(-bound), np.ones(p.shape)
    top = largest_probability(p, bound[:, None])
    return _enclose(_KLRegion(p, top, ones, size, size - p.shape[1], bound, together))[1][0]


@pytest.mark.parametrize("risk", [0.05, 5e-4])
@pytest.mark.parametrize("k", [3, 5, 12])
def test_kl_radii_are_smaller_than_with_the_earlier_inequalities(k, risk):
    """By 10 % from ten visits on (20 for a risk of 5e-4). With fewer, any ball is nearly everything."""
    rng = np.random.default_rng(k)
    for n in (10, 20, 50):
        for true in (np.ones(k) / k, np.r_[0.9, np.full(k - 1, 0.1 / (k - 1))], np.eye(k)[0]):
            counts = rng.multinomial(n, true)
            _, ball = of_each_row(KL, counts[None], risk, "fixed")
            least = 0.1 if n > 10 or risk > 0.01 else 0.04
            assert ball.radius[0, 0] <= (1 - least) * earlier_kl_radius(counts, k, risk)


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 9])
def test_total_variation_radii_against_weissman_s(k):
    """Up to five successors never larger; with more, larger by at most the half of the risk."""
    rng, risk = np.random.default_rng(k), 5e-4
    counts = rng.multinomial(100, rng.dirichlet(np.ones(k), 50))
    found = largest_distance(counts * 1.0, risk, "fixed")
    weissman = np.sqrt(log((2**k - 2) / risk) / 200)
    assert (found <= np.sqrt(log((2**k - 2) / (risk if k <= 5 else risk / 2)) / 200)).all()
    # A row in which only one successor was seen: less than half.
    skewed = np.r_[100.0, np.zeros(k - 1)][None]
    assert largest_distance(skewed, risk, "fixed")[0] < 0.5 * weissman


@pytest.mark.parametrize(("n", "k"), [(3, 3), (60, 4), (40, 9), (10**4, 30)])
def test_with_one_successor_seen_the_ball_is_the_smallest(n, k):
    """Against many points of the region, and every other share of the uniform row on a fine grid."""
    region = _KLRegion.of(np.array([[float(n)]]), np.array([float(k)]), 0.01, "fixed")
    (share,), (radius,) = _one_seen(region)
    together, most = -np.expm1(-region.bound[0]), region.most[0]
    rng = np.random.default_rng(n)
    masses = rng.dirichlet(np.full(k, 0.3), 4000)[:, 1:] * together
    full = int(together // most)
    corner = np.r_[np.full(full, most), together - full * most, np.zeros(k)][: k - 1]
    masses = np.concatenate([np.minimum(masses, most), [corner, 0 * corner]])
    masses = np.concatenate([masses, [np.where(corner == most, most, 0.0)]])
    p = np.c_[1 - masses.sum(-1), masses]

    def farthest(w):
        return divergence(p, (1 - w) * np.eye(k)[0] + w / k).max()

    assert farthest(share) == pytest.approx(radius, rel=1e-9)
    assert min(map(farthest, np.geomspace(share / 30, min(30 * share, 1), 300))) >= radius * 0.9999
