"""Gymnasium's robots (v5) as tasks: the same episodes, for many copies at once."""

from __future__ import annotations

import abc
import copy
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from jaxtyping import Bool, Float

from holdfast.gym.mujoco.task import Moment, Paid, Rows, Start, Task
from holdfast.gym.mujoco.velocity import COST_LIMIT, VelocityLimited, speed

Numbers = Float[np.ndarray, " rows"]
Truths = Bool[np.ndarray, " rows"]


class Locomotion(Task, abc.ABC):
    """A robot that is paid for running along x.

    All options are read off the Gymnasium environment, so that those given to `gymnasium.make` hold. An
    episode begins as Gymnasium's does from the same generator, and a step from the same state is seen
    and paid the same.

    Arguments:
        env: the Gymnasium environment, without wrappers.
        name: what runs and messages call it.
        horizon: steps after which an episode is cut.
        speed_limit: above which a step costs 1, as `VelocityLimited` has it; without one nothing costs.
    """

    planar: ClassVar[bool]  # Whether it moves along x and y, or along x alone.
    limits_planar: ClassVar[bool] = False  # Whether a speed limit is on both, or on x alone.
    starts_normal: ClassVar[bool] = False  # Whether first velocities are normal, or uniform.
    seen_speed: ClassVar[float] = np.inf  # At which velocities are cut in what is seen.

    def __init__(self, env: Any, name: str, horizon: int, speed_limit: float | None = None) -> None:
        self.name = name
        self.model = copy.copy(env.model)
        self.frame_skip = env.frame_skip
        self.horizon = horizon
        self.speed_limit = speed_limit
        if speed_limit is not None:
            self.cost_names, self.cost_limits = ("speed",), (COST_LIMIT,)
        excluded = env._exclude_current_positions_from_observation
        self.hidden = (2 if self.planar else 1) if excluded else 0
        self.observation_size = self.model.nq + self.model.nv - self.hidden
        self._start = env.init_qpos.copy(), env.init_qvel.copy()
        self._noise = env._reset_noise_scale
        self._weights = env._forward_reward_weight, env._ctrl_cost_weight
        self._wage = getattr(env, "_healthy_reward", 0.0)
        self._ends_unhealthy = bool(getattr(env, "_terminate_when_unhealthy", False))
        self._ranges = {
            name: getattr(env, f"_healthy_{name}_range", (-np.inf, np.inf))
            for name in ("state", "z", "angle")
        }

    @property
    def feature_size(self) -> int:
        """As many as are seen."""
        return self.observation_size

    def reset(self, generator: np.random.Generator) -> Start:
        """The robot's first pose and velocities, each with noise."""
        noise = self._noise
        qpos, qvel = self._start
        qpos = qpos + generator.uniform(-noise, noise, self.model.nq)
        if self.starts_normal:
            qvel = qvel + noise * generator.standard_normal(self.model.nv)
        else:
            qvel = qvel + generator.uniform(-noise, noise, self.model.nv)
        return Start(qpos, qvel, np.zeros(0))

    def observe(self, now: Moment, memory: Rows) -> Rows:
        """Positions, without those that the environment hides, and velocities."""
        del memory
        seen = np.clip(now.qvel, -self.seen_speed, self.seen_speed)
        return np.concatenate([now.qpos[:, self.hidden :], seen], axis=1)

    def features(self, now: Moment, memory: Rows) -> Rows:
        """The same with velocities uncut; how far it has come, where hidden, changes nothing."""
        del memory
        return np.concatenate([now.qpos[:, self.hidden :], now.qvel], axis=1)

    def pay(self, before: Moment, after: Moment, actions: Rows, memory: Rows) -> Paid:
        """Speed along x, less what the controls cost, and a wage for being well where there is one."""
        forward, control = self._weights
        info = self._motion(before, after)
        info["reward_forward"] = forward * info["x_velocity"]
        info["reward_ctrl"] = -control * np.square(actions).sum(1)
        reward = info["reward_forward"] + info["reward_ctrl"]
        terminated = np.zeros(len(reward), bool)
        healthy = self._healthy(after)
        if healthy is not None:
            info["reward_survive"] = self._wage * healthy
            reward = reward + info["reward_survive"]
            terminated = ~healthy & self._ends_unhealthy
        costs = np.zeros((len(reward), 0))
        if self.speed_limit is not None:
            too_fast = speed(info, planar=self.limits_planar) > self.speed_limit
            costs = too_fast.astype(float)[:, None]
        return Paid(reward, costs, terminated, memory, info)

    def _motion(self, before: Moment, after: Moment) -> dict[str, Numbers]:
        info = {}
        for axis, name in enumerate("xy" if self.planar else "x"):
            info[f"{name}_position"] = after.qpos[:, axis]
            info[f"{name}_velocity"] = (after.qpos[:, axis] - before.qpos[:, axis]) / self.dt
        if self.planar:
            info["distance_from_origin"] = np.hypot(after.qpos[:, 0], after.qpos[:, 1])
        return info

    def _healthy(self, now: Moment) -> Truths | None:
        """Whether copies are well, where the robot can be otherwise."""
        del now
        return None


class HalfCheetah(Locomotion):
    """HalfCheetah-v5."""

    planar = False
    starts_normal = True


class Swimmer(Locomotion):
    """Swimmer-v5."""

    planar = True


class _Upright(Locomotion):
    """A robot that may fall: its height and its pitch have to stay in a range."""

    planar = False
    seen_speed = 10.0

    def _motion(self, before: Moment, after: Moment) -> dict[str, Numbers]:
        height = after.qpos[:, 1] - self._start[0][1]
        return {**super()._motion(before, after), "z_distance_from_origin": height}

    def _healthy(self, now: Moment) -> Truths:
        height = _within(self._ranges["z"], now.qpos[:, 1])
        return height & _within(self._ranges["angle"], now.qpos[:, 2])


class Walker2d(_Upright):
    """Walker2d-v5."""


class Hopper(_Upright):
    """Hopper-v5, for which every number but x and z has a range as well."""

    def _healthy(self, now: Moment) -> Truths:
        rest = np.concatenate([now.qpos[:, 2:], now.qvel], axis=1)
        return super()._healthy(now) & _within(self._ranges["state"], rest).all(1)


class Ant(Locomotion):
    """Ant-v5 without contact forces, which are no function of MuJoCo's state.

    Gymnasium takes the velocity from `data.xpos`, where the last pass of the Runge-Kutta step left it:
    a guess of where the step ends, off by millimetres. Here it is taken from where the step does end, so
    that x_velocity, and the reward with it, differ: under random actions by up to 0.1 m/s in a step and
    by 0.005 in the mean. Over an episode the differences cancel: the distances covered are the same.
    """

    planar = True
    limits_planar = True
    starts_normal = True

    def _motion(self, before: Moment, after: Moment) -> dict[str, Numbers]:
        return {**super()._motion(before, after), "reward_contact": np.zeros(len(after.qpos))}

    def _healthy(self, now: Moment) -> Truths:
        low, high = self._ranges["z"]
        finite = np.isfinite(now.qpos).all(1) & np.isfinite(now.qvel).all(1)
        return finite & (low <= now.qpos[:, 2]) & (now.qpos[:, 2] <= high)


_TASKS: dict[type, type[Locomotion]] = {
    AntEnv: Ant,
    HalfCheetahEnv: HalfCheetah,
    HopperEnv: Hopper,
    SwimmerEnv: Swimmer,
    Walker2dEnv: Walker2d,
}


def task_of(env: gymnasium.Env) -> Task | None:
    """The task of a Gymnasium environment, where it is known to be a function of MuJoCo's state.

    That is so for HalfCheetah-v5, Hopper-v5, Walker2d-v5, Swimmer-v5, and for Ant-v5 with
    `include_cfrc_ext_in_observation=False, contact_cost_weight=0`, with no wrappers but those that
    `gymnasium.make` puts around them, or `VelocityLimited`. Anything else, and what has no time limit,
    gives None: it can still be stepped by Gymnasium itself.

    Example:
        >>> import gymnasium
        >>> from holdfast.gym.mujoco.locomotion import task_of
        >>> task = task_of(gymnasium.make("Hopper-v5"))
        >>> task.name, task.horizon, task.observation_size
        ('Hopper-v5', 1000, 11)
        >>> start = task.reset(np.random.default_rng(0))
        >>> start.qpos.shape
        (6,)
        >>> task_of(gymnasium.make("CartPole-v1")) is None
        True
    """
    horizons: list[int] = []
    spec, limit = env.unwrapped.spec, None
    inner: Any = env
    while type(inner) in (OrderEnforcing, PassiveEnvChecker, TimeLimit, VelocityLimited):
        if isinstance(inner, TimeLimit):
            horizons.append(inner._max_episode_steps)
        if isinstance(inner, VelocityLimited):
            limit = inner.limit
        inner = inner.env
    task = _TASKS.get(type(inner))
    if task is None or not horizons or not _is_function_of_state(inner):
        return None
    spec = spec or inner.spec
    return task(inner, spec.id if spec else type(inner).__name__, min(horizons), limit)


def _is_function_of_state(env: Any) -> bool:
    """Whether positions and velocities are all that an episode's future depends on."""
    model = env.model
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    if size != 1 + model.nq + model.nv:
        return False
    if not isinstance(env, AntEnv):
        return True
    # The main body's place has to be the first coordinates, and the step's last pass near its end.
    return (
        not env._include_cfrc_ext_in_observation
        and env._contact_cost_weight == 0
        and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
        and model.jnt_bodyid[0] == model.body(env._main_body).id
        and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    )


def _within(bounds: tuple[float, float], values: Any) -> Any:
    return (bounds[0] < values) & (values < bounds[1])
