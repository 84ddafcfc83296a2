"""How long measured episodes are, and how noise is added to an environment."""

import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.certificates.attack import Noisier, Prolonged, played_length


def test_discounted_episodes_are_played_until_little_is_left():
    assert played_length(200, (0.9, 0.9), bootstrap=True) == 200
    length = played_length(10, (0.99, 0.95), bootstrap=True)
    assert 0.99**length <= 1e-3 < 0.99 ** (length - 1)
    assert played_length(10, (0.99, 1.0), bootstrap=False) == 10


def test_noise_is_scaled_and_added_to_actions_before_the_step():
    linear = LinearGaussian()
    noisy = Noisier(linear, jnp.asarray(2.0), jnp.asarray(0.5))
    assert noisy.disturbance.size == 5
    state, action = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2])
    w = jnp.array([0.3, -0.3, 0.1, 1.0, -2.0])
    there = noisy.step(state, action, w)
    direct = linear.step(state, action + 0.5 * w[3:], 2 * w[:3])
    np.testing.assert_allclose(there.state, direct.state, rtol=1e-6)
    assert float(there.reward) == pytest.approx(float(direct.reward))


def test_a_wrapper_is_its_environment_but_for_what_it_changes():
    env = LinearGaussian(horizon=40)
    longer = Prolonged(env, 70)
    assert (longer.horizon, longer.name, longer.discount) == (70, env.name, env.discount)
    assert longer.action_space == env.action_space
    state, action, w = jnp.ones(3), jnp.ones(2), jnp.ones(3)
    np.testing.assert_array_equal(
        longer.nature_features(state, action), env.nature_features(state, action)
    )
    assert longer.step(state, action, w).reward == env.step(state, action, w).reward
    table = TableSimulator(hf.environments.n_chain(nodes=5))
    rows = Prolonged(table, 7).outcome_probabilities(jnp.array(1), jnp.array(0))
    np.testing.assert_allclose(rows, [0.9, 0.1], rtol=1e-6)
