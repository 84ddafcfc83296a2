"""The shield against every proposal and every kernel, by enumeration of a game tree."""

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import holdfast as hf

BOLD, CAREFUL = 0, 1
DEPTH = 6


class Scripted(gymnasium.Env):
    """Two states and two actions; the test says where the next step leads."""

    observation_space = action_space = spaces.Discrete(2)
    outcome = 0

    def reset(self, *, seed=None, options=None):
        return self.outcome, {}

    def step(self, action):
        return self.outcome, 0.0, False, False, {}


def machine(limit=2.0, **changes):
    """Bold often leads to the worn state, where a step costs 1, and careful rarely does."""
    nominal = np.array([[[0.5, 0.5], [0.9, 0.1]], [[0.3, 0.7], [0.6, 0.4]]])
    lower = np.clip(nominal - 0.08, 0, 1)
    arguments = {
        "transitions": nominal,
        "reward": np.array([[1.0, 0.0], [1.0, 0.0]]),
        "constraints": [hf.at_most(np.array([[0.0, 0.0], [1.0, 1.0]]), limit, name="wear")],
        "initial": np.array([1.0, 0.0]),
        "discount": 0.8,
        "uncertainty": hf.Interval(lower, np.clip(nominal + 0.08, 0, 1)),
    }
    return hf.RobustCMDP(**{**arguments, **changes})


def most_expensive(shield, env, model, state, left):
    """Return the largest mean cost over all proposals and all kernels, history by history."""
    if left == 0:  # the fallback policy goes on
        return shield.costs.values[0, state]
    found = []
    for proposed in (BOLD, CAREFUL):
        after = np.zeros(2)
        for outcome in (0, 1):
            env.outcome, child = outcome, copy.copy(shield)
            taken = child.step(proposed)[-1]["action"]
            after[outcome] = most_expensive(child, env, model, outcome, left - 1)
        p = model.nominal[state, taken, 1]
        here = -model.constraints[0].utility[state, taken]
        ends = (max(p - 0.08, 0.0), min(p + 0.08, 1.0))
        found += [here + model.discount * ((1 - q) * after[0] + q * after[1]) for q in ends]
    return max(found)


@pytest.mark.parametrize("limit", [1.2, 1.5, 5.0])
def test_the_limit_is_kept_against_every_proposal_and_kernel(limit):
    model, env = machine(limit), Scripted()
    shield = hf.Shield(env, [CAREFUL, CAREFUL], model=model)
    shield.reset()
    worst = most_expensive(shield, env, model, 0, DEPTH)
    assert worst <= limit + 1e-9
    always_bold = hf.evaluate(model, [BOLD, BOLD]).constraints[0].worst
    if always_bold > limit:
        # Without a shield the limit is exceeded; with one, most of the slack is used.
        careful = hf.evaluate(model, [CAREFUL, CAREFUL]).constraints[0].worst
        assert worst >= careful + 0.5 * (limit - careful)
    else:
        assert not shield.step(BOLD)[-1]["overridden"]


def test_the_costs_to_go_are_those_of_evaluate():
    model = machine()
    shield = hf.Shield(Scripted(), [CAREFUL, CAREFUL], model=model)
    found = hf.evaluate(model, [CAREFUL, CAREFUL]).constraints[0]
    np.testing.assert_allclose(shield.costs.values[0], found.values, atol=1e-9)
    np.testing.assert_allclose(
        shield.costs.actions[0], found.values[:, None] + found.advantages, atol=1e-9
    )
    assert (shield.costs.actions[0] >= found.values[:, None] + found.advantages - 1e-15).all()
    assert shield.first_slack[0] == pytest.approx(found.margin)


def test_a_shielded_table_keeps_a_utility_under_the_worst_kernel():
    model = hf.environments.gambler()
    bold = np.minimum(np.arange(17), 16 - np.arange(17)).clip(1, 8) - 1
    kernel = hf.evaluate(model, bold).constraints[0].kernel
    worst = gymnasium.make("holdfast/Gambler-v0", model=model.replace(transitions=kernel))
    shielded = hf.Shield(worst, np.zeros(17, int), model=model)
    costs = []
    for episode in range(150):
        state, _ = shielded.reset(seed=episode)
        total, weight, over = 0.0, 1.0, False
        while not over:
            state, _, ended, cut, info = shielded.step(bold[state])
            total, weight, over = total + weight * info["cost"], weight * 0.95, ended or cut
        costs.append(total)
    assert hf.evaluate(model, bold).constraints[0].worst < 2.5  # unsafe alone
    assert -np.mean(costs) + 3 * np.std(costs) / len(costs) ** 0.5 >= 2.5
    assert 0 < shielded.overridden < shielded.steps


def test_the_fallback_draws_independently_of_the_transitions():
    """One seed for both would make the next action depend on where the last one led."""
    shield = hf.Shield(Scripted(), np.full((2, 2), 0.5), model=machine(5.0))
    shield.reset(seed=3)
    mine, theirs = shield._draw.random(200), np.random.default_rng(3).random(201)
    assert abs(np.corrcoef(mine, theirs[:200])[0, 1]) < 0.3
    assert abs(np.corrcoef(mine, theirs[1:])[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fallback": [BOLD, BOLD]}, "fallback: it breaks wear ≤ 1 in the worst case by"),
        ({"model": None}, "model: expected a RobustCMDP, got None"),
        ({"model": hf.environments.n_chain(nodes=3)}, "env: expected 3 states as observations"),
        ({"model": hf.environments.gambler()}, "env: expected 8 discrete actions"),
        ({"model": machine(constraints=[])}, "model: expected one with constraints"),
        ({"model": machine(horizon=3)}, "model: expected a discounted one"),
    ],
)
def test_what_has_no_shield_is_refused(changes, message):
    arguments = {"env": Scripted(), "fallback": [CAREFUL, CAREFUL], "model": machine(1.0)}
    with pytest.raises(ValueError, match=message):
        hf.Shield(**{**arguments, **changes})
