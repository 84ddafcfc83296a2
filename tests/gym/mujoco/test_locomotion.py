"""Gymnasium's robots as tasks, against Gymnasium itself."""

from pathlib import Path

import gymnasium
import mujoco
import mujoco.rollout
import numpy as np
import pytest

from holdfast.gym.mujoco.task import RobotState
from holdfast.gym.mujoco.task_env import task_of
from holdfast.gym.mujoco.velocity import VelocityLimited

FULL = mujoco.mjtState.mjSTATE_FULLPHYSICS
NO_FORCES = {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
SHOWN = {"exclude_current_positions_from_observation": False}
CASES = {
    "half-cheetah": ("HalfCheetah-v5", {}),
    "half-cheetah, other options": (
        "HalfCheetah-v5",
        {"frame_skip": 3, "forward_reward_weight": 2.0, "ctrl_cost_weight": 0.3, **SHOWN},
    ),
    "hopper": ("Hopper-v5", {}),
    "hopper, other options": (
        "Hopper-v5",
        {"terminate_when_unhealthy": False, "healthy_state_range": (-3.0, 3.0), **SHOWN},
    ),
    "walker": ("Walker2d-v5", {}),
    "walker, other options": (
        "Walker2d-v5",
        {"healthy_reward": 0.3, "healthy_z_range": (1.1, 1.3), "reset_noise_scale": 0.02, **SHOWN},
    ),
    "swimmer": ("Swimmer-v5", {}),
    "swimmer, other options": ("Swimmer-v5", {"reset_noise_scale": 0.5, **SHOWN}),
    "ant": ("Ant-v5", NO_FORCES),
    "ant, other options": ("Ant-v5", {"healthy_z_range": (0.4, 0.8), **NO_FORCES, **SHOWN}),
}
every_case = pytest.mark.parametrize("case", CASES)
# Gymnasium reads Ant's velocity off the last pass of the integrator, 5 mm from where the step ends.
ANT_TOLERANCE = 0.2


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes a log into the working directory."""
    monkeypatch.chdir(tmp_path)


def made(case):
    name, options = CASES[case]
    return gymnasium.make(name, **options)


def physics(env):
    found = np.empty(mujoco.mj_stateSize(env.model, FULL))
    mujoco.mj_getState(env.model, env.data, found, FULL)
    return found


def walked(env, steps=150, seed=0):
    """Random steps of Gymnasium's: where each began, what was done, and what came of it."""
    rng = np.random.default_rng(seed)
    env.action_space.seed(seed)
    env.reset(seed=seed)
    bare = env.unwrapped
    states, warm, actions, outcomes = [], [], [], []
    for _ in range(steps):
        states.append(physics(bare))
        warm.append(bare.data.qacc_warmstart.copy())
        # In float64, or Gymnasium's own sum of squares is rounded to float32.
        actions.append(rng.uniform(bare.action_space.low, bare.action_space.high))
        outcomes.append(env.step(actions[-1]))
        if outcomes[-1][2]:
            env.reset()
    observations, rewards, terminated, _, infos = zip(*outcomes, strict=True)
    info = {name: np.array([each[name] for each in infos]) for name in infos[0]}
    done = np.array(observations), np.array(rewards), np.array(terminated), info
    return np.array(states), np.array(warm), np.array(actions), done


def moments(task, states, actions, warm=None):
    """Where copies were and where MuJoCo's threaded rollout takes them."""
    controls = np.repeat(actions[:, None], task.frame_skip, axis=1)
    data = [mujoco.MjData(task.model) for _ in range(2)]
    path, _ = mujoco.rollout.rollout(
        task.model, data, states, controls, initial_warmstart=warm, persistent_pool=False
    )
    nq = task.model.nq
    places = np.concatenate([states[:, None], path], axis=1)[:, :, 1:]
    before = RobotState(places[:, 0, :nq], places[:, 0, nq:])
    return before, RobotState(places[:, -1, :nq], places[:, -1, nq:])


def nothing(rows):
    return np.zeros((rows, 0))


@every_case
def test_a_step_from_the_same_state_is_the_same(case):
    env = made(case)
    task = task_of(env)
    states, warm, actions, (observations, rewards, terminated, info) = walked(env)
    before, after = moments(task, states, actions, warm)
    paid = task.outcome(before, after, actions, nothing(len(states)))
    np.testing.assert_allclose(
        task.observe(after, nothing(len(states))), observations, rtol=0, atol=1e-12
    )
    np.testing.assert_array_equal(paid.terminated, terminated)
    assert task.observation_size == env.observation_space.shape[0] == observations.shape[1]
    assert set(paid.info) == set(info)
    tolerance = ANT_TOLERANCE if "ant" in case else 1e-12
    for name, value in info.items():
        near = tolerance if name in ("x_velocity", "y_velocity", "reward_forward") else 1e-12
        np.testing.assert_allclose(paid.info[name], value, rtol=0, atol=near, err_msg=name)
    np.testing.assert_allclose(paid.reward, rewards, rtol=0, atol=tolerance)
    assert paid.costs.shape == (len(states), 0)


@every_case
def test_without_the_solver_s_last_answer_a_step_is_nearly_the_same(case):
    """Where the solver starts is no part of the state, and it stops at a tolerance."""
    env = made(case)
    task = task_of(env)
    states, _, actions, (observations, _, terminated, _) = walked(env)
    before, after = moments(task, states, actions)
    np.testing.assert_allclose(
        task.observe(after, nothing(len(states))), observations, rtol=0, atol=1e-8
    )
    paid = task.outcome(before, after, actions, nothing(len(states)))
    np.testing.assert_array_equal(paid.terminated, terminated)


@every_case
def test_the_trajectories_tell_options_apart(case):
    """Else the comparisons above would not see an option that is ignored."""
    _, _, _, (_, rewards, terminated, info) = walked(made(case))
    assert np.std(rewards) > 1e-4
    name, options = CASES[case]
    if name in ("Hopper-v5", "Walker2d-v5"):
        wages = info["reward_survive"]
        assert 0 < wages.astype(bool).sum() < len(wages)
        assert terminated.any() == options.get("terminate_when_unhealthy", True)


def test_an_ant_s_velocities_are_gymnasium_s_but_for_the_last_pass():
    env = made("ant")
    task = task_of(env)
    states, warm, actions, (_, _, _, info) = walked(env, steps=400)
    before, after = moments(task, states, actions, warm)
    found = task.outcome(before, after, actions, nothing(len(states))).info
    for axis, name in enumerate(("x_velocity", "y_velocity")):
        distance = after.qpos[:, axis] - before.qpos[:, axis]
        np.testing.assert_allclose(found[name], distance / env.unwrapped.dt, atol=1e-12)
        off = found[name] - info[name]
        assert np.abs(off).mean() < 0.01
        # What is too much in one step is missing in the next.
        assert np.abs(off.cumsum()).max() < ANT_TOLERANCE


@every_case
def test_episodes_begin_as_gymnasium_s_for_every_seed(case):
    env = made(case)
    task = task_of(env)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        start = task.reset(np.random.default_rng(seed))
        np.testing.assert_array_equal(start.qpos, env.unwrapped.data.qpos)
        np.testing.assert_array_equal(start.qvel, env.unwrapped.data.qvel)
        assert start.memory.shape == (task.memory_size,)
        now = RobotState(start.qpos[None], start.qvel[None])
        np.testing.assert_array_equal(task.observe(now, start.memory[None])[0], observation)


@every_case
def test_rows_are_what_they_are_one_at_a_time(case):
    env = made(case)
    task = task_of(env)
    states, warm, actions, _ = walked(env, steps=30)
    before, after = moments(task, states, actions, warm)

    def row(moment, i):
        return RobotState(*(part[i : i + 1] for part in moment))

    paid = task.outcome(before, after, actions, nothing(30))
    seen, features = task.observe(after, nothing(30)), task.features(after, nothing(30))
    for i in range(30):
        alone = task.outcome(row(before, i), row(after, i), actions[i : i + 1], nothing(1))
        np.testing.assert_allclose(alone.reward[0], paid.reward[i], rtol=0, atol=1e-14)
        assert alone.terminated[0] == paid.terminated[i]
        for name, value in alone.info.items():
            np.testing.assert_allclose(value[0], paid.info[name][i], rtol=0, atol=1e-14)
        here = row(after, i)
        np.testing.assert_array_equal(task.observe(here, nothing(1))[0], seen[i])
        np.testing.assert_array_equal(task.features(here, nothing(1))[0], features[i])


@every_case
def test_features_leave_out_only_how_far_it_has_come(case):
    env = made(case)
    task = task_of(env)
    start = task.reset(np.random.default_rng(0))
    now = RobotState(start.qpos[None], 30 + start.qvel[None])
    features = task.features(now, nothing(1))
    assert features.shape == (1, task.feature_size)
    # Velocities that an observation cuts are whole here.
    np.testing.assert_array_equal(features[:, -task.model.nv :], now.qvel)
    free = 2 if CASES[case][0] in ("Swimmer-v5", "Ant-v5") else 1
    shown = "other" in case
    for i in range(task.model.nq):
        moved = start.qpos.copy()
        moved[i] += 0.1
        there = task.features(RobotState(moved[None], now.qvel), nothing(1))
        assert np.array_equal(there, features) == (i < free and not shown)


def test_the_model_is_a_copy():
    env = made("hopper")
    task = task_of(env)
    env.unwrapped.model.body_mass[:] *= 2
    assert task.model.body_mass.sum() * 2 == pytest.approx(env.unwrapped.model.body_mass.sum())


def test_an_ant_that_is_not_finite_is_unwell():
    task = task_of(made("ant"))
    start = task.reset(np.random.default_rng(0))
    now = RobotState(start.qpos[None], start.qvel[None])
    lost = now._replace(qvel=np.full_like(now.qvel, np.nan))
    paid = task.outcome(now, lost, np.zeros((1, 8)), nothing(1))
    assert paid.terminated.tolist() == [True]
    assert paid.reward.tolist() == [0.0]


def test_a_task_has_gymnasium_s_name_and_time_limit():
    task = task_of(gymnasium.make("Walker2d-v5", max_episode_steps=70))
    assert (task.name, task.horizon, task.cost_names, task.cost_limits) == (
        "Walker2d-v5",
        70,
        (),
        None,
    )
    shorter = gymnasium.wrappers.TimeLimit(gymnasium.make("Walker2d-v5"), 30)
    assert task_of(shorter).horizon == 30


@pytest.mark.parametrize(
    "env",
    [
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("Pusher-v5"),
        lambda: gymnasium.make("Hopper-v5").unwrapped,
        lambda: gymnasium.make("Hopper-v5", max_episode_steps=-1),
        lambda: gymnasium.make("Ant-v5"),
        lambda: gymnasium.make("Ant-v5", include_cfrc_ext_in_observation=False),
        lambda: gymnasium.make("Ant-v5", contact_cost_weight=0),
        lambda: gymnasium.make("Ant-v5", main_body=3, **NO_FORCES),
        lambda: gymnasium.wrappers.ClipAction(gymnasium.make("Hopper-v5")),
        lambda: VelocityLimited(gymnasium.wrappers.ClipAction(gymnasium.make("Hopper-v5"))),
        lambda: type("Mine", (type(gymnasium.make("Hopper-v5").unwrapped),), {})(),
    ],
)
def test_what_is_not_known_to_be_a_function_of_the_state_has_no_task(env):
    assert task_of(env()) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('integrator="RK4"', 'integrator="Euler"'),
        ('type="free"', 'type="ball"'),
        (
            "</actuator>",
            '<general joint="hip_1" dyntype="integrator" ctrlrange="-1 1"/></actuator>',
        ),
    ],
)
def test_an_ant_of_another_make_has_no_task(old, new, tmp_path):
    text = Path(made("ant").unwrapped.fullpath).read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "ant.xml"
    for changed, has_task in ((text, True), (text.replace(old, new), False)):
        file.write_text(changed, encoding="utf-8")
        env = gymnasium.make("Ant-v5", xml_file=str(file), **NO_FORCES)
        assert (task_of(env) is not None) == has_task
