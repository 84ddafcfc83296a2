"""Brackets of the minimum over a set hold after rounding, at the edges of double precision too."""

import os

import numpy as np
import pytest
from tests.extended_precision import LONG_EPS, least_row_value

import holdfast as hf
from holdfast.model.checks import normalised

ROWS, WIDTH = 64, 5
TINY, EPS = np.finfo(float).tiny, np.finfo(float).eps
SEEDS = range(200 if os.environ.get("HOLDFAST_CAMPAIGN") else 2)


def draw_rows(rng):
    """Rows of five kinds: dense, with zeros, small, down to the smallest normal number, certain."""
    shape = (ROWS, WIDTH)
    p = rng.dirichlet(np.full(WIDTH, rng.choice([0.2, 1.0, 5.0])), ROWS)
    kind = rng.integers(5, size=(ROWS, 1))
    p = np.where((kind == 1) & (rng.random(shape) < 0.5), 0.0, p)
    p = np.where(kind == 2, p * 10.0 ** rng.uniform(-20, 0, shape), p)
    p = np.where(kind == 3, 10.0 ** rng.uniform(-307.6, 0, shape) * (rng.random(shape) > 0.3), p)
    p = np.where(kind == 4, np.where(rng.random(shape) < 0.4, 2.3e-308, 0.0), p)
    top = rng.integers(WIDTH, size=ROWS)
    p[np.arange(ROWS), top] = np.where((p.max(-1) < 1e-3) | (kind[:, 0] == 4), 1.0, p.max(-1))
    p = normalised(p / p.sum(-1, keepdims=True))
    return np.where(p < TINY, 0.0, p)


def draw_targets(rng):
    """Targets of all sizes, with ties, far from zero, and a few rounding errors apart."""
    y = rng.normal(size=(ROWS, WIDTH))
    kind = rng.integers(5, size=(ROWS, 1))
    y = np.where(kind == 1, np.round(y), y)
    y = np.where(kind == 2, y + 1e3, y)
    y = np.where(kind == 3, y * 10.0 ** rng.uniform(-12, 0, y.shape), y)
    y = np.where(kind == 4, 1 + np.round(y) * 3 * EPS, y)
    return y * 10.0 ** rng.integers(-9, 13, (ROWS, 1))


def draw_radii(rng, p, y):
    """Radii from zero to infinity; some just under or over the one that reaches the minimum."""
    radius = rng.choice([0, 1e-300, 1e-20, 1e-12, 1e-8, 1e-4, 0.1, 1, 100, 1e4, np.inf], ROWS)
    supported = np.where(p > 0, y, np.inf)
    mass = np.where(supported == supported.min(-1, keepdims=True), p, 0.0).sum(-1)
    near = 10.0 ** rng.uniform(-17, -1, ROWS) * rng.choice([-1, 1], ROWS)
    edges = -np.log(mass), np.minimum((1 - mass) / mass, 1e307)
    choice = rng.random(ROWS)
    radius = np.where(choice < 0.2, edges[0] * (1 - near), radius)
    radius = np.where((choice > 0.2) & (choice < 0.4), edges[1] * (1 - near), radius)
    radius = np.where(choice > 0.8, 10.0 ** rng.uniform(-15, 3, ROWS), radius)
    return np.where(radius < TINY, 0.0, radius)


def intervals(rng, p, radius):
    room = rng.random(p.shape) ** rng.integers(1, 30)
    closed, lower = rng.random(p.shape), p * rng.random(p.shape)
    lower = np.where((closed < 0.3) | (lower < TINY), np.where(closed < 0.3, p, 0.0), lower)
    upper = np.where(closed > 0.7, p, np.minimum(1.0, p + (1 - p) * room))
    return hf.Interval(lower, upper, radius=np.where(radius < 1e3, radius, np.inf))


def transport(rng, p, radius):
    places = np.cumsum(10.0 ** rng.uniform(-3, 3, WIDTH))
    return hf.Wasserstein(radius, metric=np.abs(places[:, None] - places))


MAKE = {
    "kl": lambda rng, p, radius: hf.KL(radius),
    "chi-square": lambda rng, p, radius: hf.ChiSquare(radius),
    "total-variation": lambda rng, p, radius: hf.TotalVariation(radius),
    "total-variation within": lambda rng, p, r: hf.TotalVariation(r, within_support=True),
    "contamination": lambda rng, p, radius: hf.Contamination(radius),
    "contamination within": lambda rng, p, r: hf.Contamination(r, within_support=True),
    "interval": intervals,
    "wasserstein": transport,
}


@pytest.mark.campaign
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_brackets_contain_the_minimum(make, seed):
    rng = np.random.default_rng(seed)
    p, y = draw_rows(rng), draw_targets(rng)
    ball = make(rng, p, draw_radii(rng, p, y))
    _, lower, upper = ball.bracket(p, y)
    for i, radius in enumerate(ball.radius):
        truth = least_row_value(ball, p[i], y[i], radius, i)
        accuracy = 64 * LONG_EPS * np.abs(y[i]).max()
        assert lower[i] - accuracy <= truth <= upper[i] + accuracy, (i, p[i], y[i], radius)
    assert np.isfinite(upper - lower).all()
    # Not needlessly wide.
    width = (upper - lower) / (EPS * np.abs(y).max(-1))
    assert np.median(width) < 200


@pytest.mark.parametrize("radius", [1.0, 100.0, 700.0, 708.0, 708.36, 709.0, np.inf])
def test_kl_reaches_the_smallest_probability(radius):
    """p·exp(−βu) underflows here, and the dual must not gain from it."""
    p, y = np.array([[2.3e-308, 1.0]]), np.array([[0.0, 1.0]])
    ball = hf.KL(radius)
    response, lower, upper = ball.bracket(p, y)
    truth = least_row_value(ball, p[0], y[0], radius)
    assert lower <= truth <= upper
    assert upper - lower < 1e-12
    assert ball.contains(p, response.kernel).all()


@pytest.mark.parametrize("radius", [1.0, 1e100, 1e300, 1e307, 4.3e307, 4.4e307, np.inf])
def test_chi_square_reaches_the_smallest_probability(radius):
    p, y = np.array([[2.3e-308, 1.0]]), np.array([[0.0, 1.0]])
    ball = hf.ChiSquare(radius)
    _, lower, upper = ball.bracket(p, y)
    assert lower <= least_row_value(ball, p[0], y[0], radius) <= upper
    assert upper - lower < 1e-12


def test_a_response_with_tiny_probabilities_is_a_member():
    rng = np.random.default_rng(0)
    p = np.concatenate([10.0 ** rng.uniform(-223, -221, (50, 1)), np.ones((50, 1))], axis=1)
    radius = -np.log(p[:, 0]) * (1 - 10.0 ** rng.uniform(-12, -1, 50))
    ball = hf.KL(radius)
    q = ball.worst_response(p, np.array([[0.0, 1.0]] * 50))
    assert ball.contains(p, q).all()
    assert (ball.member_share(p, q) > 1 - 1e-10).all()


def test_the_divergence_of_a_near_row_has_full_relative_accuracy():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 40)
    q = p * (1 + 10.0 ** rng.uniform(-9, 0.5, (40, 1)) * rng.uniform(-0.3, 1, p.shape))
    ratio = q.astype(np.longdouble) / p
    # Σ p·φ(q/p), φ(x) = x·log x − x + 1, through log1p in extended precision.
    away = (q - p.astype(np.longdouble)) / p
    series = sum((-1) ** k * away**k / (k * (k - 1)) for k in range(2, 12))
    exact = np.where(np.abs(away) < 0.01, series, ratio * np.log(ratio) - away)
    np.testing.assert_allclose(
        hf.KL(1.0).divergence(p, q), (p * exact).sum(-1).astype(float), rtol=128 * EPS
    )


def test_small_radii_and_distances_are_refused():
    with pytest.raises(ValueError, match=r"radius: expected 0 or at least the smallest normal"):
        hf.KL(1e-310)
    with pytest.raises(ValueError, match=r"upper: .* got 1e-310 at \(state 0, action 1\)"):
        hf.Interval([[0.5, 0.0]], [[1.0, 1e-310]])
    with pytest.raises(ValueError, match=r"metric: expected 0 or a normal number, got 1e-310"):
        hf.Wasserstein(0.1, metric=[[0, 1e-310], [1e-310, 0]])
    assert hf.KL(1e-300).scaled(1e-100).radius == TINY
    assert hf.KL(1e-300).scaled(0).radius == 0


def test_a_set_without_a_convex_divergence_is_checked_again():
    """The share of a user's set rests on the divergence of the mixture, not on its convexity."""

    class Crooked(hf.uncertainty.UncertaintySet):
        def worst_response(self, p, y):
            return hf.TotalVariation(1.0, within_support=True).worst_response(p, y)

        def dual_value(self, p, y):
            return hf.TotalVariation(1.0, within_support=True).dual_value(p, y)

        def divergence(self, p, q):
            return (abs(q - p).sum(-1) / 2) ** 0.25

    p, y = np.array([[0.5, 0.5]]), np.array([[0.0, 1.0]])
    _, lower, upper = Crooked(0.5).bracket(p, y)
    assert upper >= 0.5 - 0.5**4  # only p itself, or what is within a distance of radius⁴
    assert lower <= 0
