"""Tasks as Gymnasium environments."""

import mujoco
import numpy as np
import pytest

from holdfast.gym.mujoco.circle import Circle
from holdfast.gym.mujoco.task_env import TASKS, TaskEnv


@pytest.mark.parametrize("name", TASKS)
def test_a_step_is_mujoco_s_own_physics(name):
    env = TaskEnv(name)
    env.reset(seed=1)
    task = env.task
    data = mujoco.MjData(task.model)
    data.qpos, data.qvel = env.data.qpos, env.data.qvel
    mujoco.mj_forward(task.model, data)
    rng = np.random.default_rng(0)
    for _ in range(5):
        action = rng.uniform(-1, 1, task.model.nu)
        data.ctrl = action
        mujoco.mj_step(task.model, data, nstep=task.frame_skip)
        env.step(action)
    np.testing.assert_allclose(env.data.qpos, data.qpos, rtol=0, atol=1e-10)
    assert env.data.time == pytest.approx(5 * env.dt)


def test_changing_an_environment_s_model_leaves_the_task_s_alone():
    task = Circle("point")
    env = TaskEnv(task)
    env.model.body_mass *= 2
    assert task.model.body_mass.sum() == pytest.approx(1)
    assert env.model.body_mass.sum() == pytest.approx(2)


def test_wrong_use_gets_a_sentence():
    with pytest.raises(ValueError, match=r"^task: expected one of point-circle, .*got 'walk'"):
        TaskEnv("walk")
    with pytest.raises(
        ValueError, match=r"^render_mode: expected one of None, 'rgb_array', got 'human'"
    ):
        TaskEnv("point-circle", render_mode="human")
    with pytest.raises(ValueError, match=r"^width: expected a whole number of at least 1, got 0"):
        TaskEnv("point-circle", width=0)
    with pytest.raises(TypeError, match=r"^task: options \(limit\) need the name"):
        TaskEnv(Circle("point"), limit=2.0)
