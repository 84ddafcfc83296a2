"""Evaluation: what is exact for a table, what is counted by hand, and what is refused."""

import functools
import json
import math

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

import holdfast as hf
from holdfast.environments import TableSimulator
from holdfast.gym.as_gymnasium import TableEnv
from holdfast.simulators.environment import Box, Discrete
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.settings import Settings

MODEL = hf.environments.n_chain(nodes=5)


def agent_of(inputs, space, limits, env=None, *, limit_on="episode", **description):
    policy = Policy.create(jax.random.PRNGKey(3), inputs, (), space)
    described = {"name": "mine", **description} if env is None else env.description()
    settings = Settings(limit_on=limit_on)
    return Agent(policy, None, "pcpo", settings, limits, 4, env, described)


def chain_agent(**changes):
    env = TableSimulator(MODEL, name="my-chain")
    return agent_of(5, Discrete(2), (-6.0,), env, limit_on="discounted", **changes)


@functools.cache
def exact():
    """The nominal values of its most likely actions: reward and cost."""
    policy = np.eye(2)[chain_agent().predict(np.eye(5))]
    found = hf.evaluate(MODEL, policy)
    return found.reward.nominal, -found.constraints[0].nominal


@functools.cache
def in_the_simulator():
    return chain_agent().evaluate(episodes=400, confidence=0.999)


def in_gymnasium(**options):
    return chain_agent().evaluate(TimeLimit(TableEnv(MODEL), 250), confidence=0.999, **options)


@pytest.mark.parametrize("play", [in_the_simulator, functools.partial(in_gymnasium, episodes=60)])
def test_intervals_hold_what_is_exact_for_a_table(play):
    found = play()
    reward, cost = exact()
    assert found.reward.low <= reward <= found.reward.high
    assert found.costs[0].low <= cost <= found.costs[0].high
    assert found.reward.high - found.reward.low < 0.3 * abs(reward)
    assert found.cost_names == ("minus utility",)
    np.testing.assert_allclose(found.episode_rewards.mean(), found.reward.mean)
    np.testing.assert_allclose(found.episode_costs.mean(0), [found.costs[0].mean])
    over = (found.episode_costs[:, 0] > -6).mean()
    assert found.over_limit[0].mean == over
    assert found.over_limit[0].low <= over <= found.over_limit[0].high


def test_a_seed_repeats_an_evaluation():
    assert in_gymnasium(episodes=5).to_dict() == in_gymnasium(episodes=5).to_dict()
    other = in_gymnasium(episodes=5, seed=1).to_dict()
    assert other["episode_rewards"] != in_gymnasium(episodes=5).to_dict()["episode_rewards"]
    again = chain_agent().evaluate(episodes=400, confidence=0.999)
    assert again.to_dict() == in_the_simulator().to_dict()


def test_what_is_found_is_a_table_and_plain_values():
    found = in_the_simulator()
    first, heads, reward, cost, *drawn = str(found).splitlines()
    title = "my-chain, pcpo-4: mean over 400 episodes [99.9 % interval]"
    assert first == f"{title}, most likely actions"
    assert drawn[0] == f"{title}, drawn actions"
    assert drawn == str(found.drawn).splitlines()
    assert heads.split() == ["mean", "episodes", "over", "the", "limit"]
    assert reward.split()[:2] == ["reward", f"{found.reward.mean:.4g}"]
    assert len(reward) == len(cost[: cost.index("]") + 1])  # one column under the other
    assert cost.startswith("minus utility ≤ -6  ")
    assert f"{100 * found.over_limit[0].mean:.3g} % [" in cost
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["costs"][0]["mean"] == found.costs[0].mean
    assert len(plain["episode_costs"]) == 400
    assert plain["setup"]["limit_on"] == "discounted"
    assert plain["drawn"] == json.loads(json.dumps(found.drawn.to_dict()))


def test_drawn_actions_have_the_value_of_the_policys_own_rows():
    agent = chain_agent()
    logits = agent.arrays.outputs(np.eye(5, dtype=np.float32))
    rows = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    exact = hf.evaluate(MODEL, rows).reward.nominal
    drawn = in_the_simulator().drawn
    assert drawn.reward.low <= exact <= drawn.reward.high
    assert not drawn.setup["deterministic"]


def test_the_verdict_is_in_the_table():
    env = Numbers(costs=[0.0, 1.0])
    for limit, verdict in ((2.0, "violated"), (3.1, "undecided"), (5.0, "")):
        agent = agent_of(2, Box((-1.0,), (1.0,)), (limit,), horizon=3)
        found = agent.evaluate(env, episodes=10)
        assert found.to_dict()["costs"][0]["verdict"] == verdict
        words = {"violated": "limit violated", "undecided": "contains the limit", "": "]"}
        assert str(found).endswith(words[verdict])


class Numbers(gymnasium.Env):
    """Pays 1, 2, 3 for its steps; the costs of an episode's steps are those given, times its number."""

    observation_space = spaces.Dict({"b": spaces.Box(-1, 1, (1,)), "a": spaces.Box(-1, 1, (1, 1))})
    action_space = spaces.Box(-1, 1, (1, 1), np.float64)

    def __init__(self, costs=(), *, how="cost", steps=3):
        self.costs, self.how, self.length, self.episode = costs, how, steps, 0

    def seen(self):
        return {"b": np.zeros(1, np.float32), "a": np.ones((1, 1), np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = 1 if seed is not None else self.episode + 1
        self.step_number = 0
        return self.seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.step_number += 1
        over = self.step_number == self.length
        cost = self.costs[self.step_number % len(self.costs)] if self.costs else 0.0
        cost = cost * (self.episode % 2 + 1)
        reward = float(self.step_number)
        if self.how == "six":
            return self.seen(), reward, cost, over, False, {}
        given = {"cost": cost, "costs": [cost, 2 * cost], "none": None}[self.how]
        return self.seen(), reward, over, False, {} if given is None else {self.how: given}


@pytest.mark.parametrize(
    ("how", "limits", "names"),
    [
        ("cost", (1.0,), ("cost",)),
        ("six", (1.0,), ("cost",)),
        ("costs", (1, 2), ("cost 0", "cost 1")),
    ],
)
def test_costs_are_read_wherever_they_are(how, limits, names):
    agent = agent_of(2, Box((-1.0,), (1.0,)), limits, horizon=10)
    found = agent.evaluate(Numbers([0.0, 0.5], how=how), episodes=4)
    assert found.episode_rewards.tolist() == [6, 6, 6, 6]
    assert found.reward == (6, 6, 6)
    assert found.episode_costs[:, 0].tolist() == [2, 1, 2, 1]
    assert found.cost_names == names
    assert found.environment == "Numbers"
    assert found.over_limit[0].mean == 0.5
    second = {"costs": [[4], [2], [4], [2]]}.get(how, [[], [], [], []])
    assert found.episode_costs[:, 1:].tolist() == second


def test_episodes_are_played_up_to_a_time_limit():
    endless = Numbers([1.0], steps=math.inf)
    agent = agent_of(2, Box((-1.0,), (1.0,)), (1.0,), horizon=4)
    assert agent.evaluate(endless, episodes=2).episode_rewards.tolist() == [10, 10]
    cut = agent.evaluate(TimeLimit(endless, 6), episodes=2)
    assert cut.episode_rewards.tolist() == [21, 21]
    agent = agent_of(2, Box((-1.0,), (1.0,)), (1.0,))
    with pytest.raises(ValueError, match=r"^environment: Numbers has no time limit"):
        agent.evaluate(endless, episodes=2)


def test_an_id_of_gymnasium_is_made_and_played():
    agent = agent_of(40, Discrete(2), (-6.0,))
    found = agent.evaluate("holdfast/NChain-v0", episodes=2)
    assert found.environment == "holdfast/NChain-v0"
    # 200 steps, each with one of (reward, utility) = (1, 0) and (0, 2), but for the last node's bonus.
    assert (found.episode_costs <= 0).all()
    assert (found.episode_rewards - found.episode_costs[:, 0] / 2 >= 200 - 1e-9).all()


def test_drawn_actions_differ_from_the_most_likely():
    agent = agent_of(5, Discrete(2), (-6.0,), horizon=50)
    same, drawn = (
        agent.evaluate(TableEnv(MODEL), episodes=3, deterministic=d) for d in (True, False)
    )
    assert same.episode_costs.tolist() != drawn.episode_costs.tolist()
    assert "drawn actions" in str(drawn)


def test_wrong_use_gets_a_sentence():
    agent = agent_of(2, Box((-1.0,), (1.0,)), (1.0,), horizon=3)
    plain = Numbers([1.0])
    for match, environment, options in (
        ("episodes: expected a whole number of at least 2", plain, {"episodes": 1}),
        ("confidence: expected a number between 0 and 1", plain, {"confidence": 95}),
        ("seed: expected a whole number of at least 0", plain, {"seed": -1}),
        ("agent: it was saved without mine; pass environment=", None, {}),
        ("environment: expected a name, a table, a simulator", 3, {}),
        ("environment: 'Casino-v0' cannot be made", "Casino-v0", {}),
        ("environment: point-gather has 29 observations", "point-gather", {}),
        ("environment: CartPole-v1 has 4 numbers in an observation", "CartPole-v1", {}),
        ("environment: Numbers gives no cost: none in info", Numbers(how="none"), {}),
        ("environment: Numbers gives 2 cost.s., the agent has 1", Numbers([1.0], how="costs"), {}),
    ):
        with pytest.raises(ValueError, match=f"^{match}"):
            agent.evaluate(environment, **options)
    with pytest.raises(ValueError, match=r"^environment: Numbers has actions Box.*Discrete"):
        agent_of(2, Discrete(3), (1.0,), horizon=3).evaluate(plain)
    with pytest.raises(ValueError, match=r"^agent: .* whose discount is needed"):
        agent_of(2, Box((-1.0,), (1.0,)), (1.0,), limit_on="discounted", horizon=3).evaluate(plain)
    with pytest.raises(FloatingPointError, match=r"^Numbers returned a number that is not finite"):
        agent.evaluate(Numbers([math.nan]), episodes=2)
