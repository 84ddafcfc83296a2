"""Policies, critics and normalisers against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from holdfast.simulators.environment import Box, Discrete
from holdfast.simulators.policy.networks import (
    MLP,
    Categorical,
    Critic,
    Gaussian,
    Normaliser,
    Policy,
)

BOX = Box((-1.0, -0.25), (3.0, 0.25))


# --- normaliser


def test_normaliser_equals_mean_and_variance_of_all_it_saw():
    rng = np.random.default_rng(0)
    parts = [3 + 2 * rng.normal(size=(4, 50, 2)), -1 + 0.1 * rng.normal(size=(6, 20, 2))]
    weights = [(rng.random(part.shape[:-1]) < 0.7).astype(float) for part in parts]
    normaliser = Normaliser.create(2)
    for part, weight in zip(parts, weights, strict=True):
        normaliser = normaliser.updated(jnp.asarray(part, jnp.float32), jnp.asarray(weight))
    seen = np.concatenate([part[weight > 0] for part, weight in zip(parts, weights, strict=True)])
    np.testing.assert_allclose(normaliser.mean, seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normaliser.square, seen.var(0), rtol=1e-4)
    assert normaliser.count == len(seen)
    x = np.array([[0.5, 2.0]])
    expected = (x - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-6)
    np.testing.assert_allclose(normaliser(x), expected, rtol=1e-4)


def test_normaliser_that_has_seen_nothing_changes_nothing():
    normaliser = Normaliser.create(2)
    x = np.array([[0.5, -2.0]], np.float32)
    np.testing.assert_allclose(normaliser(x), x, rtol=1e-5)
    same = normaliser.updated(jnp.ones((3, 2)), jnp.zeros(3))
    jax.tree.map(np.testing.assert_array_equal, normaliser, same)


def test_normalised_inputs_are_bounded():
    normaliser = Normaliser.create(1).updated(jnp.full((100, 1), 5.0), jnp.ones(100))
    assert normaliser(jnp.array([5.0])) == 0
    assert normaliser(jnp.array([1e30])) == 10
    assert normaliser(jnp.array([-1e30])) == -10


# --- distributions


def test_gaussian_against_scipy():
    rng = np.random.default_rng(0)
    mean, log_std, action = rng.normal(size=(3, 4, 2))
    one = Gaussian(mean, log_std)
    expected = scipy.stats.norm.logpdf(action, mean, np.exp(log_std)).sum(-1)
    np.testing.assert_allclose(one.log_density(action), expected, rtol=1e-5)
    np.testing.assert_array_equal(one.mode(), mean)
    other_mean, other_log_std = rng.normal(size=(2, 4, 2))
    kl = (
        other_log_std
        - log_std
        + (np.exp(2 * log_std) + (mean - other_mean) ** 2) / (2 * np.exp(2 * other_log_std))
        - 0.5
    ).sum(-1)
    np.testing.assert_allclose(one.divergence(Gaussian(other_mean, other_log_std)), kl, rtol=1e-5)
    np.testing.assert_allclose(one.divergence(one), 0, atol=1e-6)


def test_categorical_against_numpy():
    rng = np.random.default_rng(0)
    logits, others = 2 * rng.normal(size=(2, 5, 3))
    one, p, q = (
        Categorical(logits),
        scipy.special.softmax(logits, -1),
        scipy.special.softmax(others, -1),
    )
    action = rng.integers(0, 3, 5)
    expected = np.log(p[np.arange(5), action])
    np.testing.assert_allclose(one.log_density(action), expected, rtol=1e-4)
    np.testing.assert_array_equal(one.mode(), p.argmax(-1))
    np.testing.assert_allclose(
        one.divergence(Categorical(others)), (p * np.log(p / q)).sum(-1), rtol=1e-4
    )


def test_metric_is_the_fisher_matrix():
    """E[∇log p ∇log pᵀ]: exactly for outcomes, in closed form for the normal distribution."""
    logits = np.array([0.3, -1.0, 0.8])
    p = scipy.special.softmax(logits)
    scores = np.eye(3) - p
    fisher = (scores * p[:, None]).T @ scores
    columns = [Categorical(logits).metric(Categorical(e)).logits for e in np.eye(3)]
    np.testing.assert_allclose(columns, fisher, atol=1e-6)
    log_std = np.array([0.5, -0.7])
    tangent = Gaussian(np.array([1.0, 2.0]), np.array([3.0, -1.0]))
    found = Gaussian(np.zeros(2), log_std).metric(tangent)
    np.testing.assert_allclose(found.mean, tangent.mean * np.exp(-2 * log_std), rtol=1e-6)
    np.testing.assert_allclose(found.log_std, 2 * tangent.log_std)


@pytest.mark.parametrize("space", [BOX, Discrete(3)])
def test_draws_follow_the_density(space):
    policy = Policy.create(jax.random.key(0), 2, (4,), space)
    rows = 20_000
    noise = policy.noise(jax.random.key(1), rows)
    if isinstance(space, Box):
        mean, log_std = np.array([0.5, -1.0]), np.array([0.3, -0.5])
        drawn = np.asarray(Gaussian(mean, log_std).draw(noise))
        for i in range(2):
            law = scipy.stats.norm(mean[i], np.exp(log_std[i]))
            assert scipy.stats.kstest(drawn[:, i], law.cdf).pvalue > 1e-4
        assert abs(np.corrcoef(drawn.T)[0, 1]) <= 5 / np.sqrt(rows)
    else:
        logits = np.array([1.0, -0.5, 0.2])
        p = scipy.special.softmax(logits)
        frequency = np.bincount(Categorical(logits).draw(noise), minlength=3) / rows
        assert (np.abs(frequency - p) <= 5 * np.sqrt(p * (1 - p) / rows)).all()


# --- policy and critic


def test_actions_reach_the_environment_in_its_own_units():
    policy = Policy.create(jax.random.key(0), 2, (4,), BOX)
    actions = jnp.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [3.0, 0.5]])
    expected = [[-1.0, -0.25], [1.0, 0.0], [3.0, 0.25], [7.0, 0.125]]
    np.testing.assert_allclose(policy.to_environment(actions), expected, atol=1e-6)
    assert policy.to_environment(actions).dtype == jnp.float32


@pytest.mark.parametrize(
    "space",
    [
        Box((-np.inf, -np.inf), (np.inf, np.inf)),
        Box((-np.inf, 0.0), (1.0, 1.0)),
        Box((0.0, 0.0), (np.inf, 1.0)),
    ],
)
def test_actions_without_bounds_are_left_alone(space):
    policy = Policy.create(jax.random.key(0), 2, (4,), space)
    actions = jnp.array([[0.3, -0.2]])
    np.testing.assert_array_equal(policy.to_environment(actions), actions)


def test_discrete_actions_are_left_alone():
    policy = Policy.create(jax.random.key(0), 2, (4,), Discrete(3))
    actions = jnp.array([0, 2, 1])
    np.testing.assert_array_equal(policy.to_environment(actions), actions)


def test_a_new_policy_acts_nearly_alike_everywhere():
    inputs = jax.random.normal(jax.random.key(1), (50, 2))
    found = Policy.create(jax.random.key(0), 2, (16,), BOX).distribution(inputs)
    assert np.abs(found.mean).max() < 0.1
    assert (np.asarray(found.log_std) == 0).all()
    found = Policy.create(jax.random.key(0), 2, (16,), Discrete(3)).distribution(inputs)
    assert np.abs(found.logits).max() < 0.1


def test_networks_by_hand():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3)), rng.normal(size=(3, 1))
    biases = rng.normal(size=3), rng.normal(size=1)
    network = MLP((first, second), biases)
    x = rng.normal(size=(4, 5, 2))
    expected = np.tanh(x @ first + biases[0]) @ second + biases[1]
    np.testing.assert_allclose(network(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-6)
    critic = Critic(network, Normaliser(jnp.array([7.0]), jnp.array([4.0]), jnp.ones(())))
    np.testing.assert_allclose(critic(jnp.asarray(x)), 7 + 2 * expected[..., 0], rtol=1e-4)
