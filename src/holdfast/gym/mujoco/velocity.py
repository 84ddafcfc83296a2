"""Gymnasium's robots under a speed limit, with Safety-Gymnasium's published limits."""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.ant_v5 import AntEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.swimmer_v5 import SwimmerEnv
from gymnasium.envs.mujoco.walker2d_v5 import Walker2dEnv

LIMITS: dict[str, float] = {
    "Ant-v5": 2.6222,
    "HalfCheetah-v5": 3.2096,
    "Hopper-v5": 0.7402,
    "Swimmer-v5": 0.2282,
    "Walker2d-v5": 2.3415,
}
COST_LIMIT = 25.0  # of an episode, Safety-Gymnasium's

_ROBOTS: dict[type, str] = {
    AntEnv: "Ant-v5",
    HalfCheetahEnv: "HalfCheetah-v5",
    HopperEnv: "Hopper-v5",
    SwimmerEnv: "Swimmer-v5",
    Walker2dEnv: "Walker2d-v5",
}
# Contact forces are neither seen nor paid for in Safety-Gymnasium's Ant.
_OPTIONS: dict[str, dict[str, Any]] = {
    "Ant-v5": {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
}


class VelocityLimited(gymnasium.Env):
    """One of Gymnasium's robots whose steps cost 1 when they are too fast: `info["cost"]`.

    The speed is `info["x_velocity"]`, so going backwards is free; Ant's is the length of its velocity in
    x and y. All else is the robot's: what it sees and is paid, its seeds, its pictures, and by name its
    attributes, such as `model`, `data` and `set_state`.

    It is no wrapper: the cost is the environment's own, so that `unwrapped` has it too.

    Arguments:
        env: Ant-v5, HalfCheetah-v5, Hopper-v5, Swimmer-v5 or Walker2d-v5, in any wrappers.
        limit: the speed in m/s above which a step costs 1; Safety-Gymnasium's by default.

    Raises:
        ValueError: the environment is none of these, or the limit is no speed.

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

    env: gymnasium.Env
    limit: float
    _planar: bool

    def __init__(self, env: gymnasium.Env, limit: float | None = None) -> None:
        robot = _ROBOTS.get(type(env.unwrapped))
        if robot is None:
            raise ValueError(f"env: expected one of {', '.join(LIMITS)}, got {env}")
        if limit is None:
            limit = LIMITS[robot]
        if not isinstance(limit, numbers.Real) or not float(limit) >= 0:
            raise ValueError(f"limit: expected a speed of at least 0, got {limit!r}")
        self.env = env
        self.limit = float(limit)
        self._planar = robot == "Ant-v5"
        self.metadata = dict(env.metadata)
        self.render_mode = env.render_mode
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        if sys.platform == "linux" and not os.environ.get("DISPLAY"):
            modes = self.metadata["render_modes"]
            self.metadata["render_modes"] = [mode for mode in modes if mode != "human"]
            # Gymnasium reads it when the first picture is made, so this is early enough.
            os.environ.setdefault("MUJOCO_GL", "egl")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The beginning of an episode."""
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The robot's step, and what its speed costs."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(speed(info, planar=self._planar) > self.limit)
        return observation, float(reward), terminated, truncated, {**info, "cost": cost}

    def render(self) -> Any:
        """The robot's picture."""
        return self.env.render()

    def close(self) -> None:
        """Frees what pictures need."""
        self.env.close()

    # The robot draws, so its generator is the one that counts.

    @property
    def _np_random(self) -> np.random.Generator | None:
        return self.env.unwrapped._np_random

    @_np_random.setter
    def _np_random(self, generator: np.random.Generator | None) -> None:
        self.env.unwrapped._np_random = generator

    @property
    def _np_random_seed(self) -> int | None:
        return self.env.unwrapped._np_random_seed

    @_np_random_seed.setter
    def _np_random_seed(self, seed: int | None) -> None:
        self.env.unwrapped._np_random_seed = seed

    def __getattr__(self, name: str) -> Any:
        # Never "env" itself, which a copy does not have yet when it is first asked.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env.unwrapped, name)


def speed(info: Mapping[str, Any], *, planar: bool) -> Any:
    """What the limit is on: speed in x and y if `planar`, else along x; for one copy or for many."""
    if planar:
        return np.hypot(info["x_velocity"], info["y_velocity"])
    return info["x_velocity"]


def make(
    task: str, limit: float | None = None, render_mode: str | None = None, **options: Any
) -> gymnasium.Env:
    """A speed-limited robot, without a time limit: the registry adds that.

    Arguments:
        task: "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Swimmer-v5" or "Walker2d-v5".
        limit: as in `VelocityLimited`.
        render_mode: Gymnasium's; "rgb_array" needs no display.
        options: of the robot, as `gymnasium.make` takes them. Ant's contact forces are neither seen nor
            paid for unless they say so.

    Raises:
        ValueError: there is no such task, or the limit is no speed.
    """
    if task not in LIMITS:
        raise ValueError(f"task: expected one of {', '.join(LIMITS)}, got {task!r}")
    env = gymnasium.make(task, render_mode=render_mode, **{**_OPTIONS.get(task, {}), **options})
    return VelocityLimited(env.unwrapped, limit)
