"""A host that steps a MuJoCo task in MuJoCo's own threads, as a pure function of the states."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import mujoco
import mujoco.rollout
import numpy as np
from jaxtyping import Bool, Float, UInt32

from holdfast.gym.costs import Costs, Transition
from holdfast.gym.hosts.host import DisturbanceLayout, HostReply, ReplySizes
from holdfast.gym.hosts.physics import Physics
from holdfast.gym.hosts.pools import HostError
from holdfast.gym.hosts.watching import Deadline, HangError, WatchedThread
from holdfast.gym.hosts.worker import failure_text
from holdfast.gym.mujoco.task import RobotState, RobotTask

_Stepped = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS


class ThreadHost:
    """Copies of a task, each with its own physics, stepped by `mujoco.rollout`.

    A place is the whole state of a copy: time, positions, velocities and the rest of MuJoCo's state,
    then the task's memory. It is stored as the bits of float64 numbers, since JAX computes in float32
    and the physics must not. A step can therefore start from any place.

    Arguments:
        task: the task.
        layout: layout of the commands.
        costs: the user's costs; None for the costs of the task.
        threads: number of threads; the number of processors by default.
        step_timeout: seconds that a cost function may take for a step of all copies; None for no
            limit. The physics itself always returns.
    """

    def __init__(
        self,
        task: RobotTask,
        layout: DisturbanceLayout,
        costs: Costs | None = None,
        threads: int | None = None,
        step_timeout: float | None = None,
    ) -> None:
        model = task.model
        self._timeout = step_timeout
        self._thread = WatchedThread()
        self.task, self.layout, self.costs = task, layout, costs
        # MuJoCo would restart an unstable simulation silently. NaN must reach the check in training.
        self._model = copy.copy(model)
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        self.cost_names = task.cost_names if costs is None else costs.names
        self._physics_size = mujoco.mj_stateSize(model, _PHYSICS.value)
        self.sizes = ReplySizes(
            place=2 * (self._physics_size + task.memory_size),  # Two 32-bit numbers hold one of 64.
            observation=task.observation_size,
            features=task.feature_size,
            costs=len(self.cost_names),
            is_replayable=True,
        )
        # MuJoCo's state starts with the time.
        self._qpos = slice(1, 1 + model.nq)
        self._qvel = slice(1 + model.nq, 1 + model.nq + model.nv)
        self._memory = slice(self._physics_size, None)
        self._bodies = [model.body(name).id for name in layout.bodies]
        self._control = mujoco.mjtState.mjSTATE_CTRL.value
        if layout.bodies:
            self._control |= mujoco.mjtState.mjSTATE_XFRC_APPLIED.value
        self._control_size = mujoco.mj_stateSize(model, self._control)
        self._copies: list[Physics] = []
        self._factors = np.ones((0, len(layout.parameters)))  # one row for each copy
        count = threads or os.cpu_count() or 1
        self._data = [mujoco.MjData(model) for _ in range(count)]
        self._scratch = mujoco.MjData(model)
        self._rollout = mujoco.rollout.Rollout(nthread=count)
        # Two programs may step the same environment at the same time.
        self._lock = threading.Lock()

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> HostReply:
        """Start one episode for each seed."""
        rows = len(seeds)
        where = np.zeros((rows, self.sizes.place // 2))
        for row, seed in zip(where, seeds, strict=True):
            start = self.task.reset(np.random.default_rng(int(seed)))
            row[self._qpos], row[self._qvel], row[self._memory] = start
        costs = np.zeros((rows, len(self.cost_names)), np.float32)
        return self._reply(where, np.zeros(rows, np.float32), costs, np.zeros(rows, bool))

    def step(
        self,
        place: UInt32[np.ndarray, "rows place"],
        actions: Float[np.ndarray, "rows action"],
        commands: Float[np.ndarray, "rows command"],
        over: Bool[np.ndarray, " rows"],
    ) -> HostReply:
        """Step every copy whose episode is not over; the others stay where they are."""
        where = np.ascontiguousarray(place).view(np.float64).copy()
        rows, going = len(where), np.flatnonzero(~over)
        rewards = np.zeros(rows, np.float32)
        costs = np.zeros((rows, len(self.cost_names)), np.float32)
        terminated = np.array(over)
        if len(going):
            some = slice(None) if len(going) == rows else going
            given = where[some], actions[some].astype(np.float64), commands[some]
            with self._lock:
                found = self._watched(functools.partial(self._stepped, *given))
            where[some], rewards[some], costs[some], terminated[some] = found
        return self._reply(where, rewards, costs, terminated)

    def _watched(self, step: Callable[[], _Stepped]) -> _Stepped:
        """Return the result of a step; a cost function of the user's may fail or never return."""
        if self.costs is None or self.costs.is_rebuildable:
            return step()
        name = self.costs.environment
        try:
            if self._timeout is None:
                return step()
            return self._thread.call(step, Deadline(self._timeout, lambda: 0))
        except HangError:
            raise HostError(
                f"{name}: a cost function did not return within {self._timeout:g} s (step_timeout)"
            ) from None
        except Exception as error:
            raise HostError(f"{name}: a cost function{failure_text(error)}") from error

    def _stepped(self, where: np.ndarray, actions: np.ndarray, commands: np.ndarray) -> _Stepped:
        """Return the places, rewards, costs and terminations after a step of all rows."""
        task, rows = self.task, len(where)
        models = self._disturbed(where, commands)
        control = np.empty((rows, task.frame_skip, self._control_size))
        control[:, :, : task.model.nu] = actions[:, None]
        if self.layout.bodies:
            forces = np.zeros((rows, task.model.nbody, 6))
            pushes = commands[:, self.layout.of_forces].reshape(rows, -1, 3)
            forces[:, self._bodies, :3] = pushes
            control[:, :, task.model.nu :] = forces.reshape(rows, 1, -1)
        states = np.empty((rows, task.frame_skip, self._physics_size))
        # All shapes are right by construction; the checks would cost as much as the rest of this
        # function.
        self._rollout.rollout(
            models,
            self._data,
            np.ascontiguousarray(where[:, : self._physics_size]),
            control,
            control_spec=self._control,
            nstep=task.frame_skip,
            state=states,
            skip_checks=True,
        )
        after = np.empty_like(where)
        after[:, : self._physics_size] = states[:, -1]
        before, now, memory = self._state(where), self._state(after), where[:, self._memory]
        outcome = task.outcome(before, now, actions, memory)
        after[:, self._memory] = outcome.memory
        costs = outcome.costs
        if self.costs is not None:
            seen: tuple[Any, Any] = (None, None)
            if not self.costs.is_rebuildable:
                seen = task.observe(before, memory), task.observe(now, outcome.memory)
            reward, terminated, info = outcome.reward, outcome.terminated, outcome.info
            steps = Transition(seen[0], actions, reward, seen[1], terminated, info)
            costs = self.costs.of_rows(steps)
        return after, outcome.reward, costs, outcome.terminated

    def _disturbed(self, where: np.ndarray, commands: np.ndarray) -> list[mujoco.MjModel]:
        """Push the states in place, and return the model of every copy with its factors."""
        layout, rows = self.layout, len(where)
        new = [Physics(self._model) for _ in range(rows - len(self._copies))]
        self._copies += new
        nominal = np.ones((len(new), len(layout.parameters)))
        self._factors = np.concatenate([self._factors, nominal])
        if layout.parameters:
            factors = commands[:, layout.of_parameters].astype(np.float64)
            # Most steps change no factor. Checking every copy would take a fifth of the time of a step.
            for i in np.flatnonzero((factors != self._factors[:rows]).any(1)):
                self._copies[i].set_factors(layout.parameters, factors[i], self._scratch)
                self._factors[i] = factors[i]
        if layout.state:
            pushes = commands[:, layout.of_state]
            for physics, row, push in zip(self._copies, where, pushes, strict=False):
                physics.push(row[self._qpos], row[self._qvel], push)
        return [copy.model for copy in self._copies[:rows]]

    def _state(self, where: np.ndarray) -> RobotState:
        return RobotState(where[:, self._qpos], where[:, self._qvel])

    def _reply(
        self, where: np.ndarray, rewards: np.ndarray, costs: np.ndarray, terminated: np.ndarray
    ) -> HostReply:
        task, now, memory = self.task, self._state(where), where[:, self._memory]
        return HostReply(
            where.view(np.uint32),
            task.observe(now, memory).astype(np.float32),
            task.features(now, memory).astype(np.float32),
            rewards,
            costs,
            terminated,
        )

    def close(self) -> None:
        """End the threads."""
        self._rollout.close()
