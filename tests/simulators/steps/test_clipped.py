"""PPO's clipped surrogate and the division into minibatches, against hand-written NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from holdfast.simulators.environment import Discrete
from holdfast.simulators.policy.networks import MLP, Policy
from holdfast.simulators.steps.clipped import (
    ClippedSettings,
    clipped_ascent,
    clipped_surrogate,
    first_optimiser,
)
from holdfast.simulators.steps.descent import by_steps
from holdfast.simulators.steps.trust_region import Evidence

ROWS, INPUTS, ACTIONS, CLIP = 400, 3, 4, 0.2


def softmax_policy(weights):
    return Policy(MLP((jnp.asarray(weights),), (jnp.zeros(ACTIONS),)), None, Discrete(ACTIONS))


@pytest.fixture
def case():
    """A policy, and a batch that an older one drew: about half the ratios are out of range."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        now, old = rng.normal(size=(2, INPUTS, ACTIONS)) * [[[1.0]], [[0.0]]]
        old = now + 0.2 * rng.normal(size=now.shape)
        inputs = rng.normal(size=(ROWS, INPUTS))
        actions = rng.integers(0, ACTIONS, ROWS)
        logs = scipy.special.log_softmax(inputs @ old, axis=1)[np.arange(ROWS), actions]
        weights = rng.random(ROWS) * (rng.random(ROWS) < 0.8)
        yield now, Evidence(inputs, actions, logs, rng.normal(size=ROWS), weights)


def test_surrogate_and_gradient_by_hand(case):
    now, seen = case
    chances = scipy.special.softmax(seen.inputs @ now, axis=1)
    taken = np.eye(ACTIONS)[seen.actions]
    ratio = (chances * taken).sum(1) / np.exp(seen.log_density)
    # Where the clipped value is the smaller one, the gradient is zero.
    free = np.where(seen.advantages > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
    assert 0.2 < free.mean() < 0.9
    near = np.clip(ratio, 1 - CLIP, 1 + CLIP)
    value = seen.weights @ np.minimum(ratio * seen.advantages, near * seen.advantages)
    each = seen.weights * seen.advantages * ratio * free
    slope = seen.inputs.T @ (each[:, None] * (taken - chances))
    found, gradient = jax.value_and_grad(clipped_surrogate)(softmax_policy(now), seen, CLIP)
    np.testing.assert_allclose(found, value, rtol=1e-9)
    np.testing.assert_allclose(gradient.network.weights[0], slope, rtol=1e-8, atol=1e-9)


def test_ascent_takes_the_first_adam_step_of_the_shared_gradient(case):
    """One pass in one minibatch: Adam's first step is the learning rate times the gradient's sign."""
    now, seen = case
    other = seen._replace(advantages=-3 * seen.advantages[::-1])
    settings = ClippedSettings(epochs=1, minibatches=1, learning_rate=0.01)
    shares = jnp.array([0.4, 0.6])
    policy = softmax_policy(now)
    start = (policy, first_optimiser(policy, settings))
    after, _, metrics = clipped_ascent(start, (seen, other), shares, settings)
    gradients = [jax.grad(clipped_surrogate)(policy, each, CLIP) for each in (seen, other)]
    total = sum(
        share * np.asarray(g.network.weights[0]) for share, g in zip(shares, gradients, strict=True)
    )
    step = np.asarray(after.network.weights[0]) - now
    np.testing.assert_allclose(step, 0.01 * np.sign(total), rtol=1e-4)
    assert metrics["passes"] == 1


def test_passes_end_at_the_target(case):
    now, seen = case
    policy = softmax_policy(now)
    passes = []
    for target in (1e-9, 1e9):
        settings = ClippedSettings(epochs=7, minibatches=4, target_kl=target)
        start = (policy, first_optimiser(policy, settings))
        *_, metrics = clipped_ascent(start, (seen,), jnp.ones(1), settings)
        passes.append(int(metrics["passes"]))
    assert passes == [1, 7]


def test_minibatches_of_steps_hold_every_row_once_and_steps_of_every_episode():
    steps, episodes, minibatches = 12, 5, 6
    rows = np.stack(np.divmod(np.arange(steps * episodes), steps), axis=1)  # (episode, time)
    parts = np.asarray(by_steps(jnp.asarray(rows), minibatches))
    assert parts.shape == (minibatches, 10, 2)
    assert sorted(map(tuple, parts.reshape(-1, 2))) == sorted(map(tuple, rows))
    for part in parts:
        assert set(part[:, 0]) == set(range(episodes))
        assert (np.abs(np.diff(np.sort(part[part[:, 0] == 0][:, 1]))) > 1).all()
    # More minibatches than rows: each row is one.
    assert by_steps(jnp.arange(3), 8).shape == (3, 1)
