"""A table as a simulator against the table itself."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import holdfast as hf
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.environment import Discrete, GaussianNoise, Outcomes

DRAWS = 40_000


@eqx.filter_jit
def returns(env, policy, key, episodes: int):
    """Discounted reward and costs of whole episodes under the nominal kernel."""
    reset_key, key = jax.random.split(key)
    states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))

    def one(carry, key):
        states, alive, weight = carry
        act_key, noise_key = jax.random.split(key)
        actions = jax.random.categorical(act_key, jnp.log(policy)[states])
        if isinstance(env.disturbance, Outcomes):
            rows = jax.vmap(env.outcome_probabilities)(states, actions)
            noise = jax.random.categorical(noise_key, jnp.log(rows))
        else:
            noise = jax.random.normal(noise_key, (episodes, 1))
        there = jax.vmap(env.step)(states, actions, noise)
        paid = jnp.concatenate([there.reward[:, None], there.costs], axis=1)
        paid = weight * jnp.where(alive[:, None], paid, 0.0)
        return (there.state, alive & ~there.terminated, weight * env.discount), paid

    start = (states, jnp.ones(episodes, bool), 1.0)
    return jax.lax.scan(one, start, jax.random.split(key, env.horizon))[1].sum(0)


@pytest.mark.parametrize("disturbance", ["outcome", "gaussian"])
@pytest.mark.parametrize("lists", [True, False])
def test_outcomes_come_as_often_as_the_row_says(oracle, disturbance, lists):
    model = oracle.random_model(0, lists=lists, next_state_signals=True, constraints=0)
    rng = np.random.default_rng(0)
    utility, cost = rng.random((2, *model.reward.shape))
    model = model.replace(constraints=[hf.at_least(utility, 1.0), hf.at_most(cost, 2.0)])
    env = TableSimulator(model, disturbance=disturbance)
    kernel = model.transitions.dense() if lists else model.transitions
    if disturbance == "outcome":
        row = np.asarray(env.outcome_probabilities(jnp.array(1), jnp.array(2)), np.float64)
        noise = rng.choice(row.size, size=DRAWS, p=row / row.sum())
    else:
        noise = rng.normal(size=(DRAWS, 1)).astype(np.float32)
    many_steps = jax.jit(jax.vmap(env.step, in_axes=(None, None, 0)))
    step = jax.tree.map(np.asarray, many_steps(jnp.array(1), jnp.array(2), noise))
    frequencies = np.bincount(step.state, minlength=model.states) / DRAWS
    np.testing.assert_allclose(frequencies, kernel[1, 2], atol=4 * np.sqrt(0.25 / DRAWS))
    p = model.transitions.probabilities if lists else model.transitions
    for paid, signal in (
        (step.reward, model.reward),
        (step.costs[:, 0], -model.constraints[0].signal),
        (step.costs[:, 1], model.constraints[1].signal),
    ):
        assert abs(paid.mean() - p[1, 2] @ signal[1, 2]) < 4 * paid.std() / np.sqrt(DRAWS) + 1e-6
    np.testing.assert_array_equal(step.observation, np.eye(model.states)[step.state])


@pytest.mark.parametrize("disturbance", ["outcome", "gaussian"])
def test_episodes_earn_what_the_policy_is_worth(oracle, nominal_values, disturbance):
    model = hf.environments.gambler(discount=0.8)
    policy = oracle.random_policy(model, np.random.default_rng(1))
    utility = model.constraints[0].signal
    exact = [
        model.initial @ nominal_values(model, policy, model.reward),
        -model.initial @ nominal_values(model, policy, utility),
    ]
    env = TableSimulator(model, horizon=40, disturbance=disturbance)
    episodes = 10_000
    paid = np.asarray(returns(env, jnp.asarray(policy, jnp.float32), jax.random.key(2), episodes))
    error = 4 * paid.std(0) / np.sqrt(episodes) + 1e-4
    np.testing.assert_array_less(np.abs(paid.mean(0) - exact), error)


def test_it_ends_where_nothing_is_paid_any_more_and_only_there():
    env = TableSimulator(hf.environments.gambler())
    assert np.flatnonzero(env.ends).tolist() == [0, 16]
    lake = TableSimulator(hf.environments.frozen_lake())
    assert np.flatnonzero(lake.ends).tolist() == [5, 7, 11, 12, 15]
    stays = np.zeros((3, 1, 3))
    stays[[0, 1, 2], 0, [0, 1, 1]] = 1.0
    model = hf.RobustCMDP(
        transitions=stays,
        reward=np.array([[0.0], [0.0], [5.0]]),
        constraints=[hf.at_most(np.array([[1.0], [0.0], [0.0]]), 2.0)],
        discount=0.9,
    )
    paying = TableSimulator(model)
    assert paying.ends.tolist() == [False, True, False]
    step = paying.step(jnp.array(2), jnp.array(0), jnp.array(1))
    assert (float(step.reward), bool(step.terminated)) == (5.0, True)


def test_constraints_are_shown_as_costs():
    signal = np.array([[1.0, 2.0], [3.0, 4.0]])
    model = hf.RobustCMDP(
        transitions=np.full((2, 2, 2), 0.5),
        reward=signal,
        constraints=[hf.at_least(signal, 2.5, name="thrift"), hf.at_most(signal, 7.0)],
        discount=0.9,
    )
    env = TableSimulator(model)
    assert env.cost_limits == (-2.5, 7.0)
    assert env.cost_names == ("minus thrift", "cost")
    assert env.step(jnp.array(1), jnp.array(0), jnp.array(0)).costs.tolist() == [-3.0, 3.0]
    free = TableSimulator(model.replace(constraints=()))
    assert free.cost_limits == free.cost_names == ()
    assert free.step(jnp.array(1), jnp.array(0), jnp.array(0)).costs.shape == (0,)


def test_impossible_states_and_outcomes_are_never_drawn():
    initial = np.array([0.0, 0.3, 0.7, 0.0])
    rows = np.zeros((4, 1, 4))
    rows[:, 0] = [0.0, 1 / 3, 2 / 3, 0.0]
    model = hf.RobustCMDP(transitions=rows, reward=np.ones((4, 1)), initial=initial, discount=0.9)
    env = TableSimulator(model, disturbance="gaussian")
    keys = jax.random.split(jax.random.key(0), DRAWS)
    states = np.asarray(jax.jit(jax.vmap(env.reset))(keys)[0])
    np.testing.assert_allclose(np.bincount(states, minlength=4) / DRAWS, initial, atol=0.01)
    assert set(states.tolist()) == {1, 2}
    extreme = [int(env.step(jnp.array(0), jnp.array(0), jnp.array([w])).state) for w in (-40, 40.0)]
    assert extreme == [1, 2]


@pytest.mark.parametrize(
    ("probability", "radius"), [(0.1, 0.15), (0.4, 0.1), (0.6, 0.1), (1 / 3, 0.1)]
)
def test_what_a_gaussian_can_reach_is_what_the_documentation_says(probability, radius):
    """The best N(μ, σ²) in the ball against the best Bernoulli in it, for one event."""

    def excess(q):
        return scipy.stats.entropy([q, 1 - q], [probability, 1 - probability]) - radius

    exact = scipy.optimize.brentq(excess, probability, 1 - 1e-9)
    log_sigma = np.linspace(-1, 1, 2001)
    mean_squared = 2 * (radius + log_sigma + 0.5) - np.exp(2 * log_sigma)
    allowed = mean_squared >= 0
    mean, sigma = np.sqrt(mean_squared[allowed]), np.exp(log_sigma[allowed])
    reached = scipy.stats.norm.sf((scipy.stats.norm.isf(probability) - mean) / sigma).max()
    assert 0.755 < (reached - probability) / (exact - probability) < 0.845


def test_what_it_says_of_itself():
    model = hf.environments.n_chain()
    env = TableSimulator(model, name="n-chain")
    assert (env.name, env.discount, env.is_one_hot) == ("n-chain", 0.95, True)
    assert env.horizon == 90
    assert 0.95**90 <= 1e-2 < 0.95**89
    assert TableSimulator(model.replace(discount=0.0)).horizon == 1
    assert env.action_space == Discrete(2)
    assert env.disturbance == Outcomes(2)
    gaussian = TableSimulator(model, disturbance="gaussian")
    assert gaussian.disturbance == GaussianNoise(1, "outcome", (1.0,))
    with pytest.raises(TypeError, match="table"):
        gaussian.outcome_probabilities(jnp.array(0), jnp.array(0))
    assert (env.observation_size, env.feature_size) == (40, 40)
    described = json.loads(json.dumps(env.description()))
    assert described["states"] == 40
    other = TableSimulator(hf.environments.n_chain(bonus=9.0), name="n-chain").description()
    assert other["sha256"] != described["sha256"]


@pytest.mark.parametrize(("argument", "value"), [("disturbance", "uniform"), ("horizon", 0)])
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: .*{value}"):
        TableSimulator(hf.environments.gambler(), **{argument: value})
