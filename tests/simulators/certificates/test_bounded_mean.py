"""Confidence limits fail no more often than their risk."""

import numpy as np
import pytest
from scipy.stats import binom
from tests.simulators.certificates.known_simulators import worst_mean

from holdfast.simulators.certificates.bounded_mean import (
    divergence_bound,
    lower_limit,
    share_limit,
    upper_limit,
)

RISK = 0.1
LAWS = {
    "coin": lambda g, n: g.binomial(1, 0.3, n).astype(float),
    "rare": lambda g, n: g.binomial(1, 0.01, n).astype(float),
    "uniform": lambda g, n: g.uniform(size=n),
}
MEANS = {"coin": 0.3, "rare": 0.01, "uniform": 0.5}


@pytest.mark.parametrize("law", LAWS)
def test_limits_of_a_mean_fail_at_most_as_often_as_their_risk(law):
    generator, repetitions = np.random.default_rng(0), 200
    draws = [LAWS[law](generator, 100) for _ in range(repetitions)]
    above = sum(upper_limit(x, RISK) < MEANS[law] for x in draws)
    below = sum(lower_limit(x, RISK) > MEANS[law] for x in draws)
    assert max(above, below) <= binom.ppf(0.999, repetitions, RISK)


def test_limits_are_tight_and_never_leave_the_range():
    x = np.random.default_rng(0).uniform(size=5000)
    assert x.mean() < upper_limit(x, 0.05) < x.mean() + 0.015
    assert upper_limit(np.ones(10), 0.05) == 1.0
    assert upper_limit(np.array([0.1, np.nan]), 0.05) == 1.0
    # Nothing seen in n draws: the limit is about log(1/risk)/n, as for an exact binomial limit.
    assert upper_limit(np.zeros(2000), 0.05) < 2 * share_limit(0, 2000, 0.05)


def test_exact_limit_of_a_share():
    for successes in (0, 3, 19):
        limit = share_limit(successes, 20, 0.1)
        assert binom.cdf(successes, 20, limit) == pytest.approx(0.1)
    assert share_limit(20, 20, 0.1) == 1.0


def test_the_divergence_bound_covers_the_largest_mean():
    values, p, radius = np.array([0.0, 0.3, 1.0]), np.array([0.6, 0.3, 0.1]), 0.1
    worst = worst_mean(values, p, radius)
    generator, repetitions = np.random.default_rng(0), 100
    bounds = []
    for _ in range(repetitions):
        halves = [values[generator.choice(3, 300, p=p)] for _ in range(2)]
        bounds.append(divergence_bound(tuple(halves), 1.0, radius, RISK)[0])
    assert sum(bound < worst for bound in bounds) <= binom.ppf(0.999, repetitions, RISK)
    # With many draws it is close.
    many = tuple(values[generator.choice(3, 20_000, p=p)] for _ in range(2))
    assert worst < divergence_bound(many, 1.0, radius, RISK)[0] < 1.06 * worst
