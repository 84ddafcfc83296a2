"""Stress of a frozen policy against closed forms, exact tables and plain simulation."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.point_gather import PointGather
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.certificates import attack_plan
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import MLP, Policy
from holdfast.simulators.training.settings import AdversarySettings, Settings

GAIN = np.array([[-0.5, 0.0, 0.2], [0.1, -0.4, 0.0]])
OFFSET = np.array([0.3, -0.2])
RADII = (0.05, 0.2)
EPISODES = 2000


def agent_of(env, policy, *, limit, seed=0, algorithm="rcpo", limit_on="discounted"):
    settings = Settings(limit_on=limit_on, hidden=(), cost_limit=(limit,))
    return Agent(policy, None, algorithm, settings, (limit,), seed, env, env.description())


def affine(env, gain, offset, log_std=-1.0):
    network = MLP((jnp.asarray(gain.T, jnp.float32),), (jnp.asarray(offset, jnp.float32),))
    return Policy(network, jnp.full(len(offset), log_std), env.action_space)


@pytest.fixture(scope="module")
def linear():
    return LinearGaussian(discount=0.9, horizon=40, initial_scale=0.3)


def known(env, signal, radius):
    return env.closed_form(GAIN, OFFSET, radius, signal)


@pytest.fixture(scope="module")
def limit(linear):
    """The worst cost at radius 0.1, which lies between two that are tested."""
    return known(linear, "cost", 0.1).worst


@pytest.fixture(scope="module")
def learned():
    return AdversarySettings(
        "gaussian-mixture",
        updates=40,
        batch_size=2000,
        minibatches=2,
        learning_rate=0.03,
        hidden=(),
        components=1,
    )


@pytest.fixture(scope="module")
def steps():
    return []


@pytest.fixture(scope="module")
def found(linear, limit, learned, steps):
    agents = [
        agent_of(linear, affine(linear, GAIN, OFFSET), limit=limit, seed=seed) for seed in (0, 1)
    ]
    return hf.stress(
        agents,
        radii=RADII,
        noise=(1, 2),
        action_noise=(0.0, 0.5),
        restarts=2,
        episodes=EPISODES,
        kernels=[learned],
        deterministic=False,
        callback=lambda *step: steps.append(step),
    )


# --- attacks


@pytest.mark.parametrize("signal", ["reward", "cost"])
def test_attacks_on_a_linear_system_find_its_worst_case_and_never_more(found, linear, signal):
    for radius, value in found.curve(signal)[1:]:
        worst = known(linear, signal, radius)
        nominal = worst.nominal
        share = (value.mean - nominal) / (worst.worst - nominal)
        # Four times the interval's half width is about eight standard errors of the mean.
        error = 2 * (value.high - value.low) / worst.drop
        assert share + error / 4 >= 0.9
        assert share <= 1 + error


def test_nominal_values_are_the_closed_forms(found, linear):
    for signal in ("reward", "cost"):
        (_, value), *_ = found.curve(signal)
        half = (value.high - value.low) / 2
        assert value.mean == pytest.approx(known(linear, signal, 0).nominal, abs=2 * half)


def test_a_larger_radius_is_worse_and_an_attack_hurts_its_own_signal_most(found):
    rewards = [value.mean for _, value in found.curve("reward")]
    costs = [value.mean for _, value in found.curve("cost")]
    assert rewards == sorted(rewards, reverse=True)
    assert costs == sorted(costs)
    by_signal = {(row.subject, row.level): row for row in found.rows if row.kind == "attack"}
    for radius in RADII:
        on_reward, on_cost = by_signal["reward", radius], by_signal["cost", radius]
        assert on_reward.reward.mean < on_cost.reward.mean
        assert on_reward.costs[0].mean < on_cost.costs[0].mean


def test_the_critical_radius_is_where_the_closed_form_breaks_the_limit(found):
    # The limit is the worst cost at 0.1. What the attack misses moves the radius up, the interval down.
    (critical,) = found.critical_radii
    assert critical.cost == "cost"
    assert not critical.beyond_tested
    assert found.critical_radius == critical.radius == pytest.approx(0.1, rel=0.25)


def test_noise_of_factor_one_is_the_nominal_row(found):
    nominal, *others = found.rows
    same = [row for row in others if (row.kind, row.level) in (("noise", 1.0), ("action noise", 0))]
    assert len(same) == 2
    for row in same:
        assert (row.reward, row.costs) == (nominal.reward, nominal.costs)


def test_noise_widens_returns_of_a_linear_system_and_leaves_their_mean(found, linear):
    (_, once), (_, twice) = found.curve("reward", "noise")
    assert twice.high - twice.low > 1.3 * (once.high - once.low)
    nominal = known(linear, "reward", 0).nominal
    assert twice.mean == pytest.approx(nominal, abs=twice.high - twice.low)


def test_several_agents_have_their_own_values_and_a_spread(found):
    assert found.agents == ("rcpo-0", "rcpo-1")
    for row in found.rows:
        for value in (row.reward, *row.costs):
            means = [each.mean for each in value.agents]
            assert value.mean == pytest.approx(np.mean(means))
            assert value.spread == pytest.approx(np.std(means))
            wide = [each.high - each.low for each in value.agents]
            assert value.high - value.low == pytest.approx(np.mean(wide) / math.sqrt(2), rel=0.1)
    alone = found.only("rcpo-1")
    assert alone.agents == ("rcpo-1",)
    assert alone.rows[2].reward.mean == found.rows[2].reward.agents[1].mean
    assert alone.rows[2].reward.spread is None


def test_progress_is_told_step_by_step(found, steps):
    done, total, what = zip(*steps, strict=True)
    assert list(done) == list(range(len(steps)))
    assert set(total) == {len(steps)}
    assert what[0] == "nominal"
    assert "gaussian-mixture against cost within 0.2" in what


# --- other agents


@pytest.mark.long
def test_a_table_under_tilted_kernels_is_as_bad_as_its_exact_worst_case():
    """Drawn actions play the table's own rows, and most likely ones its largest entries."""
    model = hf.environments.n_chain(nodes=5).replace(discount=0.9)
    env = TableSimulator(model)
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.ones(model.actions), model.states)
    network = MLP((jnp.asarray(np.log(table), jnp.float32),), (jnp.zeros(model.actions),))
    limit = -float(model.constraints[0].threshold)
    agent = agent_of(env, Policy(network, None, env.action_space), limit=limit)
    # A tilted kernel is as good as its critic, and a table's has to be quick to be good so soon.
    quick = dataclasses.replace(agent.settings, critic_learning_rate=0.03)
    agent = dataclasses.replace(agent, settings=quick)
    kind = AdversarySettings("tilted", updates=10, batch_size=1000, minibatches=1, candidates=32)
    found = hf.stress(agent, radii=[0.1], restarts=1, episodes=1000, kernels=kind)
    assert [row.kind for row in found.rows] == 2 * ["nominal", "attack", "attack"]
    assert found.actions == ("drawn", "most likely")
    likely = np.eye(model.actions)[table.argmax(1)]
    highest = []
    for actions, rows in zip(found.actions, (table, likely), strict=True):
        exact = hf.evaluate(model.replace(uncertainty=hf.KL(0.1)), rows)
        constraint = exact.constraints[0]
        for signal, worst, nominal in (
            ("reward", exact.reward.worst, exact.reward.nominal),
            (env.cost_names[0], -constraint.worst, -constraint.nominal),
        ):
            (_, at_rest), (_, attacked) = found.curve(signal, actions=actions)
            error = 2 * (attacked.high - attacked.low) + 2e-3 * abs(nominal)
            assert at_rest.mean == pytest.approx(nominal, abs=error)
            drop = abs(worst - nominal)
            assert (
                0.6 - error / drop
                <= (attacked.mean - nominal) / (worst - nominal)
                <= 1 + error / drop
            )
        highest.append(attacked.high)
    # A limit between the two holds for one of them only, and the critical radius is that of the other.
    between = dataclasses.replace(found, limits=(sum(highest) / 2,))
    assert not between.beyond_tested
    assert dataclasses.replace(found, limits=(max(highest),)).beyond_tested


@pytest.fixture(scope="module")
def gatherer():
    env = PointGather()
    policy = Policy.create(jax.random.PRNGKey(1), env.observation_size, (), env.action_space)
    return agent_of(env, policy, limit=0.1, limit_on="episode")


def simulated(env, policy, episodes):
    """Undiscounted returns and costs of deterministic actions, by one plain loop."""
    reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))
    state, seen = reset(jax.random.split(jax.random.PRNGKey(5), episodes))
    reward, cost = np.zeros(episodes), np.zeros(episodes)
    alive = np.ones(episodes, bool)
    rng = np.random.default_rng(0)
    for _ in range(env.horizon):
        actions = policy.to_environment(policy.distribution(seen).mode())
        there = step(state, actions, rng.standard_normal((episodes, 3), np.float32))
        reward += alive * np.asarray(there.reward)
        cost += alive * np.asarray(there.costs)[:, 0]
        alive &= ~np.asarray(there.terminated)
        state, seen = there.state, there.observation
    return reward, cost


def test_parameters_change_what_direct_simulation_says_they_change(gatherer):
    policy = gatherer.policy
    straight_on = MLP(policy.network.weights, (jnp.array([0.8, 0.1]),))
    agent = dataclasses.replace(gatherer, policy=Policy(straight_on, policy.log_std, policy.space))
    found = hf.stress(
        agent,
        radii=None,
        noise=None,
        action_noise=None,
        parameters={"catch_distance": [1.5]},
        speed=[0.5, 1.0],
        deterministic=True,
        episodes=3000,
    )
    labels = [row.label for row in found.rows]
    tests = ["nominal", "catch_distance = 1.5", "speed = 0.5", "speed = 1"]
    assert labels == [f"{test}, most likely actions" for test in tests]
    nominal, wide, slow, same = found.rows
    assert (same.reward, same.costs) == (nominal.reward, nominal.costs)
    for row, changes in ((wide, {"catch_distance": 1.5}), (slow, {"speed": 0.5})):
        env = agent.environment.with_parameters(**changes)
        reward, cost = simulated(env, agent.policy, 3000)
        for value, direct in ((row.reward, reward), (row.costs[0], cost)):
            error = value.high - value.low
            assert value.mean == pytest.approx(direct.mean(), abs=error)
    assert wide.reward.low > nominal.reward.high
    assert [level for level, _ in found.curve("bombs", "parameter", "speed")] == [0.5, 1.0]
    assert math.isnan(found.critical_radius)


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"radii": [0.1, -0.2]}, "radii: expected finite numbers of at least 0, got -0.2"),
        ({"radii": []}, "radii: expected a list of at least one number"),
        ({"radii": [math.nan]}, "radii: expected finite numbers"),
        ({"noise": []}, "noise: expected a list of at least one number"),
        ({"noise": "loud"}, "noise: expected a list of numbers, 'auto' or None, got 'loud'"),
        ({"action_noise": [-1]}, "action_noise: expected finite numbers of at least 0, got -1"),
        ({"mass": [0.6, 0.8]}, "mass: not a parameter of point-gather, which has speed, turn"),
        ({"speed": []}, "speed: expected a list of at least one number"),
        ({"speed": [1], "parameters": {"speed": [2]}}, "parameters: speed is given twice"),
        ({"restarts": 0}, "restarts: expected a whole number of at least 1"),
        ({"episodes": 1.5}, "episodes: expected a whole number"),
        ({"updates": 0}, "updates: expected a whole number"),
        ({"deterministic": "both"}, "deterministic: expected True, False or None, got 'both'"),
        ({"confidence": 1.0}, "confidence: expected a number between 0 and 1"),
        ({"kernels": []}, "kernels: expected at least one"),
        ({"kernels": ["cunning"]}, "kernel: expected one of"),
        ({"kernels": ["categorical"]}, "kernel: a categorical one needs outcomes"),
        ({"environment": "linear-gaussian"}, "environment: linear-gaussian has 3 observations"),
    ],
)
def test_bad_arguments_are_refused_by_name(gatherer, monkeypatch, arguments, message):
    monkeypatch.setattr(attack_plan, "play", lambda *_: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        hf.stress(gatherer, **arguments)


def test_bad_agents_are_refused(gatherer, linear):
    with pytest.raises(ValueError, match="pass environment="):
        hf.stress(dataclasses.replace(gatherer, environment=None))
    with pytest.raises(ValueError, match="agent: expected an Agent or a list of them"):
        hf.stress([])
    other = agent_of(linear, affine(linear, GAIN, OFFSET), limit=1.0)
    with pytest.raises(ValueError, match="environment: point-gather has 29 observations"):
        hf.stress([gatherer, other])
    with pytest.raises(ValueError, match="agent: expected agents with the same limits"):
        hf.stress([gatherer, dataclasses.replace(gatherer, limits=(0.2,))])


def test_tables_refuse_noise_on_what_they_do_not_have():
    env = TableSimulator(hf.environments.n_chain(nodes=5))
    policy = Policy.create(jax.random.PRNGKey(0), env.observation_size, (), env.action_space)
    agent = agent_of(env, policy, limit=0.0)
    with pytest.raises(ValueError, match="noise: the disturbance of table is not Gaussian"):
        hf.stress(agent, noise=[2])
    with pytest.raises(ValueError, match="action_noise: the actions of table are not vectors"):
        hf.stress(agent, action_noise=[0.1])
    with pytest.raises(ValueError, match="wind: not a parameter of table, which has none"):
        hf.stress(agent, wind=[1.0])
