"""Bootstrap and Wilson intervals against plain resampling and the normal distribution."""

import math

import numpy as np
import pytest
import scipy.stats

from holdfast.simulators.certificates.intervals import (
    ConfidenceInterval,
    bootstrap_interval,
    measured,
    share_interval,
    verdict,
)


def test_the_interval_is_that_of_plain_resampling():
    values = np.random.default_rng(1).exponential(size=40)
    found = bootstrap_interval([values], 0.9, seed=0)
    plain = np.random.default_rng(9).choice(values, (20_000, len(values))).mean(1)
    error = plain.std()
    np.testing.assert_allclose(found[1:], np.percentile(plain, [5, 95]), atol=0.15 * error)


def test_many_episodes_are_resampled_in_blocks_of_the_same_spread():
    values = np.random.default_rng(1).exponential(size=20_001)
    found = bootstrap_interval([values], 0.9, seed=0)
    assert found.mean == pytest.approx(values.mean())
    half = scipy.stats.norm.ppf(0.95) * values.std() / math.sqrt(len(values))
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_intervals_of_normal_numbers_are_those_of_the_normal_distribution():
    rng = np.random.default_rng(3)
    agents = [rng.normal(1.0, 2.0, 4000), rng.normal(3.0, 1.0, 4000)]
    value = measured(agents, 0.9, seed=0)
    z = scipy.stats.norm.ppf(0.95)
    errors = [each.std() / math.sqrt(len(each)) for each in agents]
    for interval, each, error in zip(value.agents, agents, errors, strict=True):
        assert interval.mean == pytest.approx(each.mean())
        assert interval.low == pytest.approx(each.mean() - z * error, abs=0.2 * error)
        assert interval.high == pytest.approx(each.mean() + z * error, abs=0.2 * error)
    together = math.hypot(*errors) / 2
    assert value.low == pytest.approx(value.mean - z * together, abs=0.2 * together)
    assert value.high == pytest.approx(value.mean + z * together, abs=0.2 * together)
    assert measured(agents, 0.9, seed=0) == value
    assert measured(agents, 0.9, seed=1) != value


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        value = measured([rng.binomial(1, 0.1, 400).astype(float)], 0.9, seed=trial)
        covered += value.low <= 0.1 <= value.high
    assert 0.83 <= covered / 200 <= 0.96


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (40, 1000)])
def test_a_share_has_the_wilson_interval(successes, trials):
    """The shares p with |p̂ − p| ≤ z·√(p(1 − p)/n): the ends solve a quadratic equation."""
    found = share_interval(successes, trials, 0.9)
    z, share = scipy.stats.norm.ppf(0.95), successes / trials
    ends = np.roots([1 + z**2 / trials, -2 * share - z**2 / trials, share**2])
    np.testing.assert_allclose(found, (share, *sorted(ends)), atol=1e-12)


@pytest.mark.parametrize(
    ("limit", "expected"), [(0.89, "violated"), (0.9, "undecided"), (1.1, ""), (1.09, "undecided")]
)
def test_the_verdict_compares_the_ends_with_the_limit(limit, expected):
    assert verdict(ConfidenceInterval(1.0, 0.9, 1.1), limit) == expected
