"""Limits on means: against a scalar implementation, and under a stopping rule made to break them."""

from __future__ import annotations

import os

import numpy as np
import pytest

from holdfast.uncertainty.mean_limits import mean_limits

FULL = "HOLDFAST_CAMPAIGN" in os.environ


def bernstein(x: np.ndarray, risk: float) -> tuple[float, float]:
    """The predictable plug-in empirical Bernstein sequence, one observation at a time."""
    log_risk = np.log(2 / risk)
    total, squares, mean, variance = 0.0, 0.0, 0.5, 0.25
    weights = products = spread = 0.0
    low, high = -np.inf, np.inf
    for t, value in enumerate(x, start=1):
        bet = min(np.sqrt(2 * log_risk / (variance * t * np.log(1 + t))), 0.5)
        spread += 4 * (value - mean) ** 2 * (-np.log(1 - bet) - bet) / 4
        weights, products = weights + bet, products + bet * value
        total += value
        mean = (0.5 + total) / (t + 1)
        squares += (value - mean) ** 2
        variance = (0.25 + squares) / (t + 1)
        low = max(low, (products - log_risk - spread) / weights)
        high = min(high, (products + log_risk + spread) / weights)
    return low, high


def mixture(x: np.ndarray, risk: float) -> tuple[float, float]:
    """Means that the Beta mixture does not reject, on a grid."""
    from scipy.special import betaln

    n, total = len(x), x.sum()
    grid = np.linspace(1e-4, 1 - 1e-4, 9999)
    log_mixture = betaln(total + 0.5, n - total + 0.5) - betaln(0.5, 0.5)
    kept = grid[log_mixture - total * np.log(grid) - (n - total) * np.log1p(-grid) <= -np.log(risk)]
    return kept.min(), kept.max()


@pytest.mark.parametrize("seed", range(4))
def test_both_limits_equal_a_scalar_implementation(seed):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 4, 300)
    values = rng.beta(2, 5, 300) if seed % 2 else rng.integers(0, 2, 300) * 0.3
    found = mean_limits(values, group, 5, risk=0.02)
    for g in range(4):
        x = values[group == g]
        low, high = zip(bernstein(x, 0.01), mixture(x, 0.01), strict=True)
        assert found.lower[g] == pytest.approx(max(*low, 0.0), abs=2e-4)
        assert found.upper[g] == pytest.approx(min(*high, 1.0), abs=2e-4)
        assert found.mean[g] == pytest.approx(x.mean())
    assert (found.lower[4], found.upper[4], found.visits[4]) == (0, 1, 0)


def test_small_variance_and_many_observations_make_the_limits_tight():
    few, many = (mean_limits(np.full(n, 0.7), np.zeros(n, int), 1, 0.01) for n in (10, 10_000))
    assert few.upper[0] - few.lower[0] > 0.4
    assert many.upper[0] - many.lower[0] < 0.005


@pytest.mark.campaign
def test_stopping_when_the_mean_looks_good_does_not_break_the_limits():
    """Stop at the first n after which the running mean is far above the truth."""
    rng, risk, truth = np.random.default_rng(0), 0.2, 0.3
    repetitions = 2_000 if FULL else 200
    failed = 0
    for _ in range(repetitions):
        x = (rng.random(400) < truth).astype(float)
        running = np.cumsum(x) / np.arange(1, 401)
        n = int(np.argmax(running[5:] - truth - 1 / np.sqrt(np.arange(6, 401)))) + 6
        found = mean_limits(x[:n], np.zeros(n, int), 1, risk)
        failed += not found.lower[0] <= truth <= found.upper[0]
    assert failed / repetitions <= risk + 3 * np.sqrt(risk * (1 - risk) / repetitions)
