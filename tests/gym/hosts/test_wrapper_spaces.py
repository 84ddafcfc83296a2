"""What the wrapper takes in and gives out: spaces, steps of five or six values, costs, refusals."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import holdfast as hf
from holdfast.gym.costs import Costs, speed_limit
from holdfast.gym.hosts.host import DisturbanceLayout as Layout
from holdfast.gym.hosts.wrapper import DisturbedEnv

FREE = Costs.resolve({})


def disturbed(name, layout=None, costs=FREE):
    return DisturbedEnv(gymnasium.make(name, max_episode_steps=-1), layout, costs)


def actions_of(env, steps, seed=0):
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(steps)]


class Six(gymnasium.Env):
    """As Safety-Gymnasium has it: a step of six values."""

    observation_space = spaces.Dict(
        place=spaces.Box(-9, 9, (2, 2), np.float64), room=spaces.Discrete(3, start=1)
    )
    action_space = spaces.Box(-5, 5, (2, 1), np.int64)

    def __init__(self):
        self.taken = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.place = self.np_random.random((2, 2))
        return {"place": self.place, "room": 1}, {}

    def step(self, action):
        self.taken.append(action)
        self.place = self.place + action
        return {"place": self.place, "room": 3}, 1.0, 0.25, False, False, {"cost_sum": 7.0}

    def get_state(self):
        return self.place

    def set_state(self, state):
        assert state.shape == (2, 2)
        self.place = state


def test_a_step_of_six_values_has_its_cost_in_the_middle():
    env = DisturbedEnv(Six())
    env.reset(seed=0)
    found = env.step([1, 2])
    assert len(found) == 5
    np.testing.assert_array_equal(found[4]["costs"], [0.25])
    other = DisturbedEnv(Six(), costs=Costs.resolve({"a": "cost_sum", "b": "cost"}))
    other.reset(seed=0)
    np.testing.assert_array_equal(other.step([1, 2])[4]["costs"], [7.0, 0.25])


def test_dicts_are_laid_out_flat_and_actions_get_their_form_back():
    inner = Six()
    env = DisturbedEnv(inner)
    first, _ = env.reset(seed=0)
    place = inner.place.ravel()
    np.testing.assert_array_equal(first, np.float32([*place, 1, 0, 0]))
    assert first.dtype == np.float32
    assert env.observation_size == 7
    assert env.observation_space.contains(first)
    second = env.step(np.array([1.2, 1.9], np.float32))[0]
    np.testing.assert_array_equal(second[:4], np.float32(place + np.array([1, 1, 2, 2])))
    np.testing.assert_array_equal(second[4:], [0, 0, 1])
    assert inner.taken[0].dtype == np.int64
    assert inner.taken[0].shape == (2, 1)
    assert env.row_type["action"].shape == (2,)


def test_a_state_behind_two_methods_can_be_pushed():
    env = DisturbedEnv(Six(), Layout(state=4))
    calm = env.reset(seed=0)[0]
    found = env.step_under([0, 0], np.array([1, 2, 3, 4], np.float32))[0]
    np.testing.assert_allclose(found[:4] - calm[:4], [1, 2, 3, 4], atol=1e-6)


def test_what_was_seen_stays_though_the_environment_writes_over_it():
    class Thrifty(gymnasium.ObservationWrapper):
        memory = np.zeros(4, np.float32)

        def observation(self, observation):
            self.memory[:] = observation
            return self.memory

    env = DisturbedEnv(Thrifty(gymnasium.make("CartPole-v1")), costs=FREE)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    env.step(1)
    np.testing.assert_array_equal(first, kept)


def test_discrete_actions_begin_at_zero_whatever_the_environment_calls_them():
    class Named(gymnasium.ActionWrapper):
        action_space = spaces.Discrete(2, start=5)

        def action(self, action):
            assert self.action_space.contains(action)
            return int(action) - 5

    env = DisturbedEnv(Named(gymnasium.make("CartPole-v1")), costs=FREE)
    assert env.row_type["action"].shape == ()
    env.reset(seed=0)
    assert env.step(np.float32(0))[0][1] < 0
    env.reset(seed=0)
    assert env.step(np.int32(1))[0][1] > 0


def test_costs_see_the_step_as_it_was():
    seen = []
    env = disturbed("CartPole-v1", costs=Costs.resolve(lambda step: seen.append(step) or 0.5))
    first, _ = env.reset(seed=0)
    second, reward, _, _, info = env.step(1)
    third = env.step(0)[0]
    np.testing.assert_array_equal([s.observation for s in seen], [first, second])
    np.testing.assert_array_equal([s.next_observation for s in seen], [second, third])
    assert (seen[0].action, seen[0].reward) == (1, reward)
    np.testing.assert_array_equal(info["costs"], [0.5])


def test_a_speed_limit_reads_the_robot_s_speed():
    env = disturbed("HalfCheetah-v5", costs=Costs.resolve(speed_limit(0.3)))
    env.reset(seed=0)
    costs, speeds = [], []
    for action in actions_of(env, 60):
        info = env.step(action)[4]
        costs.append(info["costs"][0])
        speeds.append(info["x_velocity"])
    np.testing.assert_array_equal(costs, np.array(speeds) > 0.3)
    assert 0 < sum(costs) < 60


@pytest.mark.parametrize(
    ("name", "channel", "message"),
    [
        (
            "CartPole-v1",
            hf.Force("pole", 1.0),
            "^channel: CartPole-v1 does not use MuJoCo, which a force",
        ),
        (
            "CartPole-v1",
            hf.Parameters(mass=0.1),
            "^mass: not a parameter that CartPole-v1 can change; it can change: delay",
        ),
        (
            "CartPole-v1",
            hf.States(velocity=0.1),
            "^velocity: the state of CartPole-v1 is one vector",
        ),
        (
            "FrozenLake-v1",
            hf.States(0.1),
            "^channel: the state of FrozenLake-v1 cannot be set",
        ),
        (
            "Hopper-v5",
            hf.Force("arm", 1.0),
            "^body: Hopper-v5 has no 'arm'; it has torso",
        ),
        (
            "Swimmer-v5",
            hf.Parameters(damping=0.1),
            "^damping: not a parameter that Swimmer-v5 can change",
        ),
    ],
)
def test_what_cannot_be_disturbed_is_refused_in_a_sentence(name, channel, message):
    with pytest.raises(ValueError, match=message):
        hf.disturb(name, channel, {})


@pytest.mark.parametrize(("name", "size"), [("CartPole-v1", 4), ("Hopper-v5", 12)])
def test_a_push_has_the_size_of_the_state(name, size):
    assert hf.disturb(name, hf.States(0.1), {}).disturbance.size == size


@pytest.mark.parametrize(
    ("space", "which", "message"),
    [
        (
            spaces.Sequence(spaces.Discrete(2)),
            "observation_space",
            "^observation space: Six has Seq",
        ),
        (
            spaces.Box(0, 255, (84, 84), np.uint8),
            "observation_space",
            r"^observation space: Six observes images of shape \(84, 84\)",
        ),
        (
            spaces.Dict(speed=spaces.Box(0, 1), camera=spaces.Box(0, 1, (8, 9, 3))),
            "observation_space",
            r"^observation space: Six observes images of shape \(8, 9, 3\)",
        ),
    ],
)
def test_spaces_that_do_not_fit_are_refused_in_a_sentence(space, which, message):
    env = Six()
    setattr(env, which, space)
    with pytest.raises(ValueError, match=message):
        DisturbedEnv(env)


def test_no_cost_anywhere_is_a_sentence():
    env = disturbed("CartPole-v1", costs=None)
    env.reset(seed=0)
    with pytest.raises(
        ValueError, match=r"^cost: the info of CartPole-v1 has no 'cost' .it has none"
    ):
        env.step(0)
