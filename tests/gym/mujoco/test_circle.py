"""Circle: what it pays, whether its circle can be run and its limit be kept, and wrong use."""

import mujoco
import numpy as np
import pytest

from holdfast.gym.mujoco.circle import Circle
from holdfast.gym.mujoco.task import RobotState
from holdfast.gym.mujoco.task_env import TaskEnv


def moment(qpos, qvel):
    qpos, qvel = np.atleast_2d(qpos), np.atleast_2d(qvel)
    return RobotState(qpos, qvel)


def point_at(x, y):
    return moment([x, y, 0.0], np.zeros(3))


def pay(task, before, after):
    return task.outcome(before, after, np.zeros((1, task.model.nu)), np.zeros((1, 0)))


def on_the_circle(observation, *, speed, within=None):
    """A driver by hand: wanted velocity along the circle, or along the line where it leaves the band."""
    x, y, cosine, sine, vx, vy, turning = observation
    radius = np.hypot(x, y) + 1e-9
    outwards = np.array([x, y]) / radius
    velocity = np.array([vx, vy])
    wanted = speed * np.array([-outwards[1], outwards[0]]) + 1.5 * (5 - radius) * outwards
    if radius < 1:
        wanted = np.array([0.0, 4.0])
    side = np.sign(x)
    if within is not None and abs(x) > within and wanted[0] * side > -0.5:
        wanted = np.array([3 * (side * within - x), side * speed])
    force = 1.5 * (wanted - velocity) + 0.8 * wanted
    if radius > 3:
        force -= velocity @ velocity / 5 * outwards
    off = np.arctan2(force[1], force[0]) - np.arctan2(sine, cosine)
    off = (off + np.pi) % (2 * np.pi) - np.pi
    return np.clip([np.hypot(*force) / 4 * np.cos(off), 3 * off - 0.5 * turning], -1, 1)


def driven(task, seed=0, mass=1.0, **how):
    """Reward, cost and laps of an episode."""
    env = TaskEnv(task)
    env.model.body_mass *= mass
    env.model.body_inertia *= mass
    mujoco.mj_setConst(env.model, mujoco.MjData(env.model))
    observation, _ = env.reset(seed=seed)
    paid = cost = 0.0
    angles = []
    for _ in range(task.horizon):
        observation, reward, terminated, _, info = env.step(on_the_circle(observation, **how))
        assert not terminated
        paid, cost = paid + reward, cost + info["cost"]
        angles.append(np.arctan2(observation[1], observation[0]))
    turned = np.unwrap(angles)
    return paid, cost, (turned[-1] - turned[0]) / (2 * np.pi)


@pytest.mark.parametrize("robot", ["point", "ant"])
def test_reward_and_cost_are_the_cpo_paper_s(robot):
    task = Circle(robot)
    rng = np.random.default_rng(0)
    qpos = np.zeros((50, task.model.nq))
    qpos[:, :2] = rng.uniform(-8, 8, (50, 2))
    if robot == "ant":
        qpos[:, 2:4] = 0.5, 1.0
    velocity = rng.normal(size=(50, 2))
    before, qvel = qpos.copy(), np.zeros((50, task.model.nv))
    before[:, :2] -= velocity * task.dt
    paid = task.outcome(
        moment(before, qvel), moment(qpos, qvel), np.zeros((50, task.model.nu)), np.zeros((50, 0))
    )
    for i, ((x, y), (vx, vy)) in enumerate(zip(qpos[:, :2], velocity, strict=True)):
        expected = (-y * vx + x * vy) / (1 + abs(np.sqrt(x**2 + y**2) - task.target))
        assert paid.reward[i] == pytest.approx(expected, abs=1e-9)
        assert paid.costs[i, 0] == (abs(x) >= task.limit)
    assert 0 < paid.costs.sum() < 50
    assert not paid.terminated.any()


def test_published_numbers():
    assert (Circle("point").target, Circle("point").limit) == (5.0, 2.5)
    assert (Circle("ant").target, Circle("ant").limit) == (10.0, 3.0)


def test_the_limit_itself_costs():
    task = Circle("point")
    assert pay(task, point_at(2.5, 0), point_at(2.5, 0)).costs.tolist() == [[1.0]]
    assert pay(task, point_at(-2.5, 0), point_at(-2.5, 0)).costs.tolist() == [[1.0]]
    assert pay(task, point_at(2.499, 9), point_at(2.499, 9)).costs.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("height", "falls"), [(0.19, 1), (0.2, 0), (1.0, 0), (1.01, 1), (np.nan, 1)]
)
def test_an_ant_falls_outside_its_heights(height, falls):
    task = Circle("ant")
    start = task.reset(np.random.default_rng(0))
    there = start.qpos.copy()
    there[2] = height
    paid = pay(task, moment(start.qpos, start.qvel), moment(there, start.qvel))
    assert paid.terminated.tolist() == [bool(falls)]
    assert (paid.reward[0] == -10) == bool(falls)


def test_an_ant_that_does_nothing_stands():
    env = TaskEnv("ant-circle")
    for seed in range(3):
        env.reset(seed=seed)
        assert not any(env.step(np.zeros(8))[2] for _ in range(100))


def test_who_runs_round_the_circle_exceeds_the_cost_limit_and_who_cuts_it_off_keeps_it():
    task = Circle("point")
    (cost_limit,) = task.cost_limits
    for seed in range(2):
        paid, cost, laps = driven(task, seed, speed=3.6)
        assert laps > 1
        assert cost > 4 * cost_limit
        kept_paid, kept_cost, _ = driven(task, seed, speed=2.0, within=1.25)
        assert kept_cost <= cost_limit
        assert 0 < kept_paid < paid


def test_mass_changes_how_the_point_drives():
    task = Circle("point")
    light, nominal, heavy = (driven(task, mass=mass, speed=3.6)[0] for mass in (0.6, 1.0, 1.4))
    assert heavy < 0.9 * nominal
    assert abs(light - nominal) > 1


@pytest.mark.parametrize("field", ["dof_damping", "dof_frictionloss", "actuator_gainprm"])
def test_so_do_damping_friction_and_gain(field):
    def place(factor):
        env = TaskEnv("point-circle")
        getattr(env.model, field)[:] *= factor
        env.reset(seed=0)
        for _ in range(30):
            env.step([0.8, 0.1])
        return env.data.qpos.copy()

    assert np.linalg.norm(place(1.4) - place(1.0)) > 0.1


def test_the_heading_is_seen_without_jumps():
    task = Circle("point")
    seen = task.observe(moment([[1, 2, np.pi], [1, 2, -np.pi]], np.ones((2, 3))), np.zeros((2, 0)))
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-12)
    np.testing.assert_allclose(seen[0], [1, 2, -1, 0, 1, 1, 1], atol=1e-12)


def test_features_leave_nothing_out():
    task = Circle("ant")
    start = task.reset(np.random.default_rng(0))
    found = task.features(moment(start.qpos, start.qvel), np.zeros((1, 0)))
    assert found.shape == (1, task.feature_size)
    np.testing.assert_array_equal(found[0], [*start.qpos, *start.qvel])


def test_wrong_use_gets_a_sentence():
    with pytest.raises(ValueError, match=r"^robot: expected point or ant, got 'dog'"):
        Circle("dog")
    with pytest.raises(ValueError, match=r"^target: expected a number over 0, got 0"):
        Circle("point", target=0)
    with pytest.raises(ValueError, match=r"^limit: expected a number over 0, got nan"):
        Circle("point", limit=float("nan"))
    with pytest.raises(ValueError, match=r"^horizon: expected a whole number of at least 1, got 0"):
        Circle("ant", horizon=0)
