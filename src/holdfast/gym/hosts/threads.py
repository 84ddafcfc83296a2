"""A MuJoCo task stepped by MuJoCo's own threads: many copies, as a pure function of their states."""

from __future__ import annotations

import copy
import os
import threading
from typing import Any

import mujoco
import mujoco.rollout
import numpy as np
from jaxtyping import Bool, Float, UInt32

from holdfast.gym.hosts.costs import Costs, Transition
from holdfast.gym.hosts.host import Reply
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.physics import Physics, body_ids
from holdfast.gym.mujoco.task import Moment, Task

_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS


class ThreadHost:
    """Copies of a task, each with physics of its own, in `mujoco.rollout`.

    A copy's place is its whole state in float64, as bits: JAX computes in float32, and the physics must
    not. So a step can be taken again from any place.

    Arguments:
        task: what is played.
        layout: of the commands.
        costs: made of what a step shows; the task's own where None.
        threads: of MuJoCo; as many as there are processors if left out.
    """

    is_replayable = True

    def __init__(
        self, task: Task, layout: Layout, costs: Costs | None = None, threads: int | None = None
    ) -> None:
        model = task.model
        self.task, self.layout, self.costs = task, layout, costs
        # Physics that has gone astray must show, and not begin again as if nothing had been.
        self._model = copy.copy(model)
        self._model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
        self.cost_names = task.cost_names if costs is None else costs.names
        self.feature_size = task.feature_size
        self._sizes = (mujoco.mj_stateSize(model, _PHYSICS.value), model.nq, task.memory_size)
        self.place_size = 2 * sum(self._sizes)
        self._bodies = body_ids(model, layout.bodies, task.name)
        self._control = mujoco.mjtState.mjSTATE_CTRL.value
        if layout.bodies:
            self._control |= mujoco.mjtState.mjSTATE_XFRC_APPLIED.value
        self._copies: list[Physics] = []
        self._set = np.ones((0, len(layout.parameters)))  # every copy's factors
        self._threads = threads or os.cpu_count() or 1
        self._data = [mujoco.MjData(model) for _ in range(self._threads)]
        self._scratch = mujoco.MjData(model)
        self._rollout = mujoco.rollout.Rollout(nthread=self._threads)
        # A program may step two batches at the same time; the copies are there once.
        self._lock = threading.Lock()

    def reset(self, seeds: UInt32[np.ndarray, " rows"]) -> Reply:
        """As many beginnings as seeds."""
        task, (physics, nq, _) = self.task, self._sizes
        rows = len(seeds)
        place = np.zeros((rows, sum(self._sizes)))
        for row, seed in zip(place, seeds, strict=True):
            start = task.reset(np.random.default_rng(int(seed)))
            row[1 : 1 + nq] = start.qpos
            row[1 + nq : 1 + nq + task.model.nv] = start.qvel
            row[physics : physics + nq] = start.qpos
            row[physics + nq :] = start.memory
        nothing = np.zeros(rows, np.float32)
        costs = np.zeros((rows, len(self.cost_names)), np.float32)
        return self._reply(place, nothing, costs, np.zeros(rows, bool))

    def step(
        self,
        place: UInt32[np.ndarray, "rows place"],
        actions: Float[np.ndarray, "rows action"],
        commands: Float[np.ndarray, "rows command"],
        over: Bool[np.ndarray, " rows"],
    ) -> Reply:
        """A step of every copy whose episode is not over; the others stay where they are."""
        where = np.ascontiguousarray(place).view(np.float64).copy()
        rows, going = len(where), np.flatnonzero(~over)
        rewards = np.zeros(rows, np.float32)
        costs = np.zeros((rows, len(self.cost_names)), np.float32)
        terminated = np.array(over)
        if len(going):
            some = slice(None) if len(going) == rows else going
            with self._lock:
                found = self._steps(where[some], actions[some].astype(np.float64), commands[some])
            where[some], rewards[some], costs[some], terminated[some] = found
        return self._reply(where, rewards, costs, terminated)

    def _steps(
        self, where: np.ndarray, actions: np.ndarray, commands: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        task, (physics, nq, _) = self.task, self._sizes
        rows = len(where)
        models = self._disturbed(where, commands)
        control = np.empty((rows, task.frame_skip, self._control_size))
        control[:, :, : task.model.nu] = actions[:, None]
        if self.layout.bodies:
            forces = np.zeros((rows, task.model.nbody, 6))
            pushes = commands[:, self.layout.of_forces].reshape(rows, -1, 3)
            forces[:, self._bodies, :3] = pushes
            control[:, :, task.model.nu :] = forces.reshape(rows, 1, -1)
        states = np.empty((rows, task.frame_skip, physics))
        # All shapes are known; the checks would cost as much as everything else here.
        self._rollout.rollout(
            models,
            self._data,
            np.ascontiguousarray(where[:, :physics]),
            control,
            control_spec=self._control,
            nstep=task.frame_skip,
            state=states,
            skip_checks=True,
        )
        memory = where[:, physics + nq :]
        before = self._moment(where)
        after = np.empty_like(where)
        after[:, :physics] = states[:, -1]
        older = states[:, -2] if task.frame_skip > 1 else where
        after[:, physics : physics + nq] = older[:, 1 : 1 + nq]
        now = self._moment(after)
        paid = task.pay(before, now, actions, memory)
        after[:, physics + nq :] = paid.memory
        costs = paid.costs
        if self.costs is not None:
            seen: tuple[Any, Any] = (None, None)
            if self.costs.need_observations:
                seen = task.observe(before, memory), task.observe(now, paid.memory)
            costs = self.costs.of_rows(
                Transition(seen[0], actions, paid.reward, seen[1], paid.terminated, paid.info)
            )
        return after, paid.reward, costs, paid.terminated

    def _disturbed(self, where: np.ndarray, commands: np.ndarray) -> list[mujoco.MjModel]:
        """Every copy's model with its parameters, and its state pushed."""
        layout = self.layout
        more = [Physics(self._model) for _ in range(len(where) - len(self._copies))]
        self._copies += more
        nominal = np.ones((len(more), len(layout.parameters)))
        self._set = np.concatenate([self._set, nominal])
        copies = self._copies[: len(where)]
        if layout.parameters:
            factors = commands[:, layout.of_parameters].astype(np.float64)
            # Mostly nothing has changed: to find that out copy by copy would take a fifth of a step.
            for i in np.flatnonzero((factors != self._set[: len(where)]).any(1)):
                copies[i].set_factors(layout.parameters, factors[i], self._scratch)
                self._set[i] = factors[i]
        if layout.state:
            nq, nv = self.task.model.nq, self.task.model.nv
            pushes = commands[:, layout.of_state].astype(np.float64)
            for row, push in zip(where, pushes, strict=True):
                mujoco.mj_integratePos(self.task.model, row[1 : 1 + nq], push[:nv], 1.0)
                row[1 + nq : 1 + nq + nv] += push[nv:]
        return [copy.model for copy in copies]

    @property
    def _control_size(self) -> int:
        return mujoco.mj_stateSize(self.task.model, self._control)

    def _moment(self, where: np.ndarray) -> Moment:
        physics, nq, _ = self._sizes
        nv = self.task.model.nv
        return Moment(
            where[:, 1 : 1 + nq],
            where[:, 1 + nq : 1 + nq + nv],
            where[:, physics : physics + nq],
        )

    def _reply(
        self, where: np.ndarray, rewards: np.ndarray, costs: np.ndarray, terminated: np.ndarray
    ) -> Reply:
        task, now = self.task, self._moment(where)
        memory = where[:, self._sizes[0] + self._sizes[1] :]
        return Reply(
            where.view(np.uint32),
            task.observe(now, memory).astype(np.float32),
            task.features(now, memory).astype(np.float32),
            rewards,
            costs,
            terminated,
        )

    def close(self) -> None:
        """Ends the threads."""
        self._rollout.close()
