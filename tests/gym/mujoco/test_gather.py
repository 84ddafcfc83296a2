"""Ant Gather: the same objects, sensors and signals as Point Gather's, on an ant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast.environments import gathering as _gathering
from holdfast.gym.mujoco import gather
from holdfast.gym.mujoco.gather import AntGather
from holdfast.gym.mujoco.task import RobotState
from holdfast.gym.mujoco.task_env import TaskEnv

FAR = 100.0


@pytest.fixture(scope="module")
def task():
    return AntGather()


def standing(task, x=0.0, y=0.0, heading=0.0, rows=1):
    qpos = np.tile(task.reset(np.random.default_rng(0)).qpos, (rows, 1))
    qpos[:, 0], qpos[:, 1] = x, y
    qpos[:, 3:7] = 0
    qpos[:, 3], qpos[:, 6] = np.cos(np.divide(heading, 2)), np.sin(np.divide(heading, 2))
    return RobotState(qpos, np.zeros((rows, task.model.nv)))


def memory_of(positions, present):
    return np.concatenate([np.ravel(positions), np.asarray(present, float)])[None]


def only(index, place):
    positions = np.full((10, 2), FAR)
    positions[index] = place
    return memory_of(positions, np.ones(10))


def test_sensors_equal_point_gather_s(task):
    """Random poses and objects, some of them caught; the point's centre of mass put onto the torso."""
    rng = np.random.default_rng(0)
    rows = 2000
    x, y = rng.uniform(-6, 6, (2, rows))
    heading = rng.uniform(-9, 9, rows)
    objects = rng.uniform(-6, 6, (rows, 10, 2))
    present = rng.random((rows, 10)) < 0.7
    memory = np.concatenate([objects.reshape(rows, -1), present], axis=1)
    found = task.observe(standing(task, x, y, heading, rows), memory)[:, -20:]

    ahead = _gathering.MASS_AHEAD
    pose = np.stack([x - ahead * np.cos(heading), y - ahead * np.sin(heading), heading], axis=1)

    @jax.jit
    @jax.vmap
    def readings(pose, objects, present):
        frame = _gathering.in_body_frame(pose, objects)
        return _gathering.sensors(*frame, present, 6.0)

    with jax.enable_x64(True):
        expected = np.asarray(readings(jnp.asarray(pose), jnp.asarray(objects), present))
    assert (expected > 0).mean() > 0.05
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_sensors_see_the_nearest_object_of_each_sector(task):
    """The sector of an object from its angle, one object at a time."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        objects, present = rng.uniform(-6, 6, (10, 2)), rng.random(10) < 0.7
        expected = np.zeros((2, 10))
        for i in np.flatnonzero(present):
            distance, angle = np.hypot(*objects[i]), np.arctan2(objects[i, 1], objects[i, 0])
            if distance <= 6 and abs(angle) < np.pi / 2:
                kind, sector = int(i >= 2), int((angle / np.pi + 0.5) * 10)
                expected[kind, sector] = max(expected[kind, sector], 1 - distance / 6)
        found = task.observe(standing(task), memory_of(objects, present))[0, -20:]
        np.testing.assert_allclose(found, expected.ravel(), rtol=0, atol=1e-9)


def test_cells_are_point_gather_s():
    expected = _gathering.cell_positions(jnp.arange(_gathering.CELLS))
    np.testing.assert_array_equal(gather._PLACES, expected)


def test_objects_lie_on_distinct_cells_and_differ_between_episodes(task):
    rng = np.random.default_rng(0)
    starts = [task.objects(task.reset(rng).memory) for _ in range(50)]
    for places, present in starts:
        assert len({tuple(place) for place in places}) == 10
        assert present.all()
    assert len({places.tobytes() for places, _ in starts}) == 50


@pytest.mark.parametrize(
    ("index", "reward", "cost"), [(0, 10, 0), (1, 10, 0), (2, -1, 1), (9, -1, 1)]
)
def test_what_is_caught_pays_and_vanishes(task, index, reward, cost):
    here = standing(task, 1.0, 1.0)
    none = np.zeros((1, 8))
    missed = task.outcome(here, here, none, only(index, (2.0, 1.0)))
    assert (missed.reward.item(), missed.costs.item()) == (0, 0)
    caught = task.outcome(here, here, none, only(index, (1.99, 1.0)))
    assert (caught.reward.item(), caught.costs.item()) == (reward, cost)
    _, present = task.objects(caught.memory[0])
    assert np.flatnonzero(~present).tolist() == [index]
    again = task.outcome(here, here, none, caught.memory)
    assert (again.reward.item(), again.costs.item()) == (0, 0)
    assert not again.terminated.any()


def test_two_bombs_cost_one_step(task):
    here = standing(task)
    paid = task.outcome(
        here, here, np.zeros((1, 8)), memory_of(np.zeros((10, 2)), np.arange(10) > 7)
    )
    assert (paid.reward.item(), paid.costs.item(), paid.info["bombs"].item()) == (-2, 1, 2)
    assert paid.terminated.all()


def test_falling_pays_less_than_nothing_and_ends(task):
    here = standing(task)
    here.qpos[:, 2] = 1.1
    paid = task.outcome(here, here, np.zeros((1, 8)), only(0, (0.0, 0.0)))
    assert (paid.reward.item(), paid.terminated.item()) == (-10, True)


def test_features_show_the_nearest_first_and_the_caught_last(task):
    positions = np.full((10, 2), 5.0)
    positions[3], positions[7] = (2.0, 0.0), (0.0, 1.0)
    present = np.arange(10) != 3
    features = task.features(standing(task), memory_of(positions, present))
    assert features.shape == (1, task.feature_size)
    bombs = features[0, 29:].reshape(10, 4)[2:]
    np.testing.assert_allclose(bombs[0], [0, np.tanh(0.5), 0, 1], atol=1e-12)
    np.testing.assert_array_equal(bombs[-1], [0, 0, 1, 0])
    assert np.all(np.diff(bombs[:-1, 2]) >= 0)


@pytest.mark.parametrize("direction", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_walls_hold_the_ant(direction):
    env = TaskEnv("ant-gather")
    env.reset(seed=0)
    qpos, qvel = env.data.qpos.copy(), np.zeros(14)
    qpos[:2] = 5 * np.array(direction)
    qvel[:2] = 8 * np.array(direction)
    env.set_state(qpos, qvel)
    ways = []
    for _ in range(30):
        env.step(np.zeros(8))
        ways.append(env.data.qpos[:2] @ direction)
    assert 5.5 < max(ways) < 7


def test_wrong_use_gets_a_sentence():
    with pytest.raises(ValueError, match=r"^horizon: expected a whole number of at least 1, got 0"):
        AntGather(horizon=0)
