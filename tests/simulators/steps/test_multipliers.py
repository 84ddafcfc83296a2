"""Multipliers against Adam written out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.simulators.steps.multipliers import Multipliers, MultiplierSettings
from holdfast.simulators.steps.trust_region import Evidence


def adam_by_hand(excesses, start, rate):
    """λ after each step of projected Adam, with its usual decays 0.9 and 0.999."""
    values, first, second, found = np.full(len(excesses[0]), start), 0.0, 0.0, []
    for t, gradient in enumerate(excesses, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        unbiased = first / (1 - 0.9**t), second / (1 - 0.999**t)
        values = np.maximum(values + rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8), 0)
        found.append(values)
    return np.array(found)


def batch(advantages, live):
    """The evidence of a reward; only its advantages and the weights of its steps are read."""
    advantages, weights = jnp.asarray(advantages, jnp.float32), jnp.asarray(live, jnp.float32) / 5
    return Evidence(None, None, None, advantages, weights)


def test_they_follow_adam_and_stay_positive():
    rng = np.random.default_rng(0)
    excesses = rng.normal(size=(12, 3)) * [1.0, 1e3, 1e-3] + [0.5, -2e3, 0.0]
    settings = MultiplierSettings(multiplier=0.05, multiplier_learning_rate=0.035)
    multipliers, found = Multipliers.create(3, settings), []
    for each in excesses:
        multipliers = multipliers.after(jnp.asarray(each, jnp.float32), batch([1.0], [1]), settings)
        found.append(np.asarray(multipliers.values))
    expected = adam_by_hand(excesses, 0.05, 0.035)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    assert (expected[-1, 1], found[-1][1]) == (0, 0)  # the second cost is always under its limit


def test_the_first_step_is_the_learning_rate_whatever_the_unit_of_the_cost():
    settings = MultiplierSettings()
    first = Multipliers.create(2, settings)
    after = first.after(jnp.array([1e-2, 1e4]), batch([1.0], [1]), settings)
    np.testing.assert_allclose(after.values, [0.036, 0.036], rtol=1e-4)


def test_shares_are_in_units_of_the_spread_of_all_advantages_so_far():
    settings = MultiplierSettings(multiplier=1.5, multiplier_learning_rate=1e-6)
    multipliers = Multipliers.create(2, settings)
    advantages, live = np.random.default_rng(0).normal(size=(2, 50)) * [[8.0], [0.1]], np.ones(50)
    live[-9:] = 0
    for each in advantages:
        multipliers = multipliers.after(jnp.zeros(2), batch(each, live), settings)
    spread = advantages[:, live > 0].std()
    # The weights of a live step are 1/5 and sum to 41/5; the second cost's are a third of that.
    same = batch(advantages[0], live)
    shares = multipliers.shares((same, same, batch(advantages[0], live / 3)))
    np.testing.assert_allclose(shares * 41 / 5, [1 / spread / 4, 1.5 / 4, 3 * 1.5 / 4], rtol=1e-5)


@pytest.mark.parametrize("values", [{"multiplier": -1.0}, {"multiplier_learning_rate": 0.0}])
def test_a_bad_setting_is_named(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        MultiplierSettings(**values)
