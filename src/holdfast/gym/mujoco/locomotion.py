"""Gymnasium's robots of version 5 as tasks: the same episodes, for many copies at once."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import mujoco
import numpy as np
from jaxtyping import Bool, Float

from holdfast.gym.mujoco.task import InitialState, RobotState, RobotTask, Rows, TaskOutcome
from holdfast.gym.mujoco.velocity import COST_LIMIT, ROBOTS, velocity_cost

Numbers = Float[np.ndarray, " rows"]


class Locomotion(RobotTask):
    """A robot that runs along x.

    All options are read from the Gymnasium environment, so that arguments of `gymnasium.make` apply.
    With the same generator an episode starts as in Gymnasium, and a step from the same state has the
    same observation and reward.

    Arguments:
        env: the Gymnasium environment, without wrappers.
        name: name for runs and messages.
        horizon: number of steps of an episode.
        speed_limit: largest speed without cost, as in `VelocityLimited`; None for a task without cost.
    """

    planar: ClassVar[bool] = False  # Whether the robot moves in x and y, or along x only.
    starts_normal: ClassVar[bool] = False  # Whether initial velocities are normal, or uniform.
    seen_speed: ClassVar[float] = np.inf  # The bound at which observed velocities are clipped.

    def __init__(self, env: Any, name: str, horizon: int, speed_limit: float | None = None) -> None:
        self.name = name
        self.model = copy.copy(env.model)
        self.frame_skip = env.frame_skip
        self.horizon = horizon
        self.speed_limit = speed_limit
        if speed_limit is not None:
            self.cost_names, self.cost_limits = ("speed",), (COST_LIMIT,)
            self._cost = velocity_cost(ROBOTS[type(env)], speed_limit)
        excluded = env._exclude_current_positions_from_observation
        self.hidden = (2 if self.planar else 1) if excluded else 0
        self.observation_size = self.model.nq + self.model.nv - self.hidden
        self._start = env.init_qpos.copy(), env.init_qvel.copy()
        self._noise = env._reset_noise_scale
        self._weights = env._forward_reward_weight, env._ctrl_cost_weight
        self._healthy_reward = getattr(env, "_healthy_reward", 0.0)
        self._ends_unhealthy = bool(getattr(env, "_terminate_when_unhealthy", False))
        self._ranges = {
            name: getattr(env, f"_healthy_{name}_range", (-np.inf, np.inf))
            for name in ("state", "z", "angle")
        }

    def reset(self, generator: np.random.Generator) -> InitialState:
        """Return the robot's initial pose and velocities with noise."""
        noise = self._noise
        qpos, qvel = self._start
        qpos = qpos + generator.uniform(-noise, noise, self.model.nq)
        if self.starts_normal:
            qvel = qvel + noise * generator.standard_normal(self.model.nv)
        else:
            qvel = qvel + generator.uniform(-noise, noise, self.model.nv)
        return InitialState(qpos, qvel, np.zeros(0))

    def observe(self, now: RobotState, memory: Rows) -> Rows:
        """Return positions, without those that the environment hides, and clipped velocities."""
        seen = np.clip(now.qvel, -self.seen_speed, self.seen_speed)
        return self.features(RobotState(now.qpos, seen), memory)

    def features(self, now: RobotState, memory: Rows) -> Rows:
        """Return the observation without clipping; the future does not depend on hidden positions."""
        del memory
        return np.concatenate([now.qpos[:, self.hidden :], now.qvel], axis=1)

    def outcome(
        self, before: RobotState, after: RobotState, actions: Rows, memory: Rows
    ) -> TaskOutcome:
        """Return the speed along x, minus the cost of controls, plus a reward for being healthy."""
        forward, control = self._weights
        info = self._motion(before, after)
        info["reward_forward"] = forward * info["x_velocity"]
        info["reward_ctrl"] = -control * np.square(actions).sum(1)
        reward = info["reward_forward"] + info["reward_ctrl"]
        terminated = np.zeros(len(reward), bool)
        healthy = self._healthy(after)
        if healthy is not None:
            info["reward_survive"] = self._healthy_reward * healthy
            reward = reward + info["reward_survive"]
            terminated = ~healthy & self._ends_unhealthy
        costs = np.zeros((len(reward), 0))
        if self.speed_limit is not None:
            costs = self._cost.of_info(info)[:, None]
        return TaskOutcome(reward, costs, terminated, memory, info)

    def _motion(self, before: RobotState, after: RobotState) -> dict[str, Numbers]:
        return self.motion(before, after, "xy" if self.planar else "x")

    def _healthy(self, now: RobotState) -> Bool[np.ndarray, " rows"] | None:
        """Return whether copies are healthy; None for a robot that always is."""
        del now
        return None


class HalfCheetah(Locomotion):
    """HalfCheetah-v5."""

    starts_normal = True


class Swimmer(Locomotion):
    """Swimmer-v5."""

    planar = True


class Walker2d(Locomotion):
    """Walker2d-v5, which falls when its height or its pitch leaves a range."""

    seen_speed = 10.0

    def _motion(self, before: RobotState, after: RobotState) -> dict[str, Numbers]:
        height = after.qpos[:, 1] - self._start[0][1]
        return {**super()._motion(before, after), "z_distance_from_origin": height}

    def _healthy(self, now: RobotState) -> Bool[np.ndarray, " rows"]:
        height = _within(self._ranges["z"], now.qpos[:, 1])
        return height & _within(self._ranges["angle"], now.qpos[:, 2])


class Hopper(Walker2d):
    """Hopper-v5, whose other positions and velocities have a range as well."""

    def _healthy(self, now: RobotState) -> Bool[np.ndarray, " rows"]:
        rest = np.concatenate([now.qpos[:, 2:], now.qvel], axis=1)
        return super()._healthy(now) & _within(self._ranges["state"], rest).all(1)


class Ant(Locomotion):
    """Ant-v5 without contact forces, which are not a function of MuJoCo's state.

    Gymnasium computes the velocity from `data.xpos`, which the last stage of the Runge-Kutta step
    leaves a few millimetres from the final position. Here the final position is used, so x_velocity
    and the reward differ: under random actions by up to 0.1 m/s in a step and by 0.005 m/s on average.
    Over an episode the differences cancel.
    """

    planar = True
    starts_normal = True

    def _motion(self, before: RobotState, after: RobotState) -> dict[str, Numbers]:
        return {**super()._motion(before, after), "reward_contact": np.zeros(len(after.qpos))}

    def _healthy(self, now: RobotState) -> Bool[np.ndarray, " rows"]:
        low, high = self._ranges["z"]
        finite = np.isfinite(now.qpos).all(1) & np.isfinite(now.qvel).all(1)
        return finite & (low <= now.qpos[:, 2]) & (now.qpos[:, 2] <= high)


_TASKS: dict[str, type[Locomotion]] = {
    f"{task.__name__}-v5": task for task in (Ant, HalfCheetah, Hopper, Swimmer, Walker2d)
}


def locomotion_task(
    env: Any, name: str, horizon: int, speed_limit: float | None = None
) -> Locomotion | None:
    """Return the task of one of Gymnasium's robots, or None if there is none.

    There is a task for HalfCheetah-v5, Hopper-v5, Walker2d-v5, Swimmer-v5, and for Ant-v5 with
    `include_cfrc_ext_in_observation=False, contact_cost_weight=0`.

    Example:
        >>> import gymnasium
        >>> task = locomotion_task(gymnasium.make("Hopper-v5").unwrapped, "hopper", horizon=50)
        >>> task.name, task.horizon, task.observation_size
        ('hopper', 50, 11)
    """
    task = _TASKS.get(ROBOTS.get(type(env), ""))
    if task is None or not _is_function_of_state(env, task):
        return None
    return task(env, name, horizon, speed_limit)


def _is_function_of_state(env: Any, task: type[Locomotion]) -> bool:
    """Return whether the future of an episode depends on positions and velocities only."""
    model = env.model
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    if size != 1 + model.nq + model.nv:
        return False
    if task is not Ant:
        return True
    # The position of the main body must be the first coordinates, and the integrator Runge-Kutta.
    return (
        not env._include_cfrc_ext_in_observation
        and env._contact_cost_weight == 0
        and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        and model.jnt_bodyid[0] == model.body(env._main_body).id
        and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    )


def _within(bounds: tuple[float, float], values: Any) -> Any:
    return (bounds[0] < values) & (values < bounds[1])
