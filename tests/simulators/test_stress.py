"""Stress of a frozen policy against closed forms, exact tables and plain simulation."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import holdfast as hf
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.point_gather import PointGather
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.certificates.attack import Noisier, played_length
from holdfast.simulators.certificates.stress_result import (
    Interval,
    Measured,
    Row,
    Stress,
    bootstrap_means,
    measured,
)
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import MLP, Policy
from holdfast.simulators.stress import stress
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
    return stress(
        agents,
        radii=RADII,
        noise=(1, 2),
        action_noise=(0.0, 0.5),
        restarts=2,
        episodes=EPISODES,
        kernels=[learned],
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


def test_a_table_under_tilted_kernels_is_as_bad_as_its_exact_worst_case():
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
    found = stress(agent, radii=[0.1], restarts=1, episodes=1000, kernels=kind)
    exact = hf.evaluate(model.replace(uncertainty=hf.KL(0.1)), table)
    assert [row.kind for row in found.rows] == ["nominal", "attack", "attack"]
    constraint = exact.constraints[0]
    for signal, worst, nominal in (
        ("reward", exact.reward.worst, exact.reward.nominal),
        (env.cost_names[0], -constraint.worst, -constraint.nominal),
    ):
        (_, at_rest), (_, attacked) = found.curve(signal)
        error = 2 * (attacked.high - attacked.low) + 2e-3 * abs(nominal)
        assert at_rest.mean == pytest.approx(nominal, abs=error)
        share = (attacked.mean - nominal) / (worst - nominal)
        assert 0.6 - error / abs(worst - nominal) <= share <= 1 + error / abs(worst - nominal)


# --- noise and parameters


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


def test_noise_is_scaled_and_added_to_actions_before_the_step(linear):
    noisy = Noisier(linear, jnp.asarray(2.0), jnp.asarray(0.5))
    assert noisy.disturbance.size == 5
    state, action = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2])
    w = jnp.array([0.3, -0.3, 0.1, 1.0, -2.0])
    there = noisy.step(state, action, w)
    direct = linear.step(state, action + 0.5 * w[3:], 2 * w[:3])
    np.testing.assert_allclose(there.state, direct.state, rtol=1e-6)
    assert float(there.reward) == pytest.approx(float(direct.reward))


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
    found = stress(
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
    assert labels == ["nominal", "catch_distance = 1.5", "speed = 0.5", "speed = 1"]
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


# --- agents and intervals


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


@pytest.mark.parametrize("values", [np.arange(40) % 7.0, np.random.default_rng(1).normal(size=40)])
def test_bootstrap_is_that_of_plain_resampling(values):
    drawn = bootstrap_means(values, np.random.default_rng(0), 20_000)
    rng = np.random.default_rng(9)
    plain = rng.choice(values, (20_000, len(values))).mean(1)
    assert scipy.stats.ks_2samp(drawn, plain).pvalue > 1e-3


def test_intervals_of_normal_numbers_are_those_of_the_normal_distribution():
    rng = np.random.default_rng(3)
    agents = [rng.normal(1.0, 2.0, 4000), rng.normal(3.0, 1.0, 4000)]
    value = measured(agents, 0.9, seed=0)
    z = scipy.stats.norm.ppf(0.95)
    errors = [each.std() / math.sqrt(len(each)) for each in agents]
    for interval, each, error in zip(value.agents, agents, errors, strict=True):
        assert interval.mean == pytest.approx(each.mean())
        assert interval.low == pytest.approx(each.mean() - z * error, abs=0.15 * error)
        assert interval.high == pytest.approx(each.mean() + z * error, abs=0.15 * error)
    together = math.hypot(*errors) / 2
    assert value.low == pytest.approx(value.mean - z * together, abs=0.15 * together)
    assert value.high == pytest.approx(value.mean + z * together, abs=0.15 * together)
    assert measured(agents, 0.9, seed=0) == value
    assert measured(agents, 0.9, seed=1) != value


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        value = measured([rng.binomial(1, 0.1, 400).astype(float)], 0.9, seed=trial)
        covered += value.low <= 0.1 <= value.high
    assert 0.83 <= covered / 200 <= 0.96


# --- the record


def fabricated(nominal, *highs, radii=(0.1, 0.4), limits=(0.1,)):
    """A record whose upper ends are given: of each cost at every radius."""

    def value(high):
        return Measured(high - 0.02, high - 0.04, high, None, (Interval(high - 0.02, 0.0, high),))

    names = tuple(f"cost {i}" for i in range(len(limits)))
    rows = [Row("nominal", 0.0, "", value(1.0), tuple(value(x) for x in nominal))]
    for name, each in zip(names, highs, strict=True):
        rows += [
            Row("attack", radius, name, value(1.0), (value(high),) * len(names), ("tilted",))
            for radius, high in zip(radii, each, strict=True)
        ]
    environment = {"name": "made-up", "parameters": {}}
    setup = {"episodes": 10, "confidence": 0.95}
    return Stress(("rcpo-0",), names, limits, tuple(rows), environment, setup)


@pytest.mark.parametrize(
    ("nominal", "highs", "radius", "beyond"),
    [
        (0.2, (0.3, 0.4), math.nan, False),
        (0.05, (0.06, 0.1), 0.4, True),
        (0.05, (0.06, 0.14), (math.sqrt(0.1) * 1.5) ** 2, False),
        (0.0, (0.2, 0.3), 0.1 / 4, False),
        # What holds again further out does not count.
        (0.0, (0.2, 0.05), 0.1 / 4, False),
    ],
)
def test_the_critical_radius_is_the_first_crossing(nominal, highs, radius, beyond):
    found = fabricated([nominal], highs)
    assert found.critical_radius == pytest.approx(radius, nan_ok=True)
    assert found.beyond_tested is beyond


def test_the_overall_critical_radius_is_the_smallest():
    found = fabricated([0.0, 0.0], (0.05, 0.06), (0.2, 0.3), limits=(0.1, 0.1))
    assert [each.beyond_tested for each in found.critical_radii] == [True, False]
    assert found.critical_radius == pytest.approx(0.025)
    assert not found.beyond_tested


def test_json_comes_back_the_same(found, tmp_path):
    assert Stress.from_dict(json.loads(json.dumps(found.to_dict()))).rows == found.rows
    path = tmp_path / "deep" / "stress.json"
    found.save(path)
    again = Stress.load(path)
    assert again.to_dict() == json.loads(path.read_text())
    assert str(again) == str(found)
    broken = fabricated([0.2], (0.3, 0.4))
    broken.save(path)
    assert json.loads(path.read_text())["critical_radius"] is None
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"stress\.json: not a result of stress"):
        Stress.load(path)


def test_it_prints_as_a_table():
    text = str(fabricated([0.05], (0.08, 0.3)))
    assert text.splitlines() == [
        "made-up, rcpo-0: mean over 10 episodes [95 % interval]",
        "                                      reward       cost 0 ≤ 0.1",
        "nominal                       0.98 [0.96, 1]  0.03 [0.01, 0.05]",
        "attack on cost 0, radius 0.1  0.98 [0.96, 1]  0.06 [0.04, 0.08]",
        "attack on cost 0, radius 0.4  0.98 [0.96, 1]   0.28 [0.26, 0.3]  violated",
        "critical radius of cost 0: 0.119",
    ]


def test_discounted_episodes_are_played_until_little_is_left():
    assert played_length(200, (0.9, 0.9), bootstrap=True) == 200
    length = played_length(10, (0.99, 0.95), bootstrap=True)
    assert 0.99**length <= 1e-3 < 0.99 ** (length - 1)
    assert played_length(10, (0.99, 1.0), bootstrap=False) == 10


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
        ({"confidence": 1.0}, "confidence: expected a number between 0 and 1"),
        ({"kernels": []}, "kernels: expected at least one"),
        ({"kernels": ["cunning"]}, "kernel: expected one of"),
        ({"kernels": ["categorical"]}, "kernel: a categorical one needs outcomes"),
        ({"environment": "linear-gaussian"}, "environment: linear-gaussian has 3 observations"),
    ],
)
def test_bad_arguments_are_refused_by_name(gatherer, monkeypatch, arguments, message):
    from holdfast.simulators.certificates import stress_bench as module

    monkeypatch.setattr(module, "play_nominal", lambda *_: pytest.fail("work was done"))
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        stress(gatherer, **arguments)


def test_bad_agents_are_refused(gatherer, linear):
    with pytest.raises(ValueError, match="pass environment="):
        stress(dataclasses.replace(gatherer, environment=None))
    with pytest.raises(ValueError, match="agent: expected an Agent or a list of them"):
        stress([])
    other = agent_of(linear, affine(linear, GAIN, OFFSET), limit=1.0)
    with pytest.raises(ValueError, match="environment: point-gather has 29 observations"):
        stress([gatherer, other])
    with pytest.raises(ValueError, match="agent: expected agents with the same limits"):
        stress([gatherer, dataclasses.replace(gatherer, limits=(0.2,))])


def test_tables_refuse_noise_on_what_they_do_not_have():
    env = TableSimulator(hf.environments.n_chain(nodes=5))
    policy = Policy.create(jax.random.PRNGKey(0), env.observation_size, (), env.action_space)
    agent = agent_of(env, policy, limit=0.0)
    with pytest.raises(ValueError, match="noise: the disturbance of table is not Gaussian"):
        stress(agent, noise=[2])
    with pytest.raises(ValueError, match="action_noise: the actions of table are not vectors"):
        stress(agent, action_noise=[0.1])
    with pytest.raises(ValueError, match="wind: not a parameter of table, which has none"):
        stress(agent, wind=[1.0])
