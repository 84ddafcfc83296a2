"""Each set against closed forms, against the others, and at the door."""

import numpy as np
import pytest

import holdfast as hf
from holdfast.uncertainty import KL, ChiSquare, Contamination, Interval, TotalVariation

# One shape, and a radius for every row, as in the tests of the family.
SHAPE = (24, 5)
EPS = np.finfo(float).eps


def some_rows(seed, zeros=0.3, concentration=1.0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(SHAPE[1], concentration), SHAPE[0])
    p = np.where((rng.random(SHAPE) < zeros) & (p < p.max(-1, keepdims=True)), 0.0, p)
    y = rng.normal(size=SHAPE)
    y[::2] = np.round(y[::2])
    return p / p.sum(-1, keepdims=True), y


def radii(seed, low=-4, high=0):
    return 10.0 ** np.random.default_rng(seed).uniform(low, high, SHAPE[0])


# --- one in another


def within(radius):
    return TotalVariation(radius, within_support=True)


# A set, and one that holds it, from a radius. Pinsker: TV ≤ √(KL/2); KL ≤ log(1 + χ²); 2·TV ≤ √χ².
NESTED = {
    "KL in TV": (KL, lambda r: within(np.sqrt(r / 2))),
    "χ² in KL": (ChiSquare, lambda r: KL(np.log1p(r))),
    "χ² in TV": (ChiSquare, lambda r: within(np.sqrt(r) / 2)),
    "TV within in TV": (within, TotalVariation),
    "contamination in TV": (Contamination, TotalVariation),
    "contamination within in TV within": (lambda r: Contamination(r, within_support=True), within),
}


@pytest.mark.parametrize(("inner", "outer"), NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("seed", range(2))
def test_a_set_in_another_is_less_bad_and_its_members_are_members(inner, outer, seed):
    p, y = some_rows(seed)
    radius = radii(seed)
    small, large = inner(radius), outer(radius)
    response = small.respond(p, y)
    assert (response.value >= large.respond(p, y).lower - 1e-12).all()
    assert large.contains(p, response.kernel).all()
    assert large.contains(p, small.project(p, y)).all()


@pytest.mark.parametrize("seed", range(3))
def test_contamination_is_an_interval_without_a_ceiling(seed):
    p, y = some_rows(seed)
    radius = radii(seed)
    mixture = Contamination(radius)
    bounds = Interval((1 - radius)[:, None] * p, np.ones(SHAPE), radius=np.ones(len(p)))
    np.testing.assert_allclose(
        mixture.respond(p, y).value, bounds.respond(p, y).value, atol=1e-14, rtol=1e-14
    )
    np.testing.assert_allclose(mixture.project(p, y), bounds.project(p, y), atol=1e-14)


# --- total variation


def test_mass_goes_from_the_largest_targets_to_the_smallest():
    p = np.array([0.3, 0.2, 0.0, 0.4, 0.1])
    y = np.array([1.0, 5.0, 0.0, 3.0, 5.0])
    expected = {
        0.15: ([0.3, 0.1, 0.15, 0.4, 0.05], [0.45, 0.1, 0.0, 0.4, 0.05]),
        0.5: ([0.3, 0.0, 0.5, 0.2, 0.0], [0.8, 0.0, 0.0, 0.2, 0.0]),
        0.8: ([0.2, 0.0, 0.8, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]),
        9.0: ([0.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]),
    }
    rows_p, rows_y = np.tile(p, (SHAPE[0], 1)), np.tile(y, (SHAPE[0], 1))
    for radius, (anywhere, in_support) in expected.items():
        every = np.full(SHAPE[0], radius)
        for ball, q in ((TotalVariation(every), anywhere), (within(every), in_support)):
            response = ball.respond(rows_p, rows_y)
            np.testing.assert_allclose(response.kernel[0], q, atol=1e-15)
            np.testing.assert_allclose(response.lower[0], np.dot(q, y), atol=2e-15)


def test_a_bound_of_total_variation_holds_for_all_members():
    """Members made at random, not by the set itself."""
    rng = np.random.default_rng(0)
    p, y = some_rows(0)
    radius = radii(0)
    lower = TotalVariation(radius).dual_value(p, y)
    for _ in range(200):
        q = rng.dirichlet(np.full(SHAPE[1], 0.3), len(p))
        distance = np.abs(q - p).sum(-1) / 2
        q = p + np.minimum(1, radius / distance)[:, None] * (q - p)
        assert (lower <= (q * y).sum(-1) + 1e-14).all()


# --- χ²


def test_two_outcomes_have_a_closed_form():
    """χ² is (q₀ − p₀)²/(p₀p₁), so q₀ = p₀ + √(radius·p₀p₁), and no more than one."""
    rng = np.random.default_rng(0)
    first = 10.0 ** rng.uniform(-12, 0, SHAPE[0])
    p = np.c_[first, 1 - first, np.zeros((SHAPE[0], 3))]
    y = np.tile([-1.0, 2.0, -9.0, 9.0, 0.0], (SHAPE[0], 1))
    for exponent in (-30, -12, -3, 0, 3):
        radius = 10.0 ** (exponent + rng.random(len(p)))
        response = ChiSquare(radius).respond(p, y)
        expected = np.minimum(1.0, first + np.sqrt(radius * first * p[:, 1]))
        np.testing.assert_allclose(response.kernel[:, 0], expected, rtol=1e-9)
        np.testing.assert_allclose(response.value, 2 - 3 * expected, atol=1e-14)
        np.testing.assert_allclose(response.lower, 2 - 3 * expected, atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_while_no_outcome_is_given_up_the_minimum_is_the_mean_less_deviations(seed):
    """Min q·y = E y − √(radius·Var y), as long as q stays positive."""
    p, y = some_rows(seed, concentration=5.0)
    mean = (p * y).sum(-1)
    variance = (p * (y - mean[:, None]) ** 2).sum(-1)
    highest = np.where(p > 0, y, -np.inf).max(-1) - mean
    most = variance / np.where(highest > 0, highest, 1.0) ** 2
    response = ChiSquare(0.99 * most).respond(p, y)
    np.testing.assert_allclose(response.value, mean - np.sqrt(0.99 * most * variance), atol=1e-14)
    assert (response.kernel[p > 0] > 0).all()


def test_the_minimum_is_reached_from_its_radius_on_and_not_before():
    p, y = some_rows(1)
    low = np.where(p > 0, y, np.inf).min(-1)
    at_minimum = (p > 0) & (y == low[:, None])
    mass = np.where(at_minimum, p, 0.0).sum(-1)
    edge = 1 / mass - 1
    for radius in (edge * (1 + 1e-12), edge + 1, np.full(len(p), np.inf)):
        response = ChiSquare(radius).respond(p, y)
        np.testing.assert_allclose(
            response.kernel, np.where(at_minimum, p, 0.0) / mass[:, None], rtol=1e-6, atol=1e-6
        )
        np.testing.assert_allclose(response.value, low, atol=1e-12)
        np.testing.assert_allclose(response.lower, low, atol=1e-12)
    several = edge > 1e-9  # more levels than one
    assert (ChiSquare(edge * 0.999).respond(p, y).value > low)[several].all()


@pytest.mark.parametrize("seed", range(3))
def test_a_projection_onto_the_chi_square_ball_is_stationary(seed):
    """On the edge z − q is a price for χ² times its slope, and one number more, where q > 0."""
    p, _ = some_rows(seed, zeros=0.0, concentration=5.0)
    z = np.random.default_rng(seed).normal(size=SHAPE)
    radius = radii(seed, -6, -1)
    q = ChiSquare(radius).project(p, z)
    edge = ChiSquare(radius).divergence(p, q)
    np.testing.assert_allclose(edge, radius, rtol=1e-9)
    for i in range(len(p)):
        free = q[i] > 1e-9
        slopes = np.c_[(q[i] - p[i])[free] / p[i][free], np.ones(free.sum())]
        prices = np.linalg.lstsq(slopes, (z - q)[i][free], rcond=None)[0]
        assert prices[0] >= 0
        np.testing.assert_allclose(slopes @ prices, (z - q)[i][free], atol=1e-8)


# --- contamination


def test_the_divergence_of_contamination_is_its_smallest_radius():
    rng = np.random.default_rng(0)
    p, _ = some_rows(0)
    radius = radii(0)
    corner = np.eye(SHAPE[1])[rng.integers(SHAPE[1], size=len(p))]
    q = (1 - radius)[:, None] * p + radius[:, None] * corner
    smallest = Contamination(radius).divergence(p, q)
    lost = ((p > 0) & (corner == 0)).any(-1)  # otherwise the corner is p itself
    np.testing.assert_allclose(smallest[lost], radius[lost], rtol=1e-9)
    assert Contamination(smallest).contains(p, q).all()
    assert not Contamination(smallest * 0.99).contains(p, q)[lost].any()


# --- intervals


def bounds_around(p, seed=0):
    low, high = np.random.default_rng(seed).random((2, *p.shape))
    return p * low, p + (1 - p) * high


def test_the_divergence_of_an_interval_is_its_smallest_factor():
    p, y = some_rows(0)
    lower, upper = bounds_around(p)
    for factor in (1e-3, 0.3, 1.0):
        bounds = Interval(lower, upper, radius=np.full(len(p), factor))
        q = bounds.worst_response(p, y)
        smallest = bounds.divergence(p, q)
        moved = np.abs(q - p).max(-1) > 1e-12
        np.testing.assert_allclose(smallest[moved], factor, atol=1e-10)
    pinned = Interval(p, p, radius=np.full(len(p), np.inf))
    assert np.isinf(pinned.divergence(p, q)[moved]).all()
    np.testing.assert_allclose(pinned.worst_response(p, y), p, atol=1e-15)


def test_an_infinite_factor_frees_what_is_open_at_all():
    p = np.tile([0.5, 0.3, 0.2, 0.0, 0.0], (SHAPE[0], 1))
    y = np.tile([3.0, 2.0, 1.0, 0.0, -1.0], (SHAPE[0], 1))
    upper = np.tile([1.0, 1.0, 1.0, 1e-3, 0.0], (SHAPE[0], 1))
    bounds = Interval(np.zeros(SHAPE), upper, radius=np.full(SHAPE[0], np.inf))
    np.testing.assert_array_equal(bounds.worst_response(p, y)[0], [0, 0, 0, 1, 0])
    np.testing.assert_array_equal(bounds.reach(p)[0], [True, True, True, True, False])


def test_narrow_intervals_are_not_lost_to_rounding():
    p, y = some_rows(0, zeros=0.0)
    every = np.ones(len(p))
    for width in (1e-15, 1e-12, 1e-9):
        lower, upper = np.maximum(p - width, 0), np.minimum(p + width, 1)
        bounds = Interval(lower, upper, radius=every)
        response = bounds.respond(p, y)
        assert bounds.contains(p, response.kernel).all()
        assert bounds.contains(p, bounds.project(p, y)).all()
        assert (np.abs(response.kernel.sum(-1) - 1) <= 16 * EPS).all()
        assert (np.abs(response.kernel - p) <= width + 4 * EPS).all()


def test_one_number_may_bound_all_entries():
    p, y = some_rows(0)
    p = (p + 0.2) / 2
    wide = Interval(np.full(SHAPE, 0.05), np.full(SHAPE, 0.9)).respond(p, y)
    for part, other in zip(Interval(0.05, 0.9).respond(p, y), wide, strict=True):
        np.testing.assert_array_equal(part, other)


# --- at the door


@pytest.mark.parametrize(
    ("lower", "upper", "sentence"),
    [
        (-0.1, 1.0, r"^lower: expected numbers in \[0, 1\], got -0.1$"),
        (0.0, np.full((1, 2, 3), 1.5), r"^upper: .* got 1.5 at \(state 0, action 0, entry 0\)$"),
        (np.nan, 1.0, r"^lower: expected numbers in \[0, 1\], got nan$"),
        ("low", 1.0, r"^lower: expected an array of numbers"),
        (
            np.zeros((1, 2, 3)),
            np.ones((1, 2, 4)),
            r"^upper: expected the shape of lower, \(1, 2, 3\)",
        ),
        (0.5, 0.4, r"^lower: expected at most upper, got 0.5 above 0.4$"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(lower, upper, sentence):
    with pytest.raises(ValueError, match=sentence):
        Interval(lower, upper)


def test_bounds_that_do_not_fit_the_model_are_refused():
    p = np.tile([0.25, 0.75], (2, 3, 1))
    Interval(p, p + 1e-13).check_fits(p + 1e-13)
    lower, upper = np.zeros(p.shape), np.ones(p.shape)
    lower[1, 2, 0] = 0.3
    with pytest.raises(
        ValueError,
        match=r"^lower: expected at most the nominal probability 0.25, "
        r"got 0.3 at \(state 1, action 2, entry 0\)$",
    ):
        Interval(lower, upper).check_fits(p)
    with pytest.raises(
        ValueError,
        match=r"^upper: expected at least the nominal probability 0.75, "
        r"got 0.5 at \(state 0, action 0, entry 1\)$",
    ):
        Interval(0.0, 0.5).check_fits(p)
    with pytest.raises(
        ValueError, match=r"^upper: expected a number or shape \(2, 3, 2\), got \(2,\)"
    ):
        Interval(0.0, [1.0, 1.0]).check_fits(p)


def test_a_model_takes_bounds_in_the_layout_of_its_kernel():
    p = np.tile([0.25, 0.75], (2, 3, 1))
    with pytest.raises(ValueError, match=r"^lower: expected at most the nominal"):
        hf.RobustCMDP(
            transitions=p,
            reward=np.zeros((2, 3)),
            initial=[1.0, 0.0],
            discount=0.9,
            uncertainty=Interval(0.5, 1.0),
        )
