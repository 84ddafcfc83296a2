"""A task on a MuJoCo model behind Gymnasium's interface, one copy at a time."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_whole_number
from holdfast.gym.mujoco.circle import Circle
from holdfast.gym.mujoco.gather import AntGather
from holdfast.gym.mujoco.models import Drawing, Drawn
from holdfast.gym.mujoco.task import Moment, Task

TASKS: dict[str, Callable[..., Task]] = {
    "point-circle": functools.partial(Circle, "point"),
    "ant-circle": functools.partial(Circle, "ant"),
    "ant-gather": AntGather,
}


class TaskEnv(gymnasium.Env):
    """A task as an environment, its physics stepped by MuJoCo.

    Costs are in `info`: "costs" has all of them, "cost" the first; what else the task tells stands
    beside them. What is drawn at random is drawn by Gymnasium's own generator, so a seed repeats an
    episode. An episode is not cut here: `gymnasium.make` sees to that.

    Arguments:
        task: a `Task`, or a name in `TASKS`.
        render_mode: "rgb_array", which needs no display.
        width: of a picture.
        height: of a picture.
        options: of the task, where it is given by name.

    Attributes:
        task: the task.
        model: this environment's own copy of the physics, free to be changed.
        data: MuJoCo's state.
        memory: what the task remembers.

    Raises:
        ValueError: no task of that name, no such way to render, a picture without pixels.
        TypeError: options beside a task that has been made already.

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
        task: Task | str = "point-circle",
        render_mode: str | None = None,
        *,
        width: int = 480,
        height: int = 480,
        **options: Any,
    ) -> None:
        if isinstance(task, str):
            if task not in TASKS:
                raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
            task = TASKS[task](**options)
        elif options:
            given = ", ".join(options)
            raise TypeError(f"task: {given} belong to making it, and it has been made already")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            known = ", ".join(self.metadata["render_modes"])
            raise ValueError(f"render_mode: expected one of {known}, got {render_mode!r}")
        check_whole_number("width", width, least=1)
        check_whole_number("height", height, least=1)
        self.task = task
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(1 / task.dt)}
        self.model: mujoco.MjModel = copy.copy(task.model)
        self.data = mujoco.MjData(self.model)
        self.memory = np.zeros(task.memory_size)
        self._seen_qpos = self.data.qpos.copy()
        self._size = {"width": width, "height": height}
        self._drawing: Drawing | None = None
        self.observation_space = spaces.Box(-np.inf, np.inf, (task.observation_size,), np.float64)
        low, high = self.model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = spaces.Box(low, high)

    @property
    def frame_skip(self) -> int:
        """Substeps of one step."""
        return self.task.frame_skip

    @property
    def dt(self) -> float:
        """Seconds of one step."""
        return self.task.dt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The beginning of an episode; there are no options."""
        super().reset(seed=seed, options=options)
        start = self.task.reset(self.np_random)
        mujoco.mj_resetData(self.model, self.data)
        self.memory = start.memory
        self.set_state(start.qpos, start.qvel)
        return self._observe(), {}

    def set_state(self, qpos: ArrayLike, qvel: ArrayLike) -> None:
        """Puts the robot somewhere else; what the task remembers stays."""
        self.data.qpos[:] = qpos
        self.data.qvel[:] = qvel
        mujoco.mj_forward(self.model, self.data)
        self._seen_qpos = self.data.qpos.copy()

    def step(self, action: ArrayLike) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """A step of MuJoCo's physics."""
        before = self._moment()
        asked = np.asarray(action, np.float64)
        self.data.ctrl[:] = asked
        if self.frame_skip > 1:
            mujoco.mj_step(self.model, self.data, nstep=self.frame_skip - 1)
        self._seen_qpos = self.data.qpos.copy()
        mujoco.mj_step(self.model, self.data)
        paid = self.task.pay(before, self._moment(), asked[None], self.memory[None])
        self.memory = paid.memory[0]
        info: dict[str, Any] = {name: float(values[0]) for name, values in paid.info.items()}
        info["costs"] = paid.costs[0]
        if len(paid.costs[0]):
            info["cost"] = float(paid.costs[0, 0])
        return self._observe(), float(paid.reward[0]), bool(paid.terminated[0]), False, info

    def _moment(self) -> Moment:
        return Moment(
            self.data.qpos.copy()[None], self.data.qvel.copy()[None], self._seen_qpos[None]
        )

    def _observe(self) -> np.ndarray:
        return self.task.observe(self._moment(), self.memory[None])[0]

    def render(self) -> np.ndarray | None:
        """A picture of how things stand."""
        if self.render_mode is None:
            return None
        task = self.task
        if self._drawing is None:
            model = task.drawn_model() if isinstance(task, Drawn) else copy.copy(self.model)
            self._drawing = Drawing(model, **self._size)
        objects = task.objects(self.memory) if isinstance(task, Drawn) else None
        return self._drawing.show(self.data.qpos, *(objects or ()))

    def close(self) -> None:
        """Gives back what the pictures needed."""
        if self._drawing is not None:
            self._drawing.close()
            self._drawing = None
