"""The interface of a task on a MuJoCo model: pure functions of positions and velocities.

MuJoCo computes the physics: `mujoco.rollout` with threads in training, `TaskEnv` for a single copy in
Gymnasium. A task defines the initial state, the observation, the reward and the costs. All arrays are
float64 and have one row for each copy.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import mujoco
import numpy as np
from jaxtyping import Bool, Float

Rows = Float[np.ndarray, "rows size"]


class InitialState(NamedTuple):
    """The initial positions, velocities and memory of one episode."""

    qpos: Float[np.ndarray, " nq"]
    qvel: Float[np.ndarray, " nv"]
    memory: Float[np.ndarray, " memory"]


class RobotState(NamedTuple):
    """The generalised positions and velocities of copies."""

    qpos: Float[np.ndarray, "rows nq"]
    qvel: Float[np.ndarray, "rows nv"]


class TaskOutcome(NamedTuple):
    """The outcome of a step.

    Attributes:
        reward: reward of each copy.
        costs: costs of each copy, one column for each cost of the task.
        terminated: whether the episode is over.
        memory: memory of the task after the step.
        info: named quantities for cost functions, such as "x_velocity".
    """

    reward: Float[np.ndarray, " rows"]
    costs: Float[np.ndarray, "rows costs"]
    terminated: Bool[np.ndarray, " rows"]
    memory: Float[np.ndarray, "rows memory"]
    info: Mapping[str, Float[np.ndarray, " rows"]]


class RobotTask(abc.ABC):
    """A task on a MuJoCo model.

    Attributes:
        name: name for runs and messages.
        model: the nominal physics, which is never changed.
        frame_skip: number of physics steps in a step.
        horizon: number of steps of an episode.
        observation_size: length of an observation.
        memory_size: length of the task's memory, the state of a copy besides its physics.
        cost_names: names of the task's costs.
        cost_limits: limits of the costs, or None.
        discount: discount of the reward.
    """

    name: str
    model: mujoco.MjModel
    frame_skip: int
    horizon: int
    observation_size: int
    memory_size: int = 0
    cost_names: tuple[str, ...] = ()
    cost_limits: tuple[float, ...] | None = None
    discount: float = 0.99

    @property
    def dt(self) -> float:
        """Duration of a step in seconds."""
        return self.model.opt.timestep * self.frame_skip

    @abc.abstractmethod
    def reset(self, generator: np.random.Generator) -> InitialState:
        """Return the initial state of an episode."""

    @abc.abstractmethod
    def observe(self, now: RobotState, memory: Rows) -> Rows:
        """Return the observations."""

    @abc.abstractmethod
    def outcome(
        self, before: RobotState, after: RobotState, actions: Rows, memory: Rows
    ) -> TaskOutcome:
        """Return rewards, costs and terminations of a step.

        Arguments:
            before: states before the step.
            after: states after the step.
            actions: inputs of the actuators, before MuJoCo clips them.
            memory: memory before the step.
        """

    def features(self, now: RobotState, memory: Rows) -> Rows:
        """Return the input of critics and adversaries: everything that the future depends on."""
        return np.concatenate([self.observe(now, memory), memory], axis=1)

    @property
    def feature_size(self) -> int:
        """Length of the features."""
        return self.observation_size + self.memory_size

    def motion(self, before: RobotState, after: RobotState, axes: str) -> dict[str, Any]:
        """Return position and mean velocity along the first axes, "x" or "xy", as entries of `info`."""
        info = {}
        for axis, name in enumerate(axes):
            info[f"{name}_position"] = after.qpos[:, axis]
            info[f"{name}_velocity"] = (after.qpos[:, axis] - before.qpos[:, axis]) / self.dt
        if axes == "xy":
            info["distance_from_origin"] = np.hypot(after.qpos[:, 0], after.qpos[:, 1])
        return info

    def drawn_model(self) -> mujoco.MjModel:
        """Return a model for pictures, with the joints of the task's model and more to look at."""
        return copy.copy(self.model)

    def objects(
        self, memory: Float[np.ndarray, " memory"]
    ) -> tuple[Float[np.ndarray, "objects 2"], Bool[np.ndarray, " objects"]] | tuple[()]:
        """Return the places of the objects and whether each is still there; () without objects."""
        del memory
        return ()
