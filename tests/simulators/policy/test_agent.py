"""An agent in NumPy against its policy in JAX, and its files."""

import dataclasses
import functools
import math
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import holdfast as hf
from holdfast.environments import LinearGaussian, PointGather, TableSimulator
from holdfast.simulators.environment import Box, Discrete
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Normaliser, Policy
from holdfast.simulators.training.settings import Settings

BOX = Box(low=(-1.0, -0.25), high=(1.0, 0.75))
INFINITE = Box(low=(-math.inf, -math.inf), high=(math.inf, math.inf))
SPACES = {"box": BOX, "infinite": INFINITE, "discrete": Discrete(4)}
INPUTS = 6


def agent_in(env):
    agent = agent_of(env.action_space, inputs=env.observation_size)
    return dataclasses.replace(agent, environment=env, description=env.description())


@functools.cache
def agent_of(space, *, inputs=INPUTS, normalised=True, hidden=(64, 32)):
    policy = Policy.create(jax.random.PRNGKey(0), inputs, hidden, space)
    last = 30 * policy.network.weights[-1]  # as far from the start as a trained one
    policy = eqx.tree_at(lambda p: p.network.weights[-1], policy, last)
    if policy.log_std is not None:
        policy = eqx.tree_at(lambda p: p.log_std, policy, jnp.linspace(-1.0, 0.3, space.size))
    seen = None
    if normalised:
        data = 3.0 + 2.0 * jax.random.normal(jax.random.PRNGKey(1), (50, inputs))
        seen = Normaliser.create(inputs).updated(data, jnp.ones(50))
    settings = Settings(radius=0.1, hidden=hidden)
    return Agent(policy, seen, "rcpo", settings, (0.1,), 3, None, {"name": "mine"})


def expected(agent, x, noise=None):
    """By JAX, as training does it; and cut to the box."""
    inputs = jnp.asarray(x, jnp.float32)
    inputs = inputs if agent.observations is None else agent.observations(inputs)
    distribution = agent.policy.distribution(inputs)
    action = distribution.mode() if noise is None else distribution.draw(jnp.asarray(noise))
    action = np.asarray(agent.policy.to_environment(action))
    space = agent.policy.space
    return np.clip(action, space.low, space.high) if isinstance(space, Box) else action


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("rows", [(), (3, 5)])
def test_predict_is_the_policy_that_was_trained(space, normalised, rows):
    agent = agent_of(SPACES[space], normalised=normalised)
    rng = np.random.default_rng(0)
    x = 5 * rng.standard_normal((*rows, INPUTS))
    x[..., 0] *= 100  # beyond where the normaliser cuts
    found = agent.predict(x)
    assert isinstance(found, np.ndarray | np.integer)
    np.testing.assert_allclose(found, expected(agent, x), atol=1e-5)
    if space == "discrete":
        noise = np.random.default_rng(5).gumbel(size=(*rows, 4))
    else:
        noise = np.random.default_rng(5).standard_normal((*rows, 2), np.float32)
    drawn = agent.predict(x, deterministic=False, generator=np.random.default_rng(5))
    np.testing.assert_allclose(drawn, expected(agent, x, noise), atol=1e-5)


def test_actions_stay_in_the_box():
    agent = agent_of(BOX)
    x = 5 * np.random.default_rng(0).standard_normal((200, INPUTS))
    actions = agent.predict(x, deterministic=False)
    assert (actions >= np.array(BOX.low)).all()
    assert (actions <= np.array(BOX.high)).all()
    assert actions.dtype == np.float32


def test_draws_have_the_policys_frequencies():
    agent = agent_of(Discrete(4))
    x = np.ones(INPUTS)
    drawn = agent.predict(
        np.tile(x, (20_000, 1)), deterministic=False, generator=np.random.default_rng(0)
    )
    logits = agent.policy.distribution(agent.observations(jnp.asarray(x, jnp.float32))).logits
    np.testing.assert_allclose(
        np.bincount(drawn, minlength=4) / len(drawn), jax.nn.softmax(logits), atol=0.015
    )


def test_predict_is_fast():
    agent = agent_of(BOX, inputs=29)
    x = np.zeros(29)
    agent.predict(x)
    fastest = math.inf
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            agent.predict(x)
        fastest = min(fastest, (time.perf_counter() - start) / 100)
    assert fastest < 60e-6  # 20 µs on a machine with nothing else to do


def test_observations_that_cannot_be_are_refused():
    agent = agent_of(BOX)
    for bad in (0.0, np.zeros(5), np.zeros((6, 2))):
        with pytest.raises(ValueError, match=r"^observation: expected 6 numbers, got shape"):
            agent.predict(bad)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"^observation: expected finite numbers"):
            agent.predict(np.full(6, bad))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("hidden", [(8, 4), ()])
def test_saved_and_loaded_it_is_the_same(space, normalised, hidden, tmp_path):
    agent = agent_of(SPACES[space], normalised=normalised, hidden=hidden)
    agent.save(tmp_path / "agent.safetensors")
    again = hf.load(tmp_path / "agent.safetensors")
    assert again.environment is None
    assert again.policy.space == agent.policy.space
    for name in ("algorithm", "settings", "limits", "seed", "description"):
        assert getattr(again, name) == getattr(agent, name), name
    x = np.random.default_rng(0).standard_normal((9, INPUTS))
    np.testing.assert_array_equal(again.predict(x), agent.predict(x))
    assert again.to_bytes() == (tmp_path / "agent.safetensors").read_bytes()


def test_an_agent_without_a_weighting_has_the_older_one(tmp_path, monkeypatch):
    agent, path, to_dict = agent_of(BOX), tmp_path / "agent.safetensors", Settings.to_dict

    def older(settings):
        return {name: v for name, v in to_dict(settings).items() if name != "weighting"}

    with monkeypatch.context() as patch:
        patch.setattr(Settings, "to_dict", older)
        agent.save(path)
    assert agent.settings.weighting == "steps"
    assert hf.load(path).settings == dataclasses.replace(agent.settings, weighting="discounted")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PointGather(horizon=20, channel="action", speed=0.7),
        LinearGaussian,
        lambda: hf.environments.SIMULATORS["n-chain"](),
    ],
)
def test_holdfasts_own_environments_come_back(make, tmp_path):
    env = make()
    agent_in(env).save(tmp_path / "a")
    again = hf.load(tmp_path / "a")
    assert again.environment.description() == env.description()


def test_an_environment_of_ones_own_is_asked_for_when_it_is_needed(tmp_path):
    model = hf.environments.n_chain(nodes=5)
    env = TableSimulator(model, name="my-chain")
    agent_in(env).save(tmp_path / "a")
    again = hf.load(tmp_path / "a")
    assert again.environment is None
    assert again.predict(np.eye(5)[1]) in (0, 1)
    with pytest.raises(ValueError, match="my-chain"):
        hf.stress(again)
    assert hf.load(tmp_path / "a", environment=model).environment.observation_size == 5
    with pytest.raises(ValueError, match=r"^environment: n-chain has 40 observations"):
        hf.load(tmp_path / "a", environment="n-chain")
    with pytest.raises(ValueError, match=r"^environment: there is no 'atari'"):
        hf.load(tmp_path / "a", environment="atari")


@pytest.mark.parametrize("sizes", [[5], [5, 0, 2], [5, True, 2], [5, 4.0, 2], [-5, 2]])
def test_sizes_of_a_network_are_checked(sizes, tmp_path):
    from holdfast.simulators.training import checkpoint

    agent_in(TableSimulator(hf.environments.n_chain(nodes=5))).save(tmp_path / "whole")
    header = checkpoint.read_header(tmp_path / "whole", "agent")
    checkpoint.save(tmp_path / "a", {**header, "sizes": sizes}, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match=r"a: not an agent .* sizes of the network are"):
        hf.load(tmp_path / "a")


@pytest.mark.parametrize("low", [[0.0], [-1e300, 0.0]])
def test_bounds_of_actions_are_checked(low, tmp_path):
    from holdfast.simulators.training import checkpoint

    agent = agent_of(BOX)
    agent.save(tmp_path / "whole")
    header = checkpoint.read_header(tmp_path / "whole", "agent")
    space = {**header["space"], "low": low, "high": [1.0, 1.0]}
    checkpoint.save(tmp_path / "a", {**header, "space": space}, (agent.policy, agent.observations))
    with pytest.raises(ValueError, match=r"a: not an agent .* bounds of actions"):
        hf.load(tmp_path / "a")


def test_what_is_no_agent_is_refused_with_its_path(tmp_path):
    from holdfast.simulators.training import checkpoint

    checkpoint.save(tmp_path / "other", {"kind": "checkpoint"}, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="other: contains one checkpoint, expected one agent"):
        hf.load(tmp_path / "other")
    checkpoint.save(tmp_path / "hollow", {"kind": "agent"}, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="hollow: not an agent that this version can read"):
        hf.load(tmp_path / "hollow")
    with pytest.raises(ValueError, match="missing: there is no such file"):
        hf.load(tmp_path / "missing")
    with pytest.raises(ValueError, match="contains no training run"):
        hf.load(tmp_path)
    agent = agent_of(BOX)
    bent = dataclasses.replace(agent, policy=agent_of(BOX, hidden=(8,)).policy)
    agent.save(tmp_path / "whole")
    header = checkpoint.read_header(tmp_path / "whole", "agent")
    checkpoint.save(tmp_path / "bent", header, (bent.policy, bent.observations))
    with pytest.raises(ValueError, match="bent: does not fit"):
        hf.load(tmp_path / "bent")


def test_a_half_bounded_box_is_cut_and_not_scaled():
    space = Box(low=(0.0, -math.inf), high=(math.inf, 0.5))
    agent = agent_of(space)
    x = 5 * np.random.default_rng(0).standard_normal((200, INPUTS))
    found = agent.predict(x)
    np.testing.assert_allclose(found, expected(agent, x), atol=1e-5)
    assert found.min(axis=0)[0] == 0
    assert found.max(axis=0)[1] == 0.5


def test_what_gymnasium_nests_is_taken_apart_in_the_order_of_its_keys():
    agent = agent_of(BOX)
    x = np.arange(6.0)
    nested = {"b": (x[3], [x[4], x[5]]), "a": {"z": x[2], "y": x[:2].reshape(2, 1)}}
    np.testing.assert_array_equal(agent.predict(nested), agent.predict(x))
    np.testing.assert_array_equal(agent.predict((x[:4], x[4:])), agent.predict(x))
    np.testing.assert_array_equal(agent.predict((x, x)), agent.predict(np.stack([x, x])))
    with pytest.raises(ValueError, match=r"^observation: expected 6 numbers, got shape \(5,\)"):
        agent.predict({"a": x[:5]})
    with pytest.raises(ValueError, match=r"^observation: expected numbers"):
        agent.predict({"a": "north"})


class Encoding(LinearGaussian):
    """Whose observations are whole numbers to the outside, or mappings."""

    def encode(self, observation):
        if isinstance(observation, dict):
            return np.r_[observation["place"], np.zeros(5)]
        return np.eye(6)[int(observation)]


def test_the_environment_s_own_encoding_is_used_where_it_has_one():
    agent = dataclasses.replace(agent_of(BOX), environment=Encoding())
    np.testing.assert_array_equal(agent.predict(2), agent.predict(np.eye(6)[2]))
    np.testing.assert_array_equal(agent.predict(np.int64(3)), agent.predict(np.eye(6)[3]))
    np.testing.assert_array_equal(agent.predict({"place": 4.0}), agent.predict([4, 0, 0, 0, 0, 0]))
    rows = np.random.default_rng(0).standard_normal((7, 6))
    assert agent.predict(rows).shape == (7, 2)


def test_it_prints_as_one_line():
    assert repr(agent_of(BOX)) == "Agent('rcpo', seed=3, environment='mine', limits=(0.1,))"
