"""What a task on a MuJoCo model is: pure functions of positions and velocities, for many copies.

Physics is MuJoCo's, whoever calls it: `mujoco.rollout` with threads for training, `TaskEnv` one copy at
a time for Gymnasium. A task says how an episode begins, what is seen, and what a step pays. Everything
is in float64 and works on rows, one for each copy.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import mujoco
import numpy as np
from jaxtyping import Bool, Float

Rows = Float[np.ndarray, "rows size"]


class Start(NamedTuple):
    """The beginning of one episode."""

    qpos: Float[np.ndarray, " nq"]
    qvel: Float[np.ndarray, " nv"]
    memory: Float[np.ndarray, " memory"]


class Moment(NamedTuple):
    """Where copies are.

    Attributes:
        qpos: generalised positions.
        qvel: generalised velocities.
        seen_qpos: the positions that `data.xpos` and the like were computed from: one substep older
            than `qpos` after a step, the same after a reset. (With Runge-Kutta they are neither: there
            they come from its last stage.)
    """

    qpos: Float[np.ndarray, "rows nq"]
    qvel: Float[np.ndarray, "rows nv"]
    seen_qpos: Float[np.ndarray, "rows nq"]


class Paid(NamedTuple):
    """What a step pays.

    Attributes:
        reward: of each copy.
        costs: of each copy, a column for every cost of the task's own; none is fine.
        terminated: whether the episode is over.
        memory: what the task remembers from now on.
        info: named quantities that a user's cost may be made of, such as "x_velocity".
    """

    reward: Float[np.ndarray, " rows"]
    costs: Float[np.ndarray, "rows costs"]
    terminated: Bool[np.ndarray, " rows"]
    memory: Float[np.ndarray, "rows memory"]
    info: Mapping[str, Float[np.ndarray, " rows"]]


class Task(abc.ABC):
    """A task on a MuJoCo model.

    Attributes:
        name: what runs and messages call it.
        model: the nominal physics; never changed, whoever varies it works on copies.
        frame_skip: substeps of one step.
        horizon: steps after which an episode is cut.
        observation_size: length of what `observe` gives.
        memory_size: how many numbers the task remembers of a copy besides its physics.
        cost_names: the task's own costs.
        cost_limits: the limits that belong to them, if there are any.
        discount: that belongs to the task.
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
        """Seconds of one step."""
        return self.model.opt.timestep * self.frame_skip

    @abc.abstractmethod
    def reset(self, generator: np.random.Generator) -> Start:
        """The beginning of an episode."""

    @abc.abstractmethod
    def observe(self, now: Moment, memory: Rows) -> Rows:
        """What the policy sees."""

    @abc.abstractmethod
    def pay(self, before: Moment, after: Moment, actions: Rows, memory: Rows) -> Paid:
        """What the step from `before` to `after` pays.

        Arguments:
            before: where the copies were.
            after: where they are.
            actions: what was asked of the actuators, as the environment's own reward counts it.
            memory: what the task remembered before the step.
        """

    def features(self, now: Moment, memory: Rows) -> Rows:
        """All that the future depends on, for critics and adversaries; by default positions too.

        Unlike observations these may not leave anything out.
        """
        return np.concatenate([self.observe(now, memory), memory], axis=1)

    @property
    def feature_size(self) -> int:
        """Length of what `features` gives."""
        return self.observation_size + self.memory_size
