"""Gymnasium's robots under a speed limit, with the limits of Safety-Gymnasium."""

from __future__ import annotations

import numbers
from typing import Any

import gymnasium
import numpy as np

from holdfast.gym.costs import SpeedLimit
from holdfast.gym.mujoco.drawing import use_egl_without_display
from holdfast.registry import imported

# Speeds in m/s, published with Safety-Gymnasium.
LIMITS: dict[str, float] = {
    "Ant-v5": 2.6222,
    "HalfCheetah-v5": 3.2096,
    "Hopper-v5": 0.7402,
    "Swimmer-v5": 0.2282,
    "Walker2d-v5": 2.3415,
}
COST_LIMIT = 25.0  # Steps of an episode above the limit; Safety-Gymnasium's.
# The ids of Gymnasium's classes.
ROBOTS: dict[type, str] = {imported(str(gymnasium.spec(name).entry_point)): name for name in LIMITS}
# Safety-Gymnasium's Ant neither observes contact forces nor pays for them.
_OPTIONS: dict[str, dict[str, Any]] = {
    "Ant-v5": {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
}


def velocity_cost(robot: str, limit: float) -> SpeedLimit:
    """Return the cost of a robot: of its speed in the plane for Ant, along x for the others."""
    return SpeedLimit(limit, planar=robot == "Ant-v5")


class VelocityLimited(gymnasium.Wrapper):
    """One of Gymnasium's robots, with `info["cost"]` equal to 1 in steps above a speed limit.

    The speed is `info["x_velocity"]`, so running backwards is free; for Ant it is the norm of the
    velocity in x and y. Everything else is the robot's: observations, rewards, seeds, pictures, and
    attributes such as `model`, `data` and `set_state`.

    The cost belongs to the environment, so `unwrapped` is this environment and not the robot.

    Arguments:
        env: Ant-v5, HalfCheetah-v5, Hopper-v5, Swimmer-v5 or Walker2d-v5, with or without wrappers.
        limit: largest speed without cost, in m/s; by default Safety-Gymnasium's.

    Raises:
        ValueError: the environment is none of these, or the limit is not a speed.

    Example:
        >>> import gymnasium
        >>> from holdfast.gym.mujoco.velocity import VelocityLimited
        >>> env = VelocityLimited(gymnasium.make("Hopper-v5"))
        >>> env.limit
        0.7402
        >>> _ = env.reset(seed=0)
        >>> _, _, _, _, info = env.step([0.0, 0.0, 0.0])
        >>> bool(info["x_velocity"] > env.limit), info["cost"]
        (False, 0.0)

    Reference:
        Ji et al., Safety-Gymnasium: A Unified Safe Reinforcement Learning Benchmark (NeurIPS 2023).
    """

    limit: float
    spec: Any = None  # `gymnasium.make` sets it, as for an environment without wrappers.
    _np_random = property(lambda self: self.env.unwrapped._np_random)

    def __init__(self, env: gymnasium.Env, limit: float | None = None) -> None:
        robot = ROBOTS.get(type(env.unwrapped))
        if robot is None:
            raise ValueError(f"env: expected one of {', '.join(LIMITS)}, got {env}")
        if limit is None:
            limit = LIMITS[robot]
        if not isinstance(limit, numbers.Real) or not float(limit) >= 0:
            raise ValueError(f"limit: expected a speed of at least 0, got {limit!r}")
        super().__init__(env)
        self.limit = float(limit)
        self._cost: SpeedLimit = velocity_cost(robot, self.limit)
        if use_egl_without_display():
            modes = [mode for mode in env.metadata["render_modes"] if mode != "human"]
            self.metadata = {**env.metadata, "render_modes": modes}

    @property
    def unwrapped(self) -> gymnasium.Env:
        """This environment."""
        return self

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take the robot's step, and add the cost of its speed."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(self._cost.of_info(info))
        return observation, float(reward), terminated, truncated, {**info, "cost": cost}

    def __getattr__(self, name: str) -> Any:
        # Not for "env": `copy.copy` asks for attributes before it has set any, which would recurse.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env.unwrapped, name)


def make(
    task: str, limit: float | None = None, render_mode: str | None = None, **options: Any
) -> gymnasium.Env:
    """Return a robot with a speed limit, without a time limit, which `gymnasium.make` adds.

    Arguments:
        task: "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Swimmer-v5" or "Walker2d-v5".
        limit: largest speed without cost, in m/s; by default Safety-Gymnasium's.
        render_mode: Gymnasium's render mode; "rgb_array" needs no display.
        options: options of the robot. By default Ant neither observes contact forces nor pays for them.

    Raises:
        ValueError: there is no such task, or the limit is not a speed.
    """
    if task not in LIMITS:
        raise ValueError(f"task: expected one of {', '.join(LIMITS)}, got {task!r}")
    env = gymnasium.make(task, render_mode=render_mode, **{**_OPTIONS.get(task, {}), **options})
    return VelocityLimited(env.unwrapped, limit)
