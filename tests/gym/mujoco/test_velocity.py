"""Robots under a speed limit: limits, costs, Gymnasium's checker, pictures."""

import copy
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from holdfast.gym.mujoco.task import RobotState
from holdfast.gym.mujoco.task_env import task_of
from holdfast.gym.mujoco.velocity import LIMITS, VelocityLimited, make

every_robot = pytest.mark.parametrize("task", LIMITS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes a log into the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def registered():
    """The environment's id in Gymnasium's registry, as the package registers it."""
    names = []

    def register(task):
        name = f"velocity-test/{task.removesuffix('-v5')}-v0"
        entry = "holdfast.gym.mujoco.velocity:make"
        gymnasium.register(name, entry, kwargs={"task": task}, max_episode_steps=1000)
        names.append(name)
        return name

    yield register
    for name in names:
        del gymnasium.registry[name]


def test_limits_are_the_published_ones():
    assert LIMITS == {
        "Ant-v5": 2.6222,
        "HalfCheetah-v5": 3.2096,
        "Hopper-v5": 0.7402,
        "Swimmer-v5": 0.2282,
        "Walker2d-v5": 2.3415,
    }


def test_gymnasium_s_own_checker_passes_with_pictures(registered, monkeypatch):
    """Without pictures, `test_as_gymnasium` checks every registered robot."""
    monkeypatch.delenv("DISPLAY", raising=False)
    env = gymnasium.make(registered("Hopper-v5"), render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # As Gymnasium's own robots have it.
        warnings.filterwarnings("ignore", message=".*Box observation space.*infinity")
        check_env(env.unwrapped)
    env.close()


@every_robot
def test_a_step_over_the_limit_costs_one(task):
    """Pushed to speeds on either side of the limit, with the cost by hand from positions."""
    env = make(task)
    limit, costs = LIMITS[task], []
    for target in np.linspace(-2, 2, 9) * limit:
        env.reset(seed=0)
        qvel = env.data.qvel.copy()
        qvel[0] = target
        env.set_state(env.data.qpos.copy(), qvel)
        for _ in range(3):
            x, y = env.data.body(1).xpos[:2] if task == "Ant-v5" else env.data.qpos[:2]
            _, _, _, _, info = env.step(np.zeros(env.action_space.shape))
            x2, y2 = env.data.body(1).xpos[:2] if task == "Ant-v5" else env.data.qpos[:2]
            speed = (x2 - x) / env.dt
            if task == "Ant-v5":
                speed = np.sqrt(speed**2 + ((y2 - y) / env.dt) ** 2)
            assert info["cost"] == (1.0 if speed > limit else 0.0)
            costs.append((target > 0, info["cost"]))
    assert {cost for forward, cost in costs if forward} == {0.0, 1.0}
    assert {cost for forward, cost in costs if not forward} == (
        {0.0, 1.0} if task == "Ant-v5" else {0.0}
    )


def test_only_ant_counts_speed_sideways():
    for task, costly in (("Ant-v5", 1.0), ("Swimmer-v5", 0.0)):
        env = make(task, limit=1.0)
        env.reset(seed=0)
        qvel = np.zeros(env.model.nv)
        qvel[1] = 5.0
        env.set_state(env.init_qpos, qvel)
        _, _, _, _, info = env.step(np.zeros(env.action_space.shape))
        assert info["y_velocity"] > 1 > abs(info["x_velocity"])
        assert info["cost"] == costly


@every_robot
def test_all_but_the_cost_is_the_robot_s(task):
    options = (
        {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
        if task == "Ant-v5"
        else {}
    )
    plain, limited = gymnasium.make(task, **options), make(task)
    assert limited.observation_space == plain.observation_space
    assert limited.action_space == plain.action_space
    np.testing.assert_array_equal(limited.reset(seed=3)[0], plain.reset(seed=3)[0])
    assert limited.np_random_seed == 3
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(plain.action_space.low, plain.action_space.high)
        expected, found = plain.step(action), limited.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:4] == expected[1:4]
        assert {k: v for k, v in found[4].items() if k != "cost"} == expected[4]
        if expected[2]:
            break


def test_options_and_limit_reach_the_robot(registered):
    env = gymnasium.make(registered("Hopper-v5"), limit=0.1, reset_noise_scale=0.0)
    assert env.unwrapped.limit == 0.1
    env.reset(seed=0)
    np.testing.assert_array_equal(env.unwrapped.data.qpos, env.unwrapped.init_qpos)
    assert make("Ant-v5", contact_cost_weight=0.1).observation_space.shape == (27,)
    assert make("Ant-v5", include_cfrc_ext_in_observation=True).observation_space.shape == (105,)


def test_a_generator_given_to_it_is_the_robot_s():
    env = make("Hopper-v5")
    env.np_random = np.random.default_rng(7)
    observation, _ = env.reset()
    expected, _ = make("Hopper-v5").reset(seed=7)
    np.testing.assert_array_equal(observation, expected)


def test_it_shows_the_robot_s_attributes_and_no_others():
    env = make("Hopper-v5")
    assert env.model is env.env.model
    assert copy.copy(env).limit == env.limit
    with pytest.raises(AttributeError, match="wings"):
        _ = env.wings
    with pytest.raises(AttributeError, match="_wings"):
        _ = env._wings
    with pytest.raises(AttributeError, match="env"):
        _ = VelocityLimited.__new__(VelocityLimited).model


@every_robot
def test_its_task_costs_the_same(task, registered):
    """Pushed around the limit, one step of each by Gymnasium and by the task."""
    env = gymnasium.make(registered(task))
    found = task_of(env)
    assert (found.name, found.horizon) == (env.spec.id, 1000)
    assert (found.cost_names, found.cost_limits) == (("speed",), (25.0,))
    bare, rng = env.unwrapped, np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (40, *env.action_space.shape))
    places, expected = [], []
    for seed, action in enumerate(actions):
        env.reset(seed=seed)
        qvel = bare.data.qvel.copy()
        qvel[0] = rng.uniform(0.5, 2) * LIMITS[task]
        if task in ("Ant-v5", "Swimmer-v5"):
            qvel[1] = rng.uniform(0.5, 2) * LIMITS[task]
        bare.set_state(bare.data.qpos.copy(), qvel)
        before = bare.data.qpos.copy(), bare.data.qvel.copy()
        _, _, _, _, info = env.step(action)
        places.append((before, (bare.data.qpos.copy(), bare.data.qvel.copy())))
        expected.append(info["cost"])
    before, after = (
        RobotState(np.array([p[i][0] for p in places]), np.array([p[i][1] for p in places]))
        for i in range(2)
    )
    paid = found.outcome(before, after, actions, np.zeros((40, 0)))
    np.testing.assert_array_equal(paid.costs, np.array(expected)[:, None])
    assert 0 < sum(expected) < 40


def test_the_time_limit_is_found_inside_and_outside():
    inside = VelocityLimited(gymnasium.make("Hopper-v5", max_episode_steps=50), limit=0.3)
    task = task_of(inside)
    assert (task.name, task.horizon, task.speed_limit) == ("Hopper-v5", 50, 0.3)
    outside = gymnasium.wrappers.TimeLimit(make("Hopper-v5"), 60)
    assert task_of(outside).horizon == 60
    assert task_of(make("Hopper-v5")) is None


def test_pictures_need_no_display(registered, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    env = gymnasium.make(registered("Swimmer-v5"), render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    bare = env.unwrapped
    bare.set_state(bare.data.qpos + 0.5, bare.data.qvel)
    after = env.render()
    env.close()
    assert before.shape == after.shape == (480, 480, 3)
    assert before.dtype == np.uint8
    assert before.std() > 5
    assert np.abs(before.astype(int) - after).mean() > 0.5


def test_wrong_use_gets_a_sentence():
    with pytest.raises(ValueError, match=r"^task: expected one of Ant-v5, .*, got 'Cheetah'$"):
        make("Cheetah")
    with pytest.raises(ValueError, match=r"^env: expected one of Ant-v5, .*CartPole"):
        VelocityLimited(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match=r"^env: expected one of Ant-v5, .*VelocityLimited"):
        VelocityLimited(make("Hopper-v5"))
    for limit in (-1.0, float("nan"), "fast"):
        with pytest.raises(ValueError, match=r"^limit: expected a speed of at least 0, got"):
            make("Hopper-v5", limit=limit)
