"""TRPO where the optimum is known: a linear–quadratic system over long episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special

import holdfast as hf
from holdfast.simulators.environment import Box, Environment, GaussianNoise, Step

HORIZON, DISCOUNT = 1_000, 0.99
DYNAMICS = np.array([[0.98, 0.1], [-0.1, 0.98]])  # a pendulum that loses 1.5 % a step
CONTROL = np.array([[0.0], [0.1]])
NOISE, PRICE = 0.05, 0.1  # standard deviation of the noise; price of a squared push


class Regulator(Environment):
    """s' = A·s + B·a + 0.05·w, and the reward −|s|² − 0.1·a². Nothing terminates."""

    name = "regulator"
    horizon = HORIZON
    discount = DISCOUNT
    observation_size = feature_size = 2
    action_space = Box((-np.inf,), (np.inf,))
    disturbance = GaussianNoise(2, "state", (NOISE, NOISE))
    cost_names = ()

    def reset(self, key):
        state = NOISE * jax.random.normal(key, (2,))
        return state, state

    def step(self, state, action, disturbance):
        new = jnp.asarray(DYNAMICS) @ state + jnp.asarray(CONTROL) @ action + NOISE * disturbance
        reward = -(state**2).sum() - PRICE * (action**2).sum()
        return Step(new, new, reward, jnp.zeros(0), jnp.array(False))

    def features(self, state):
        return state


def mean_return(gain):
    """The exact mean of an episode's plain sum of rewards under a = gain·s."""
    closed = DYNAMICS + CONTROL @ gain
    price = np.eye(2) + PRICE * gain.T @ gain
    spread, total = NOISE**2 * np.eye(2), 0.0
    for _ in range(HORIZON):
        total -= np.trace(price @ spread)
        spread = closed @ spread @ closed.T + NOISE**2 * np.eye(2)
    return total


def best_return():
    """That of the linear–quadratic regulator."""
    value = scipy.linalg.solve_discrete_are(DYNAMICS, CONTROL, np.eye(2), PRICE * np.eye(1))
    inner = PRICE * np.eye(1) + CONTROL.T @ value @ CONTROL
    return mean_return(-np.linalg.solve(inner, CONTROL.T @ value @ DYNAMICS))


def learned_gain(agent):
    at = [agent.predict(s) - agent.predict([0, 0]) for s in ([1e-2, 0], [0, 1e-2])]
    return np.array(at, float).T / 1e-2


@pytest.mark.long
def test_learns_to_regulate_for_a_thousand_steps():
    agents = hf.train(
        Regulator(),
        "trpo",
        seeds=2,
        iterations=30,
        batch_size=4_000,
        trust_region=0.02,
        hidden=(),
        limit_on="discounted",
    )
    start = mean_return(np.zeros((1, 2)))
    for agent in agents:
        # Returns are negative: −37.2 is the best, −168 that of doing nothing.
        assert start < 4 * best_return()
        assert 1.05 * best_return() <= mean_return(learned_gain(agent)) <= best_return()


# --- a conveyor: what is done late counts as much, and is seen late only

STAGES, STAY = 20, 0.98


def conveyor():
    """Stages that last 50 steps on average. In each of them one of two actions pays 1."""
    right = np.random.default_rng(0).integers(0, 2, STAGES)
    ahead = np.minimum(np.arange(STAGES) + 1, STAGES - 1)
    rows = STAY * np.eye(STAGES) + (1 - STAY) * np.eye(STAGES)[ahead]
    return hf.RobustCMDP(
        transitions=np.repeat(rows[:, None], 2, axis=1),
        reward=np.eye(2)[right],
        constraints=[],
        initial=np.eye(STAGES)[0],
        discount=DISCOUNT,
        uncertainty=hf.KL(0.0),
    )


def total_pay(model, agent):
    """The exact mean of the plain sum of rewards over an episode; the best is one a step."""
    logits = np.asarray(agent.policy.network(np.eye(STAGES, dtype=np.float32)), float)
    pay = (scipy.special.softmax(logits, axis=-1) * model.reward).sum(-1)
    stage, total = np.asarray(model.initial), 0.0
    for _ in range(HORIZON):
        total += stage @ pay
        stage = stage @ model.transitions[:, 0]
    return total


def test_steps_of_a_long_episode_count_to_its_end():
    """A policy starts with 500. Two seeds of each had 872 and 701 after sixteen updates."""
    model = conveyor()
    env = hf.environments.TableSimulator(model, name="conveyor", horizon=HORIZON)
    settings = {"iterations": 16, "batch_size": 10_000, "trust_region": 0.003, "seeds": 2}
    found = {}
    for weighting in ("steps", "discounted"):
        agents = hf.train(env, "trpo", weighting=weighting, **settings)
        found[weighting] = np.mean([total_pay(model, agent) for agent in agents])
    assert found["steps"] >= 0.8 * HORIZON, found
    assert found["steps"] >= 1.1 * found["discounted"], found
