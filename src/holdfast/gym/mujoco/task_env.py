"""`TaskEnv`: a task on a MuJoCo model as a Gymnasium environment."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_choice, check_whole_number
from holdfast.gym.costs import cost_info
from holdfast.gym.making import found_by_name
from holdfast.gym.mujoco.circle import Circle
from holdfast.gym.mujoco.drawing import Drawing
from holdfast.gym.mujoco.gather import AntGather
from holdfast.gym.mujoco.locomotion import locomotion_task
from holdfast.gym.mujoco.task import RobotState, RobotTask
from holdfast.gym.mujoco.velocity import VelocityLimited

TASKS: dict[str, Callable[..., RobotTask]] = {
    "point-circle": functools.partial(Circle, "point"),
    "ant-circle": functools.partial(Circle, "ant"),
    "ant-gather": AntGather,
}


def task_of(env: gymnasium.Env) -> RobotTask | None:
    """Return the task of an environment that MuJoCo's threads can step, or None.

    These are `TaskEnv` and some of Gymnasium's robots (`locomotion_task`), if all wrappers are those of
    `gymnasium.make` or `VelocityLimited`, and Gymnasium's robots have a time limit.

    Example:
        >>> import gymnasium
        >>> task_of(gymnasium.make("Hopper-v5")).name
        'Hopper-v5'
        >>> task_of(gymnasium.make("CartPole-v1")) is None
        True
    """
    horizons, limit = [], None
    inner: Any = env
    while type(inner) in (OrderEnforcing, PassiveEnvChecker, TimeLimit, VelocityLimited):
        if isinstance(inner, TimeLimit):
            horizons.append(inner._max_episode_steps)
        if isinstance(inner, VelocityLimited):
            limit = inner.limit
        inner = inner.env
    if isinstance(inner, TaskEnv):
        return inner.task
    spec = env.unwrapped.spec or inner.spec
    name = spec.id if spec else type(inner).__name__
    return locomotion_task(inner, name, min(horizons), limit) if horizons else None


class TaskEnv(gymnasium.Env):
    """A task as a Gymnasium environment, with one copy that MuJoCo steps.

    `info` contains all costs in "costs", the first in "cost", and the quantities that the task names.
    Gymnasium's generator draws all random numbers, so a seed repeats an episode. The time limit is that
    of `gymnasium.make`.

    Arguments:
        task: a `RobotTask`, or a name in `TASKS`.
        render_mode: "rgb_array", which needs no display, or None.
        width: width of a picture in pixels.
        height: height of a picture in pixels.
        options: arguments of the task, if it is given by name.

    Attributes:
        task: the task.
        model: a copy of the task's model, which may be changed.
        data: MuJoCo's state.
        memory: the task's memory.

    Raises:
        ValueError: there is no such task or render mode, or a picture has no pixels.
        TypeError: options for a task that is not given by name.

    Example:
        >>> import gymnasium, holdfast
        >>> env = gymnasium.make("holdfast/PointCircle-v0")
        >>> observation, _ = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step([1.0, 0.0])
        >>> observation.shape, info["cost"]
        ((7,), 0.0)
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self,
        task: RobotTask | str = "point-circle",
        render_mode: str | None = None,
        *,
        width: int = 480,
        height: int = 480,
        **options: Any,
    ) -> None:
        if options and not isinstance(task, str):
            raise TypeError(f"task: options ({', '.join(options)}) need the name of a task")
        task = found_by_name("task", task, TASKS, **options)
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        check_whole_number("width", width, least=1)
        check_whole_number("height", height, least=1)
        self.task = task
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / task.dt)}
        self.model: mujoco.MjModel = copy.copy(task.model)
        self.data = mujoco.MjData(self.model)
        self.memory = np.zeros(task.memory_size)
        self._size = {"width": width, "height": height}
        self.observation_space = spaces.Box(-np.inf, np.inf, (task.observation_size,), np.float64)
        low, high = self.model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = spaces.Box(low, high)

    @property
    def dt(self) -> float:
        """Duration of a step in seconds."""
        return self.task.dt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; there are no options."""
        super().reset(seed=seed, options=options)
        start = self.task.reset(self.np_random)
        mujoco.mj_resetData(self.model, self.data)
        self.memory = start.memory
        self.set_state(start.qpos, start.qvel)
        return self._observe(), {}

    def set_state(self, qpos: ArrayLike, qvel: ArrayLike) -> None:
        """Set positions and velocities; the task's memory stays."""
        self.data.qpos[:] = qpos
        self.data.qvel[:] = qvel
        mujoco.mj_forward(self.model, self.data)

    def step(self, action: ArrayLike) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step MuJoCo's physics."""
        before = self._state()
        control = np.asarray(action, np.float64)
        self.data.ctrl[:] = control
        mujoco.mj_step(self.model, self.data, nstep=self.task.frame_skip)
        outcome = self.task.outcome(before, self._state(), control[None], self.memory[None])
        self.memory = outcome.memory[0]
        info = {name: float(values[0]) for name, values in outcome.info.items()}
        info |= cost_info(outcome.costs[0])
        return self._observe(), float(outcome.reward[0]), bool(outcome.terminated[0]), False, info

    def _state(self) -> RobotState:
        return RobotState(self.data.qpos.copy()[None], self.data.qvel.copy()[None])

    def _observe(self) -> np.ndarray:
        return self.task.observe(self._state(), self.memory[None])[0]

    def render(self) -> np.ndarray | None:
        """Return a picture of the current state."""
        if self.render_mode is None:
            return None
        return self._drawing.show(self.data.qpos, *self.task.objects(self.memory))

    @functools.cached_property
    def _drawing(self) -> Drawing:
        return Drawing(self.task.drawn_model(), **self._size)

    def close(self) -> None:
        """Release the graphics; the next picture opens them again."""
        if "_drawing" in vars(self):
            vars(self).pop("_drawing").close()
