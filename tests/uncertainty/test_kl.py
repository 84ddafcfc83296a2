"""The KL ball against a convex solver, against arithmetic in sixty digits, and against itself."""

import decimal
import warnings
from decimal import Decimal

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.uncertainty import KL

SHAPES = [(6, 5), (3, 16)]
EPS = np.finfo(float).eps
DIGITS = decimal.Context(prec=60, Emin=-(10**9), Emax=10**9)

# Nothing is gained by shrinking a seed.
light = settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
seeds = st.integers(0, 2**32 - 1)


# --- oracles


def solve(objective, constraints):
    """A convex problem's value, or None where the solver does not say optimal."""
    problem = cp.Problem(objective, constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL)
    return problem.value if problem.status == cp.OPTIMAL else None


def over_ball(p, radius, objective):
    """min objective(q) over KL(q‖p) ≤ radius, for p without zeros."""
    q = cp.Variable(len(p), nonneg=True)
    ball = [cp.sum(q) == 1]
    if np.isfinite(radius):
        ball.append(cp.sum(cp.rel_entr(q, p)) <= radius)
    return solve(cp.Minimize(objective(q)), ball)


def solver_minimum(p, y, radius):
    """min q·y by Clarabel; it works on targets between zero and one."""
    y = y[p > 0]
    low, span = y.min(), np.ptp(y)
    scaled = (y - low) / (span or 1.0)
    found = over_ball(p[p > 0], radius, lambda q: scaled @ q)
    return None if found is None else low + span * found


class Exact:
    """One row in sixty digits: the minimum over the ball, by bisection on the multiplier."""

    def __init__(self, p, y):
        support = p > 0
        mass = sum(map(Decimal, p[support].tolist()))
        with decimal.localcontext(DIGITS):
            self.p = [Decimal(x) / mass for x in p[support].tolist()]
            self.y = [Decimal(x) for x in y[support].tolist()]

    def minimum(self, radius):
        with decimal.localcontext(DIGITS):
            low = min(self.y)
            mass = sum(p for p, y in zip(self.p, self.y, strict=True) if y == low)
            if max(self.y) == low or radius == 0:
                return sum(p * y for p, y in zip(self.p, self.y, strict=True))
            if not np.isfinite(radius) or -mass.ln() <= Decimal(radius):
                return low
            left, right = Decimal("1e-30").ln(), Decimal("1e30").ln()
            for _ in range(110):
                middle = (left + right) / 2
                if self._tilted(middle.exp())[0] <= Decimal(radius):
                    left = middle
                else:
                    right = middle
            return self._tilted(left.exp())[1]

    def _tilted(self, beta):
        low, high = min(self.y), max(self.y)
        u = [(y - low) / (high - low) for y in self.y]
        weights = [p * (-beta * x).exp() for p, x in zip(self.p, u, strict=True)]
        mass = sum(weights)
        mean = sum(w * x for w, x in zip(weights, u, strict=True)) / mass
        return -beta * mean - mass.ln(), low + (high - low) * mean


def exact_divergence(p, q):
    """KL(q‖p) in sixty digits, both rows normalised."""
    with decimal.localcontext(DIGITS):
        pairs = [(Decimal(a), Decimal(b)) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
        mass_p, mass_q = sum(a for a, _ in pairs), sum(b for _, b in pairs)
        ratios = [(b / mass_q, (b / mass_q) / (a / mass_p)) for a, b in pairs if b > 0]
        return float(sum(q * ratio.ln() for q, ratio in ratios))


def binary_minimum(p, radius):
    """The smallest x with KL((x, 1−x)‖(p, 1−p)) ≤ radius, by bisection in sixty digits."""
    with decimal.localcontext(DIGITS):
        p, radius = Decimal(p), Decimal(radius)
        if -(1 - p).ln() <= radius:
            return Decimal(0)
        left, right = Decimal(0), p
        for _ in range(150):
            x = (left + right) / 2
            if x * (x / p).ln() + (1 - x) * ((1 - x) / (1 - p)).ln() <= radius:
                right = x
            else:
                left = x
        return right


# --- rows


def nominal(rng, shape, smallest):
    """Nominal rows with probabilities of all sizes down to the smallest."""
    weights = 10.0 ** rng.uniform(np.log10(smallest), 0, shape)
    weights[np.arange(shape[0]), rng.integers(shape[1], size=shape[0])] = 1.0
    return weights / weights.sum(-1, keepdims=True)


def at_minimum(p, y):
    """p(argmin y) of each row, the minimum taken over the support."""
    low = np.where(p > 0, y, np.inf).min(-1, keepdims=True)
    return np.where((p > 0) & (y == low), p, 0.0).sum(-1)


def spans(p, y):
    return np.where(p > 0, y, -np.inf).max(-1) - np.where(p > 0, y, np.inf).min(-1)


def rounding(p, y):
    return 16 * EPS * np.abs(np.where(p > 0, y, 0.0)).max(-1)


def assert_equal_to_sixty_digits(p, y, radius):
    """Value, lower bound and membership, each to what DESIGN asks of it or to rounding."""
    radius = np.broadcast_to(radius, len(p))
    response = KL(radius).respond(p, y)
    truth = np.array([float(Exact(*row).minimum(r)) for *row, r in zip(p, y, radius, strict=True)])
    slack, span = rounding(p, y), spans(p, y)
    assert (response.value <= truth + 1e-9 * span + slack).all()
    assert (response.value >= truth - 1e-12 * span - slack).all()
    assert (response.lower >= truth - 1e-9 * span - slack).all()
    assert (response.lower <= truth + 1e-12 * span + slack).all()
    assert (np.abs(response.kernel.sum(-1) - 1) <= 1e-12).all()
    divergences = np.array([exact_divergence(*row) for row in zip(p, response.kernel, strict=True)])
    assert (divergences <= radius * (1 + 1e-8) + 1e-14).all()


# --- worst responses


@given(shape=st.sampled_from(SHAPES), seed=seeds)
@light
def test_worst_response_equals_a_convex_solver(shape, seed):
    rng = np.random.default_rng(seed)
    p = nominal(rng, shape, 1e-5)
    y = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3, (shape[0], 1))
    radius = 10.0 ** rng.uniform(-4, 1, shape[0])
    response = KL(radius).respond(p, y)
    solved = [solver_minimum(*row) for row in zip(p, y, radius, strict=True)]
    assert sum(found is not None for found in solved) >= len(solved) - 1
    for i, found in enumerate(solved):
        if found is not None:
            assert abs(response.value[i] - found) <= 1e-6 * max(1.0, np.ptp(y[i]))
            assert exact_divergence(p[i], response.kernel[i]) <= radius[i] + 1e-8


CASES = ["zeros", "ties", "near ties", "huge offset", "two levels"]


@st.composite
def awkward_rows(draw):
    shape = draw(st.sampled_from([(2, 1), *SHAPES]))
    rng = np.random.default_rng(draw(seeds))
    kinds = draw(st.sets(st.sampled_from(CASES)))
    p, y = nominal(rng, shape, 1e-6), rng.normal(size=shape)
    if "zeros" in kinds:
        p = np.where((rng.random(shape) < 0.5) & (p < p.max(-1, keepdims=True)), 0.0, p)
        p = p / p.sum(-1, keepdims=True)
    if "ties" in kinds or "near ties" in kinds:
        y = np.round(y)
    if "near ties" in kinds:
        y = y + 1e-14 * rng.integers(0, 4, shape)
    if "huge offset" in kinds:
        y = y + 1e6
    if "two levels" in kinds:
        y = np.where(rng.random(shape) < 0.5, 0.0, 1.0)
    return p, y


def some_radii(p, y, rng):
    """Radii of each row's own special kinds."""
    edge = -np.log(at_minimum(p, y))
    kinds = [
        np.zeros(len(p)),
        np.full(len(p), np.inf),
        np.full(len(p), 1e-12),
        np.full(len(p), 1e3),
        edge,
        np.maximum(edge * (1 - 1e-9), 0.0),
        edge * (1 + 1e-9),
        edge * rng.random(len(p)),
        10.0 ** rng.uniform(-12, 1, len(p)),
    ]
    return np.choose(rng.integers(len(kinds), size=len(p)), kinds)


@given(data=awkward_rows(), seed=seeds)
@settings(light, max_examples=30)
def test_degenerate_rows_equal_sixty_digits(data, seed):
    p, y = data
    assert_equal_to_sixty_digits(p, y, some_radii(p, y, np.random.default_rng(seed)))


@given(seed=seeds, exponent=st.integers(-12, 12), radius=st.sampled_from([1e-12, 1e-3, 0.1, 1.0]))
@light
def test_targets_of_all_sizes(seed, exponent, radius):
    rng = np.random.default_rng(seed)
    p, y = nominal(rng, (6, 5), 1e-6), 10.0**exponent * rng.normal(size=(6, 5))
    assert_equal_to_sixty_digits(p, y, radius)


@given(seed=seeds, exponent=st.floats(-30, 0))
@light
def test_tiny_radii(seed, exponent):
    rng = np.random.default_rng(seed)
    p, y = nominal(rng, (6, 5), 1e-6), rng.normal(size=(6, 5))
    assert_equal_to_sixty_digits(p, y, 10.0**exponent)


@given(shape=st.sampled_from(SHAPES), seed=seeds, smallest=st.sampled_from([1e-12, 1e-50, 1e-300]))
@settings(light, max_examples=30)
def test_tiny_nominal_probabilities_close_the_gap(shape, seed, smallest):
    """Beyond the solver's range: our own primal–dual gap is at most 1e-9 of the span."""
    rng = np.random.default_rng(seed)
    p, y = nominal(rng, shape, smallest), rng.normal(size=shape)
    radius = some_radii(p, y, rng)
    response = KL(radius).respond(p, y)
    gap = response.value - response.lower
    assert (gap <= 1e-9 * spans(p, y) + rounding(p, y)).all()
    assert (gap >= -rounding(p, y)).all()
    assert KL(radius).contains(p, response.kernel).all()


@pytest.mark.parametrize("smallest", [1e-30, 1e-300])
def test_tiny_nominal_probabilities_equal_sixty_digits(smallest):
    rng = np.random.default_rng(0)
    p, y = nominal(rng, (6, 5), smallest), rng.normal(size=(6, 5))
    assert_equal_to_sixty_digits(p, y, some_radii(p, y, rng))


@given(seed=seeds)
@light
def test_two_outcomes_have_a_closed_form(seed):
    """min q·y = y₀ + (y₁ − y₀)·x with x the smallest root of the binary divergence."""
    rng = np.random.default_rng(seed)
    p = nominal(rng, (4, 2), 1e-9)
    y = rng.normal(size=(4, 2)) * 10.0 ** rng.uniform(-6, 6, (4, 1))
    y.sort(-1)
    radius = 10.0 ** rng.uniform(-12, 1, 4)
    response = KL(radius).respond(p, y)
    for i in range(4):
        x = float(binary_minimum(p[i, 1], radius[i]))
        assert abs(response.kernel[i, 1] - x) <= 1e-9
        truth = y[i, 0] + x * (y[i, 1] - y[i, 0])
        assert abs(response.value[i] - truth) <= 1e-9 * (y[i, 1] - y[i, 0]) + 8 * EPS * abs(y[i, 0])


def test_the_minimum_is_reached_from_its_radius_on_and_not_before():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(5), 6), rng.normal(size=(6, 5))
    edge = -np.log(at_minimum(p, y))
    conditioned = np.eye(5)[y.argmin(-1)]
    for radius in (edge * (1 + 1e-12), edge + 1, np.full(6, np.inf)):
        response = KL(radius).respond(p, y)
        np.testing.assert_allclose(response.kernel, conditioned, rtol=2 * EPS)
        np.testing.assert_array_equal(response.value, y.min(-1))
        np.testing.assert_array_equal(response.lower, y.min(-1))
    assert (KL(edge * 0.999).respond(p, y).value > y.min(-1)).all()


def test_ties_for_the_minimum_share_its_mass_as_they_did():
    p, y = np.array([[0.1, 0.3, 0.6, 0.0]]), np.array([[1.0, 1.0, 5.0, 0.0]])
    q = KL(-np.log(0.4) + 1e-9).worst_response(p, y)
    np.testing.assert_allclose(q, [[0.25, 0.75, 0.0, 0.0]], rtol=1e-15)


def test_bounds_are_honest_to_the_last_digits():
    """Multipliers around one, where the two ways of computing a tilt meet, and low targets rare."""
    rng = np.random.default_rng(0)
    low = rng.uniform(0.05, 0.4, (60, 1))
    p = np.c_[low, (1 - low) * rng.dirichlet(np.ones(4), 60)]
    y = np.c_[np.zeros(60), rng.uniform(0.7, 1.0, (60, 4))]
    radius = 10.0 ** rng.uniform(-2.5, -1, 60)
    response = KL(radius).respond(p, y)
    truth = np.array([float(Exact(*row).minimum(r)) for *row, r in zip(p, y, radius, strict=True)])
    assert (response.lower <= truth + 16 * EPS).all()
    assert (response.value >= truth - 16 * EPS).all()
    assert (np.abs(response.kernel.sum(-1) - 1) <= 16 * EPS).all()


# --- divergence


@given(seed=seeds)
@light
def test_divergence_equals_sixty_digits(seed):
    rng = np.random.default_rng(seed)
    p, q = nominal(rng, (6, 5), 1e-12), nominal(rng, (6, 5), 1e-12)
    for other in (q, p, p + 1e-6 * (q - p)):
        exact = [exact_divergence(*row) for row in zip(p, other, strict=True)]
        np.testing.assert_allclose(KL(0.1).divergence(p, other), exact, rtol=1e-12, atol=1e-15)


def test_divergence_is_infinite_outside_the_support_and_finite_on_a_part_of_it():
    p = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    q = np.array([[0.5, 0.4, 0.1], [1.0, 0.0, 0.0]])
    np.testing.assert_allclose(KL(0.1).divergence(p, q), [np.inf, np.log(2)], rtol=1e-15)


# --- projections


def with_zeros(rng, rows, share):
    rows = np.where(
        (rng.random(rows.shape) < share) & (rows < rows.max(-1, keepdims=True)), 0, rows
    )
    return rows / rows.sum(-1, keepdims=True)


@given(shape=st.sampled_from(SHAPES), seed=seeds)
@light
def test_euclidean_projection_equals_a_convex_solver(shape, seed):
    rng = np.random.default_rng(seed)
    p = with_zeros(rng, nominal(rng, shape, 1e-5), 0.2)
    z = rng.dirichlet(np.ones(shape[1]), shape[0]) + rng.choice([0.0, 1.0]) * rng.normal(size=shape)
    radius = 10.0 ** rng.uniform(-4, 0.5, shape[0])
    nearest = KL(radius).project(p, z)
    for i in range(shape[0]):
        kept = p[i] > 0
        target = z[i, kept]
        found = over_ball(p[i, kept], radius[i], lambda q, z=target: cp.sum_squares(q - z))
        if found is not None:
            distance = ((nearest[i, kept] - target) ** 2).sum()
            assert abs(distance - found) <= 1e-6 * max(1.0, found)
            assert exact_divergence(p[i], nearest[i]) <= radius[i] + 1e-8


@given(
    shape=st.sampled_from(SHAPES),
    seed=seeds,
    far=st.sampled_from([1e-6, 1.0, 1e3, 1e8]),
    smallest=st.sampled_from([1e-3, 1e-12, 1e-100]),
)
@settings(light, max_examples=30)
def test_no_member_is_nearer_than_the_euclidean_projection(shape, seed, far, smallest):
    """(z − q)·(m − q) ≤ 0 for every member m; the worst m is the worst response to q − z."""
    rng = np.random.default_rng(seed)
    p = with_zeros(rng, nominal(rng, shape, smallest), 0.2)
    z = p + far * rng.normal(size=shape)
    ball = KL(10.0 ** rng.uniform(-6, 1, shape[0]))
    nearest = ball.project(p, z)
    uphill = np.where(p > 0, z - nearest, 0.0)
    gap = -ball.dual_value(p, -uphill) - (uphill * nearest).sum(-1)
    assert (gap <= 1e-8 * np.maximum(np.ptp(uphill, axis=-1), 1e-3)).all()
    assert ball.contains(p, nearest).all()


@given(shape=st.sampled_from(SHAPES), seed=seeds, zeros=st.sampled_from([0.0, 0.4]))
@light
def test_kl_projection_equals_a_convex_solver(shape, seed, zeros):
    rng = np.random.default_rng(seed)
    p = with_zeros(rng, nominal(rng, shape, 1e-4), zeros / 2)
    q = with_zeros(rng, nominal(rng, shape, 1e-4), zeros)
    shared = (p > 0) & (q > 0)
    left = np.where(shared, p, 0.0).sum(-1)
    # A projection exists where the ball reaches the support that p and q share.
    radius = -np.log(np.maximum(left, 1e-9)) + 10.0 ** rng.uniform(-4, 0.5, shape[0])
    nearest = KL(radius).project(p, q, geometry="kl")
    for i in np.flatnonzero(left > 0):
        kept, target = shared[i], q[i, shared[i]]
        mass = p[i, kept].sum()
        room = radius[i] + np.log(mass)
        objective = over_ball(
            p[i, kept] / mass, room, lambda x, q=target: cp.sum(cp.rel_entr(x, q))
        )
        if objective is not None:
            assert abs(exact_divergence(q[i], nearest[i]) - objective) <= 1e-6 * max(1, objective)
            assert exact_divergence(p[i], nearest[i]) <= radius[i] + 1e-8


def test_kl_projection_of_what_the_ball_does_not_reach_is_the_nominal_row():
    p, q = np.array([[0.5, 0.5, 0.0]]), np.array([[0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(KL(10.0).project(p, q, geometry="kl"), p)
    far = np.array([[0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(KL(0.1).project(p, far, geometry="kl"), p)
    np.testing.assert_array_equal(KL(0.8).project(p, far, geometry="kl"), far)


# --- tilts


def tilted(p, logit, strength):
    exponent = strength * np.where(p > 0, logit, -np.inf)
    weight = p * np.exp(exponent - exponent.max())
    return weight / weight.sum()


@given(shape=st.sampled_from(SHAPES), seed=seeds, scale=st.sampled_from([0.01, 1.0, 30.0, 1e4]))
@settings(light, max_examples=30)
def test_tilt_goes_as_far_as_the_radius_allows_and_not_past_one(shape, seed, scale):
    rng = np.random.default_rng(seed)
    p = with_zeros(rng, nominal(rng, shape, 1e-6), 0.2)
    logit = scale * rng.normal(size=shape)
    radius = 10.0 ** rng.uniform(-6, 1, shape[0])
    result = KL(radius).tilt(p, logit)
    for i in range(shape[0]):
        whole = exact_divergence(p[i], tilted(p[i], logit[i], 1.0))
        reached = exact_divergence(p[i], result[i])
        assert abs(reached - min(whole, radius[i])) <= 1e-8 * max(1.0, radius[i])
        assert_on_the_path(p[i], logit[i], result[i])


def assert_on_the_path(p, logit, q):
    """log(q/p) is an affine function of the logits, wherever q can be told from zero."""
    seen = (p > 0) & (q > 1e-12)
    if seen.sum() < 3:
        return
    ratio, logit = np.log(q[seen] / p[seen]), logit[seen]
    strength = np.ptp(ratio) / max(np.ptp(logit), 1e-300)
    assert strength <= 1 + 1e-9
    predicted = strength * (logit - logit.max())
    np.testing.assert_allclose(ratio - ratio.max(), predicted, atol=1e-8 * max(1, np.ptp(ratio)))


def test_tilt_reaches_the_largest_logit_where_the_radius_is_just_enough():
    """At the radius −log p(k) itself, which way it was rounded must not matter."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 100)
    largest = np.arange(100) % 5
    edge = -np.log(p[np.arange(100), largest])
    for radius in (edge, np.nextafter(edge, 0), np.nextafter(edge, np.inf)):
        result = KL(radius).tilt(p, 1e3 * np.eye(5)[largest])
        np.testing.assert_allclose(result, np.eye(5)[largest], atol=1e-6)


def test_tilts_and_projections_are_members_even_of_a_search_that_is_stopped_early():
    rng = np.random.default_rng(0)
    ball = KL(0.1, max_steps=2)
    p, q = rng.dirichlet(np.ones(5), 100), rng.dirichlet(np.full(5, 0.3), 100)
    assert ball.contains(p, ball.project(p, q)).all()
    assert ball.contains(p, ball.project(p, q, geometry="kl")).all()
    assert ball.contains(p, ball.tilt(p, 3 * rng.normal(size=(100, 5)))).all()
