"""The closed form against a backward recursion, a simulation, and a convex solver."""

from __future__ import annotations

import json

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.environments.linear_gaussian import LinearGaussian

GAIN = np.array([[-0.3, 0.2, 0.1], [0.1, -0.4, 0.0]])
OFFSET = np.array([0.2, -0.1])


@pytest.fixture(scope="module")
def env():
    return LinearGaussian()


def numbers(env, signal):
    leaves = (env.dynamics, env.control, env.noise, env.initial_mean, *getattr(env, signal))
    return [np.asarray(leaf, np.float64) for leaf in leaves]


def expected_return(env, signal, shift, steps=2_000):
    """Σ γ^t E[signal] with the mean of every disturbance moved, by following the mean state."""
    A, B, root, state, c, e = numbers(env, signal)
    total, weight = 0.0, 1.0
    for _ in range(steps):
        action = GAIN @ state + OFFSET
        total += weight * (c @ state + e @ action)
        state = A @ state + B @ action + root @ shift
        weight *= env.discount
    return total


@pytest.mark.parametrize("signal", ["reward", "cost"])
def test_the_values_are_what_following_the_mean_state_gives(env, signal):
    known = env.closed_form(GAIN, OFFSET, 0.3, signal)
    assert known.nominal == pytest.approx(expected_return(env, signal, np.zeros(3)), abs=1e-9)
    assert known.worst == pytest.approx(expected_return(env, signal, known.shift), abs=1e-9)
    worse = known.nominal - known.worst if signal == "reward" else known.worst - known.nominal
    assert worse == pytest.approx(known.drop)
    assert known.drop > 1
    assert known.shift @ known.shift / 2 == pytest.approx(0.3)


@pytest.mark.parametrize("signal", ["reward", "cost"])
def test_no_mean_shift_within_the_radius_does_worse(env, signal):
    radius = 0.3
    known = env.closed_form(GAIN, OFFSET, radius, signal)
    A, B, root, mean, c, e = numbers(env, signal)
    # The discounted sum of expected states x solves x = mean + γ((A + BK)x + (Bk + root·shift)/(1 − γ)).
    x, shift = cp.Variable(3), cp.Variable(3)
    gamma = env.discount
    constant = (B @ OFFSET + root @ shift) / (1 - gamma)
    value = (c + GAIN.T @ e) @ x + e @ OFFSET / (1 - gamma)
    sense = cp.Minimize if signal == "reward" else cp.Maximize
    problem = cp.Problem(
        sense(value),
        [x == mean + gamma * ((A + B @ GAIN) @ x + constant), cp.sum_squares(shift) <= 2 * radius],
    )
    problem.solve(solver=cp.CLARABEL)
    assert problem.status == "optimal"
    assert known.worst == pytest.approx(problem.value, abs=1e-5)


def test_no_distribution_within_the_radius_does_worse_and_its_variance_is_the_nominal_one(env):
    """Along the value's gradient w is one number: over its distributions this is a convex problem."""
    radius = 0.3
    known = env.closed_form(GAIN, OFFSET, radius)
    grid = np.linspace(-4.5, 4.5, 61)
    p = np.exp(-(grid**2) / 2)
    p /= p.sum()
    q = cp.Variable(grid.size, nonneg=True)
    problem = cp.Problem(
        cp.Minimize(grid @ q), [cp.sum(q) == 1, cp.sum(cp.rel_entr(q, p)) <= radius]
    )
    problem.solve(solver=cp.CLARABEL)
    assert problem.value == pytest.approx(-np.sqrt(2 * radius), abs=1e-3)
    found = q.value / q.value.sum()
    assert found @ grid**2 - (found @ grid) ** 2 == pytest.approx(1.0, abs=5e-3)
    direction = np.asarray(env.noise, np.float64).T @ known.gradient
    per_step = env.discount * np.linalg.norm(direction) * -problem.value
    assert known.drop == pytest.approx(per_step / (1 - env.discount), rel=2e-3)


def test_any_factor_of_the_covariance_will_do(env):
    eigenvalues, vectors = np.linalg.eigh(np.asarray(env.noise) @ np.asarray(env.noise).T)
    symmetric = LinearGaussian(noise=vectors @ np.diag(np.sqrt(eigenvalues)) @ vectors.T)
    assert symmetric.closed_form(radius=0.2).worst == pytest.approx(
        env.closed_form(radius=0.2).worst, rel=1e-5
    )


def test_the_simulator_earns_the_closed_form(env):
    episodes = 2_000

    @eqx.filter_jit
    def discounted(env, shift, key):
        reset_key, key = jax.random.split(key)
        states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))

        def one(carry, key):
            states, weight = carry
            noise = jax.random.normal(key, (2, episodes, 3))
            # Zero-mean noise on the actions changes no linear signal's mean.
            actions = states @ GAIN.T + OFFSET + 0.3 * noise[0, :, :2]
            there = jax.vmap(env.step)(states, actions, noise[1] + shift)
            paid = weight * jnp.stack([there.reward, there.costs[:, 0]])
            return (there.state, weight * env.discount), (paid, there.terminated.any())

        keys = jax.random.split(key, env.horizon)
        _, (paid, ended) = jax.lax.scan(one, (states, 1.0), keys)
        return paid.sum(0), ended.any()

    for index, signal in enumerate(("reward", "cost")):
        known = env.closed_form(GAIN, OFFSET, 0.1, signal)
        for shift, value in ((np.zeros(3), known.nominal), (known.shift, known.worst)):
            returns, ended = discounted(env, jnp.asarray(shift, jnp.float32), jax.random.key(1))
            mine = np.asarray(returns[index], np.float64)
            assert abs(mine.mean() - value) < 4 * mine.std() / np.sqrt(episodes) + 1e-2
            assert not ended


def test_the_noise_of_a_step_has_the_covariance_it_says(env):
    noise = np.random.default_rng(0).normal(size=(50_000, 3)).astype(np.float32)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, None, 0)))
    states = np.asarray(step(jnp.zeros(3), jnp.zeros(2), noise).state)
    root = np.asarray(env.noise)
    np.testing.assert_allclose(np.cov(states.T), root @ root.T, atol=2e-3)
    np.testing.assert_allclose(env.disturbance.scale, np.linalg.norm(root, axis=0), rtol=1e-6)


def test_radius_zero_is_the_nominal_problem(env):
    known = env.closed_form(GAIN, OFFSET)
    assert (known.drop, known.worst) == (0.0, known.nominal)
    assert not known.shift.any()


def test_what_it_says_of_itself(env):
    assert env.action_space.high == (np.inf, np.inf)
    assert (env.observation_size, env.feature_size, env.disturbance.size) == (3, 3, 3)
    described = json.loads(json.dumps(env.description()))
    assert described["discount"] == 0.95
    np.testing.assert_allclose(described["dynamics"], env.dynamics)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"discount": 1.0}, "discount: .*1.0"),
        ({"horizon": 0}, "horizon: .*0"),
        ({"control": [[1.0]]}, r"control: expected shape \(3, 1\), got \(1, 1\)"),
        ({"reward": ([1.0], [0.0, 0.0])}, r"reward.state: expected shape \(3,\)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        LinearGaussian(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gain": 10.0}, "gain: discount times the spectral radius"),
        ({"radius": -0.1}, "radius: .*-0.1"),
        ({"signal": "bombs"}, "signal: .*bombs"),
    ],
)
def test_bad_questions(env, arguments, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        env.closed_form(**arguments)
