"""Pictures without a display."""

import subprocess
import sys

import numpy as np
import pytest

from holdfast.gym.as_gymnasium import SimulatorEnv
from holdfast.gym.mujoco import drawing, models
from holdfast.gym.mujoco.drawing import Drawing
from holdfast.gym.mujoco.task_env import TASKS, TaskEnv

SMALL = {"width": 120, "height": 96}


def share_of(picture, colour):
    """Of the pixels in which that colour is by far the strongest."""
    red, green, blue = np.moveaxis(picture.astype(int), 2, 0)
    if colour == "red":
        return ((red > 110) & (green < red / 2) & (blue < red / 2)).mean()
    return ((green > 70) & (red < green / 2)).mean()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_picture_that_moves_with_it(name):
    env = TaskEnv(name, render_mode="rgb_array", **SMALL)
    env.reset(seed=0)
    first = env.render()
    assert first.shape == (96, 120, 3)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, env.render())
    for _ in range(10):
        env.step(env.action_space.high)
    assert (env.render() != first).any()
    env.close()
    assert env.render().shape == first.shape  # a new one is made
    env.close()


def test_without_a_render_mode_there_is_no_picture():
    env = TaskEnv("point-circle")
    env.reset(seed=0)
    assert env.render() is None


def test_caught_objects_are_invisible():
    env = TaskEnv("ant-gather", render_mode="rgb_array")
    env.reset(seed=0)
    whole = env.render()
    env.memory[20:] = 0
    bare = env.render()
    assert share_of(whole, "red") > 4 * share_of(whole, "green") / 2 > 0
    assert share_of(bare, "red") == 0
    env.memory[20:22] = 1
    apples = env.render()
    assert share_of(apples, "red") == 0
    assert share_of(apples, "green") > share_of(bare, "green")
    env.close()


def test_point_gather_is_drawn_by_mujoco_from_its_state():
    env = SimulatorEnv("point-gather", render_mode="rgb_array")
    env.reset(seed=3)
    state = env._state
    drawing = Drawing(models.drawn_gather(models.point(), walls_at=6.0))
    expected = drawing.show(
        np.asarray(state.pose), np.asarray(state.objects), np.asarray(state.present)
    )
    np.testing.assert_array_equal(env.render(), expected)
    env.step([1.0, 0.2])
    assert (env.render() != expected).any()
    drawing.close()
    env.close()


def test_without_mujoco_point_gather_is_plotted():
    code = """
import sys
sys.modules["mujoco"] = None
import gymnasium, holdfast
env = gymnasium.make("holdfast/PointGather-v0", render_mode="rgb_array")
env.reset(seed=0)
env.step(env.action_space.sample())
print(env.render().std() > 0, "matplotlib" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True"]


def test_pictures_need_no_variable_and_no_order_of_imports(monkeypatch):
    """And leave silently, though nobody closed them."""
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    code = """
import mujoco, gymnasium, holdfast
env = gymnasium.make("holdfast/PointCircle-v0", render_mode="rgb_array")
env.reset(seed=0)
print(env.render().std() > 0)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"
    assert found.stderr == ""


def test_graphics_that_fail_give_a_sentence(monkeypatch):
    def fail(*arguments):
        raise OSError("no device")

    monkeypatch.setattr(drawing, "OffScreenViewer", fail)
    with pytest.raises(RuntimeError, match=r"^render_mode: MuJoCo cannot draw here.*MUJOCO_GL"):
        Drawing(models.point().compile())


def test_two_drawings_do_not_disturb_one_another():
    first = Drawing(models.drawn_gather(models.point(), walls_at=6.0), **SMALL)
    alone = first.show([1.0, 2.0, 0.5])
    second = Drawing(models.drawn_circle(models.point(), 5.0, 2.5), **SMALL)
    other = second.show([1.0, 2.0, 0.5])
    assert (other != alone).any()
    np.testing.assert_array_equal(first.show([1.0, 2.0, 0.5]), alone)
    second.close()
    np.testing.assert_array_equal(first.show([1.0, 2.0, 0.5]), alone)
    first.close()


def test_drawn_models_have_the_joints_of_the_physics():
    for make in TASKS.values():
        task = make()
        drawn = task.drawn_model()
        assert (drawn.nq, drawn.nv) == (task.model.nq, task.model.nv)
