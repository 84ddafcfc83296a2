"""The certificate of a simulator: its fields, its refusals, and policies planted to hold or to break."""

import dataclasses
import math

import gymnasium
import jax
import numpy as np
import pytest
from tests.simulators.certificates.known_simulators import NoisyAfter, OnceDrawn, RareHeavy, Steady

import holdfast as hf
from holdfast.environments import PointGather, TableSimulator
from holdfast.simulators.certificates.bounded_signal import BoundedSignal, SignalRange
from holdfast.simulators.certificates.draw_bound import all_draws
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate
from holdfast.simulators.stress import frozen_agent

SMALL = {"episodes": 500, "draws": 8, "updates": 10}


def right(observation):
    return 1


@pytest.fixture(scope="module")
def small_chain():
    return TableSimulator(hf.environments.n_chain(nodes=3), horizon=3)


@pytest.fixture(scope="module")
def proof(small_chain):
    return hf.certify(small_chain, right, radius=0.02, cost_limit=-1, confidence=0.9, **SMALL)


def test_fields_are_ordered_and_survive_a_file(proof, tmp_path):
    cost = proof.costs[0]
    # Going right always pays a utility of 2: the cost is −6 under every kernel.
    assert cost.nominal == pytest.approx(-6)
    assert -6.3 < cost.found <= -6 + 1e-6 <= cost.upper < -1
    assert cost.holds
    assert cost.share is None
    assert proof.reward.lower < proof.reward.found
    assert proof.verdict == "holds"
    proof.save(tmp_path / "proof.json")
    again = SimulatorCertificate.load(tmp_path / "proof.json")
    assert (again.costs, again.reward, again.verdict) == (proof.costs, proof.reward, "holds")
    text = str(proof)
    for words in ("confidence 90 %", "Declared ranges", "fresh episodes", "risk of 0.05", "holds"):
        assert words in text
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad.json: not a certificate"):
        SimulatorCertificate.load(tmp_path / "bad.json")


def test_a_limit_that_is_exceeded_is_broken_and_one_between_is_open(proof):
    cost = proof.costs[0]
    for limit, verdict in ((-7.0, "broken"), ((cost.found + cost.upper) / 2, "undecided")):
        changed = dataclasses.replace(cost, limit=limit)
        assert dataclasses.replace(proof, costs=(changed,)).verdict == verdict


def test_a_draw_once_an_episode_is_bracketed():
    env, radius = OnceDrawn(), 0.1
    found = hf.certify(
        env, lambda seen: 0, radius=radius, cost_limit=0.5, most_cost=1, episodes=20_000
    )
    cost = found.costs[0]
    assert found.method == "once an episode"
    assert cost.nominal < cost.found < env.worst(radius) < cost.upper
    assert (cost.upper - cost.found) / (cost.found - cost.nominal) < 0.5


class Coin:
    """A model in the form of Stable-Baselines3's that tosses a coin for every action."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def predict(self, observation, deterministic):
        return self.generator.integers(0, 2, len(observation)), None


def test_episodes_of_a_draw_share_its_first_state_and_action():
    """Cost is 0 or 1 given these three, so that a mean between would show an episode without them."""
    env = OnceDrawn()
    frozen, _ = frozen_agent(hf.as_agent(Coin(), env, cost_limit=1), env)
    frozen = dataclasses.replace(frozen, deterministic=False)
    signal = BoundedSignal.create(1, SignalRange(0.0, 1.0, 1.0), 1.0, frozen.length)
    found = all_draws(frozen, signal, jax.random.key(0), 500, 7)
    assert found.cost.shape == (500,)
    assert set(np.asarray(found.cost).tolist()) == {0.0, 1.0}
    assert len(np.unique(found.inputs[:, -1])) == 500  # the draws themselves differ
    # In parts of two groups, with the same shapes for the last one.
    few = dataclasses.replace(frozen, env=type("Few", (OnceDrawn,), {"most_copies": 15})())
    parts = all_draws(few, signal, jax.random.key(0), 9, 7)
    assert set(np.asarray(parts.cost).tolist()) <= {0.0, 1.0}
    assert parts.inputs.shape == (9, found.inputs.shape[1])


def test_repeats_remove_the_noise_of_actions():
    env, radius, uppers = NoisyAfter(), 0.1, []
    for repeats in (1, 16):
        given = {"radius": radius, "cost_limit": 5, "episodes": 2_000, "repeats": repeats}
        proof = hf.certify(env, Coin(), **given)
        cost = proof.costs[0]
        assert cost.found < env.worst(radius) < cost.upper
        uppers.append(cost.upper)
    assert uppers[1] - env.worst(radius) < 0.5 * (uppers[0] - env.worst(radius))
    assert "2,000 fresh draws, each with the mean of 16 episodes" in str(proof)
    assert proof.setup["repeats"] == 16


def test_a_policy_with_a_memory_cannot_share_its_first_action():
    class Remembering:
        def reset(self):
            pass

        def __call__(self, observation):
            return 0

    with pytest.raises(ValueError, match="repeats: a policy with a memory of its own"):
        hf.certify(NoisyAfter(), Remembering(), radius=0.1, cost_limit=5, repeats=2)


@pytest.mark.parametrize("radius", [0.0, 0.1])
def test_a_discounted_cost_is_counted_beyond_the_horizon(radius):
    env = Steady(horizon=2)
    agent = hf.as_agent(lambda seen: 0, env, cost_limit=11, limit_on="discounted")
    cost = hf.certify(env, agent, radius=radius, episodes=200).costs[0]
    assert cost.nominal == pytest.approx(10, rel=2e-3)  # 1/(1 − γ), without the last thousandth
    # Sums of float32 numbers are exact to 1e-6 of their size.
    assert cost.found <= 10 <= cost.upper + 1e-4
    assert cost.upper <= 10.02


def test_a_box_of_parameters_has_a_share_and_never_holds():
    env = PointGather()
    box = {"speed": (0.8, 1.2)}
    found = hf.certify(env, lambda seen: [0.0, 0.0], box=box, cost_limit=0.5, episodes=300)
    cost = found.costs[0]
    assert found.method == "box of parameters"
    assert 0 < cost.share < 0.5
    assert not cost.holds
    assert math.isinf(cost.upper)
    assert found.verdict == "undecided"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "radius: a simulator needs a radius or a box"),
        ({"radius": 0.1, "box": {"speed": (0.8, 1.2)}}, "radius: give either radius or box"),
        ({"radius": -1.0}, "radius: expected a number of at least 0"),
        ({"radius": 0.1, "confidence": 1.5}, "confidence: expected a number between 0 and 1"),
        ({"radius": 0.1, "cost_range": (1, 0)}, "cost_range: expected two finite numbers"),
        ({"radius": 0.1, "cost_range": (1, 0, 2)}, r"cost_range: expected \(low, high\)"),
        ({"radius": 0.1, "most_cost": 0}, "most_cost: expected a number over 0"),
        ({"radius": 0.1, "reward_range": (1, 1)}, "reward_range: expected two finite numbers"),
        ({"box": {"weight": (0.8, 1.2)}}, "weight: not a parameter of point-gather"),
        ({"box": {"speed": (1.2, 0.8)}}, r"box: expected speed=\(low, high\)"),
        ({"radius": 0.1, "episodes": 1}, "episodes: expected a whole number"),
        ({"radius": 0.1, "repeats": 0}, "repeats: expected a whole number"),
        ({"radius": 0.1, "repeats": 2}, "repeats: several episodes of one draw need a radius"),
        ({"radius": 0.1, "repeats": 10**6}, "repeats: expected at most 20000"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        hf.certify(PointGather(), lambda seen: [0.0, 0.0], cost_limit=0.1, **options)


def test_what_cannot_be_proved_is_refused():
    def spins(step):
        return abs(step.next_observation[2]) > 4

    env = hf.disturb("Pendulum-v1", hf.Actions(0.2), spins, horizon=20)
    policy, options = (lambda seen: [0.0]), {"radius": 0.1, "cost_limit": 1}
    with pytest.raises(
        ValueError, match="cost_range: Pendulum-v1 does not declare the range of spins"
    ):
        hf.certify(env, policy, **options)
    quiet = hf.disturb("Pendulum-v1", None, spins, horizon=20)
    with pytest.raises(ValueError, match="radius: Pendulum-v1 has no disturbance"):
        hf.certify(quiet, policy, cost_range=(0, 1), **options)
    if not env.is_replayable:
        with pytest.raises(ValueError, match="cannot be stepped again from a saved state"):
            hf.certify(env, policy, cost_range=(0, 1), **options)


def test_heavy_costs_outside_the_declared_range_are_cut_and_counted():
    found = hf.certify(
        RareHeavy(horizon=2), lambda seen: 0, radius=0.02, cost_limit=1, cost_range=(0, 1), **SMALL
    )
    assert found.setup["signals"]["cost"]["outside_range"] > 0
    assert "were outside and were cut" in str(found)
    assert np.isfinite(found.costs[0].upper)
