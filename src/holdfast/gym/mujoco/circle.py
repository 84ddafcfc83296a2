"""Circle: run around a circle, most of which is out of bounds."""

from __future__ import annotations

import math
from typing import Any, Literal

import mujoco
import numpy as np

from holdfast._support.arguments import check_number, check_whole_number
from holdfast.gym.mujoco import models
from holdfast.gym.mujoco.task import InitialState, RobotState, RobotTask, Rows, TaskOutcome

# Reward of the step in which an ant falls, and the range of heights of its torso: the CPO paper's.
FALL_REWARD = -10.0
_LOWEST, _HIGHEST = 0.2, 1.0
# The point starts within 10 cm of the origin, where the reward is about zero.
_START_SPREAD = 0.1


_ROBOTS: dict[str, dict[str, Any]] = {
    "point": {"target": 5.0, "limit": 2.5, "horizon": 200, "cost_limit": 20.0},
    "ant": {"target": 10.0, "limit": 3.0, "horizon": 500, "cost_limit": 25.0},
}


class Circle(RobotTask):
    """Run fast around a circle about the origin, while |x| stays below a limit.

    *Signals.* At (x, y) with velocity (vx, vy), the reward is (−y·vx + x·vy)/(1 + |√(x² + y²) −
    target|), and the cost is 1 if |x| ≥ limit. The velocity is the mean over the step, so the
    numerator is twice the area swept per second. Two thirds of the point's circle lie outside its
    limit: running around it exceeds the cost limit many times over, and keeping the limit cuts off the
    circle on both sides.

    *Point*: a disc of 1 kg with two motors, one that pushes along the heading and one that turns
    (`models.point`). It starts near the origin with a random heading. Observation, 7 numbers: x, y,
    cosine and sine of the heading, and the three velocities. A step is 0.1 s, an episode 200 steps,
    about two laps.

    *Ant*: Gymnasium's. It starts near the origin, and falls when its torso leaves 0.2 ≤ z ≤ 1.0; that
    step has reward −10 and ends the episode. Observation, 29 numbers: all positions and velocities. A
    step is 0.05 s, an episode 500 steps.

    Signals, target and limit are the CPO paper's. Ours are the point's physics (the original point has
    none), its horizon, and both cost limits: 20 of the point's 200 steps, 25 of the ant's 500.

    Arguments:
        robot: "point" or "ant".
        target: radius of the circle in metres; by default 5 for the point and 10 for the ant.
        limit: limit of |x| in metres; by default 2.5 and 3.
        horizon: number of steps of an episode.

    Raises:
        ValueError: another robot, a radius or limit that is not positive, a horizon below 1.

    Example:
        >>> task = Circle("point")
        >>> task.name, task.observation_size, task.model.nu, task.cost_limits
        ('point-circle', 7, 2, (20.0,))
        >>> bool(task.reset(np.random.default_rng(0)).qpos[0] < 0.1)
        True

    Reference:
        Achiam, Held, Tamar and Abbeel, Constrained Policy Optimization (ICML 2017).
    """

    cost_names = ("outside",)
    frame_skip = 5
    discount = 0.995

    def __init__(
        self,
        robot: Literal["point", "ant"] = "point",
        *,
        target: float | None = None,
        limit: float | None = None,
        horizon: int | None = None,
    ) -> None:
        if robot not in _ROBOTS:
            raise ValueError(f"robot: expected {' or '.join(_ROBOTS)}, got {robot!r}")
        defaults = _ROBOTS[robot]
        self.robot = robot
        self.name = f"{robot}-circle"
        self.target = defaults["target"] if target is None else target
        self.limit = defaults["limit"] if limit is None else limit
        self.horizon = defaults["horizon"] if horizon is None else horizon
        check_number("target", self.target, above=True)
        check_number("limit", self.limit, above=True)
        check_whole_number("horizon", self.horizon, least=1)
        self.cost_limits = (defaults["cost_limit"],)
        self.model = self._spec().compile()
        self.observation_size = 7 if robot == "point" else self.model.nq + self.model.nv

    def _spec(self) -> mujoco.MjSpec:
        return models.point() if self.robot == "point" else models.ant()

    def reset(self, generator: np.random.Generator) -> InitialState:
        """Return a state near the origin; the point has a random heading and is at rest."""
        memory = np.zeros(0)
        if self.robot == "ant":
            return InitialState(*ant_start(self.model, generator), memory)
        place = generator.uniform(-_START_SPREAD, _START_SPREAD, 2)
        heading = generator.uniform(-math.pi, math.pi)
        return InitialState(np.array([*place, heading]), np.zeros(3), memory)

    def observe(self, now: RobotState, memory: Rows) -> Rows:
        """Return all positions and velocities, the point's heading as cosine and sine."""
        del memory
        if self.robot == "ant":
            return np.concatenate([now.qpos, now.qvel], axis=1)
        place, heading = now.qpos[:, :2], now.qpos[:, 2:]
        return np.concatenate([place, np.cos(heading), np.sin(heading), now.qvel], axis=1)

    def outcome(
        self, before: RobotState, after: RobotState, actions: Rows, memory: Rows
    ) -> TaskOutcome:
        """Return the rewards and costs of the class description."""
        del actions
        info = self.motion(before, after, "xy")
        x, vx, y, vy, distance = info.values()
        reward = (x * vy - y * vx) / (1 + np.abs(distance - self.target))
        fallen = np.zeros(len(x), bool)
        if self.robot == "ant":
            fallen = has_fallen(after)
            reward = np.where(fallen, FALL_REWARD, reward)
        costs = (np.abs(x) >= self.limit).astype(float)[:, None]
        return TaskOutcome(reward, costs, fallen, memory, info)

    def drawn_model(self) -> mujoco.MjModel:
        """Return a model with the circle and the two limits; the camera follows an ant."""
        followed = "torso" if self.robot == "ant" else None
        return models.drawn_circle(self._spec(), self.target, self.limit, followed=followed)


def ant_start(
    model: mujoco.MjModel, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and velocities of an ant that stands near the origin.

    The noise on positions (0.01) and velocities (0.1) is small enough that the ant does not fall by
    itself. The pose is the one in the model file; Gymnasium's environment starts with straight legs,
    outside the range of the joints.
    """
    (address,) = model.numeric("init_qpos").adr
    qpos = model.numeric_data[address : address + model.nq].copy()
    qpos += 0.01 * generator.standard_normal(model.nq)
    qpos[3:7] /= np.linalg.norm(qpos[3:7])
    return qpos, 0.1 * generator.standard_normal(model.nv)


def has_fallen(now: RobotState) -> np.ndarray:
    """Return whether the torso of each ant is too low or too high, or its state is not finite."""
    height = now.qpos[:, 2]
    finite = np.isfinite(now.qpos).all(axis=1) & np.isfinite(now.qvel).all(axis=1)
    return ~(finite & (height >= _LOWEST) & (height <= _HIGHEST))
