"""A training run from its first iteration to its last, through every kill in between."""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from holdfast._support.devices import (
    check_devices,
    compiled,
    on_devices,
    over_devices,
    side_by_side,
    whole,
)
from holdfast._support.files import write_bytes
from holdfast._version import __version__
from holdfast.registry import SIMULATOR_ALGORITHMS, Algorithm
from holdfast.simulators.environment import Environment, GaussianNoise
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.protocol import check_environment
from holdfast.simulators.training import checkpoint, runs
from holdfast.simulators.training.learner import Learner, Plan
from holdfast.simulators.training.settings import Settings
from holdfast.simulators.training.tensorboard import Events, event_log

Row = dict[str, Any]
Callback = Callable[[Sequence[Row]], None]

# Iterations between two looks at what came out: on an accelerator each look is a wait.
_CHUNK = {"cpu": 1}
_ACCELERATOR_CHUNK = 10


class TrainingError(RuntimeError):
    """Training cannot go on: something is not a finite number, or a simulator outside JAX failed.

    What was saved before stands.
    """


def host_failure(env: Environment, error: Exception, kept: str = "") -> Exception:
    """What is raised for a program that failed: the simulator's own failure where that was it."""
    failure = env.failure
    if failure is None:
        return error
    env.forget_failure()
    text = "".join(traceback.format_exception(failure)).rstrip()
    return TrainingError(f"{env.name} failed{kept}:\n{text}")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: everything that decides its result."""

    env: Environment
    algorithm: Algorithm
    plan: Plan
    seeds: tuple[int, ...]
    described: Mapping[str, Any]

    @classmethod
    def create(
        cls,
        env: Environment,
        algorithm: str | Algorithm,
        settings: Settings,
        seeds: tuple[int, ...],
        devices: int = 1,
    ) -> Run:
        """Checks what can be checked before any work.

        Raises:
            ValueError: an argument cannot be used; the message names it.
        """
        chosen = SIMULATOR_ALGORITHMS.find(algorithm) if isinstance(algorithm, str) else algorithm
        if settings.radius > 0 and not chosen.robust:
            raise ValueError(
                f"radius: {chosen.name} trusts the simulator and has no use for radius "
                f"{settings.radius}; rcpo has"
            )
        check_disturbed(env, settings.radius)
        if env.is_hosted and settings.adversary.gradient == "pathwise":
            raise ValueError(
                f"gradient: {env.name} is stepped outside JAX and has no derivatives; use 'score'"
            )
        if env.is_hosted and devices > 1:
            raise ValueError(
                f"devices: {env.name} is stepped outside JAX, on one device; got {devices}"
            )
        check_devices(devices)
        plan = Plan.create(
            env,
            settings,
            robust=chosen.robust,
            constrained=chosen.constrained,
            devices=devices,
        )
        check_environment(env)
        run = cls(env, chosen, plan, seeds, _described(env, chosen.name, plan, seeds))
        run._blank()  # a kernel that does not fit is refused here
        return run

    def describe(self) -> dict[str, Any]:
        """What the run is, as `run.json` has it."""
        return dict(self.described)

    def train(self, out: Path | None, callback: Callback | None = None) -> list[Agent]:
        """Runs the iterations that are missing and gives the agents."""
        try:
            return self._train(out, callback)
        finally:
            self.env.close()

    def _train(self, out: Path | None, callback: Callback | None) -> list[Agent]:
        if out is None:
            return self._agents(self._advance(self._first(), 0, callback))
        if out.exists() and not out.is_dir():
            raise ValueError(f"out: {out} is not a folder")
        runs.check_same(out, self.described)
        with runs.locked(out):
            learners, done = self._begin(out)
            if done < self.plan.settings.iterations:
                with event_log(out, self.described) as events:
                    learners = self._advance(learners, done, callback, out, events)
            agents = self._agents(learners)
            for agent in agents:
                path, data = runs.agent_file(out, agent.seed), agent.to_bytes()
                if not path.is_file() or path.read_bytes() != data:
                    write_bytes(path, data)
        return agents

    def _advance(
        self,
        learners: Learner,
        done: int,
        callback: Callback | None,
        out: Path | None = None,
        events: Events | None = None,
    ) -> Learner:
        """All iterations that are left, a few at a time; what they measured is written and told."""
        iterations = self.plan.settings.iterations
        chunk = _CHUNK.get(jax.default_backend(), _ACCELERATOR_CHUNK)
        plan = self._plan()
        learners = on_devices(learners, plan.devices)
        while done < iterations:
            count = min(chunk, iterations - done)
            start = time.perf_counter()
            try:
                with over_devices(plan.devices):
                    learners, metrics = _iterations(
                        self.algorithm, plan, chunk, self.env, learners, jnp.asarray(count)
                    )
                rows = self._rows(jax.device_get(metrics), done, count)
            except jax.errors.JaxRuntimeError as error:
                kept = f"; the checkpoint of iteration {done} in {out} stands" if out else ""
                raise host_failure(self.env, error, kept) from None
            self._check_finite(rows, learners, out)
            seconds = (time.perf_counter() - start) / count
            done += count
            if out is not None:
                self._write(out, learners, done, rows, seconds)
            if events is not None:
                events.write(rows)
            if callback is not None:
                callback(rows)
        return learners

    def _plan(self) -> Plan:
        """The plan less what is not part of a compiled program, so that more runs share one.

        Radius, limits and trust region are carried by the learners.
        """
        settings = dataclasses.replace(
            self.plan.settings, iterations=1, radius=0.0, trust_region=1.0, cost_limit=()
        )
        limits = (0.0,) * len(self.plan.limits)
        return dataclasses.replace(self.plan, settings=settings, limits=limits)

    def _first(self) -> Learner:
        return _first(self._plan(), self.env, self._keys(), self._numbers())

    def _blank(self) -> Learner:
        return eqx.filter_eval_shape(_first, self._plan(), self.env, self._keys(), self._numbers())

    def _numbers(self) -> tuple[np.ndarray, ...]:
        settings = self.plan.settings
        numbers = (settings.radius, self.plan.limits, settings.trust_region)
        return tuple(np.asarray(each, np.float32) for each in numbers)

    def _keys(self) -> jax.Array:
        return jnp.stack([jax.random.PRNGKey(seed) for seed in self.seeds])

    def _begin(self, out: Path) -> tuple[Learner, int]:
        """The checkpoint in the folder, or the start; the folder as it was when that was written."""
        runs.check_same(out, self.described)
        runs.forget_temporaries(out)
        path, metrics = out / runs.CHECKPOINT, out / runs.METRICS
        if not path.is_file():
            if runs.read_lines(metrics):
                raise ValueError(f"{path}: is missing, so the run in {metrics} cannot go on")
            runs.write_description(out, self.described)
            learners, done = self._first(), 0
            self._save(out, learners, done)
            return learners, done
        header, learners = checkpoint.load(path, "checkpoint", self._blank())
        done = header["iteration"]
        if header["run"] != runs.fingerprint(self.described):
            raise ValueError(f"{path}: belongs to another run than {out / runs.DESCRIPTION}")
        if done > self.plan.settings.iterations:
            raise ValueError(
                f"iterations: {out} holds a run of {done}, more than the "
                f"{self.plan.settings.iterations} asked for; choose another folder"
            )
        for name, rows in ((runs.METRICS, len(self.seeds)), (runs.TIMINGS, 1)):
            runs.keep_lines(out / name, done, rows)
        description = runs.carried_on(runs.read_description(out), self.described, done)
        if runs.read_description(out) != description:
            runs.write_description(out, description)
        return jax.tree.map(jnp.asarray, learners), done

    def read_checkpoint(self, out: Path) -> Learner:
        """The learners in a run's folder, along a leading axis of seeds; nothing is changed.

        Raises:
            ValueError: the checkpoint is missing, damaged or another run's; the message has its path.
        """
        path = out / runs.CHECKPOINT
        header, learners = checkpoint.load(path, "checkpoint", self._blank())
        if header["run"] != runs.fingerprint(self.described):
            raise ValueError(f"{path}: belongs to another run than {out / runs.DESCRIPTION}")
        return learners

    def _write(
        self, out: Path, learners: Learner, done: int, rows: list[Row], seconds: float
    ) -> None:
        """Measurements first, then the checkpoint: a kill between the two repeats, and loses nothing."""
        first = rows[0]["iteration"]
        timings = [{"iteration": i, "seconds": seconds} for i in range(first, done)]
        runs.append_lines(out / runs.TIMINGS, timings)
        runs.append_lines(out / runs.METRICS, rows)
        self._save(out, learners, done)

    def _save(self, out: Path, learners: Learner, done: int) -> None:
        header = {
            "kind": "checkpoint",
            "version": __version__,
            "run": runs.fingerprint(self.described),
            "iteration": done,
        }
        checkpoint.save(out / runs.CHECKPOINT, header, learners)

    def _rows(self, metrics: Mapping[str, np.ndarray], done: int, count: int) -> list[Row]:
        return [
            {
                "iteration": done + i,
                "seed": seed,
                **{name: np.asarray(value[i][s]).tolist() for name, value in metrics.items()},
            }
            for i in range(count)
            for s, seed in enumerate(self.seeds)
        ]

    def _check_finite(self, rows: list[Row], learners: Learner, out: Path | None) -> None:
        """Stops before anything that is not finite is written or given back."""
        kept = f"; the checkpoint in {out} stands" if out is not None else ""
        for row in rows:
            where = f"in iteration {row['iteration']} of seed {row['seed']}"
            bad = row.pop("bad_step")
            if bad >= 0:
                raise TrainingError(
                    f"{self.env.name} returned something that is not a finite number at step "
                    f"{bad} of an episode, {where}{kept}"
                )
            for name, value in row.items():
                if not np.isfinite(value).all():
                    raise TrainingError(
                        f"{name} on {self.env.name} is not a finite number {where}{kept}"
                    )
        for name, leaf in checkpoint.named_leaves(learners).items():
            healthy = np.isfinite(leaf).reshape(len(self.seeds), -1).all(1)
            if not healthy.all():
                raise TrainingError(
                    f"training on {self.env.name} diverged: {name.lstrip('.')} is not finite after "
                    f"iteration {rows[-1]['iteration']} of seed "
                    f"{self.seeds[int(np.argmin(healthy))]}{kept}"
                )

    def _agents(self, learners: Learner) -> list[Agent]:
        every = jax.device_get(learners)
        return [
            Agent(
                policy=jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), every.policy),
                observations=jax.tree.map(
                    lambda leaf, i=i: np.asarray(leaf[i]), every.sight.observations
                ),
                algorithm=self.algorithm.name,
                settings=self.plan.settings,
                limits=self.plan.limits,
                seed=seed,
                environment=self.env,
                description=self.described["environment"],
            )
            for i, seed in enumerate(self.seeds)
        ]


def check_disturbed(env: Environment, radius: float) -> None:
    """Refuses a radius, or a device, that is of no use to a simulator outside JAX.

    Raises:
        ValueError: nothing can be disturbed, or it cannot be stepped from this device.
    """
    if not env.is_hosted:
        return
    noise = env.disturbance
    if radius > 0 and isinstance(noise, GaussianNoise) and not any(noise.scale):
        raise ValueError(
            f"radius: nothing of {env.name} can be disturbed within {radius:g}; say where it "
            "enters, as in hf.disturb(…, channel=hf.Parameters(mass=0.3))"
        )
    if not env.is_replayable and jax.default_backend() != "cpu":
        raise ValueError(
            f"environment: {env.name} has to be stepped in turn; set JAX_PLATFORMS=cpu for it"
        )


@eqx.filter_jit
def _first(
    plan: Plan, env: Environment, keys: jax.Array, numbers: tuple[np.ndarray, ...]
) -> Learner:
    """The learners of all seeds, along a leading axis, with their radius, limits and trust region."""

    def one(key: jax.Array) -> Learner:
        return Learner.create(plan, env, key).with_numbers(*map(jnp.asarray, numbers))

    learners = side_by_side(one, keys)
    # Not weakly typed, as they are not when they come from a checkpoint: one program for both.
    return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, leaf.dtype), learners)


@compiled
def _iterations(
    algorithm: Algorithm,
    plan: Plan,
    most: int,
    env: Environment,
    learners: Learner,
    count: jax.Array,
) -> tuple[Learner, dict[str, jax.Array]]:
    """So many iterations of all seeds, and what each of them measured, in the first `count` rows."""

    def one(learners: Learner) -> tuple[Learner, dict[str, jax.Array]]:
        return side_by_side(lambda learner: algorithm.function(plan, env, learner), learners)

    # Conjugate gradients do not forgive the short products of tensor cores.
    with jax.default_matmul_precision("float32"):
        shapes = jax.eval_shape(one, learners)[1]
        rows = jax.tree.map(lambda s: jnp.zeros((most, *s.shape), s.dtype), shapes)

        def body(i: jax.Array, carry: tuple[Learner, Any]) -> tuple[Learner, Any]:
            learners, rows = carry
            learners, row = one(learners)
            return learners, jax.tree.map(lambda all_, new: all_.at[i].set(new), rows, row)

        return whole(lax.fori_loop(0, count, body, (learners, rows)))


def _described(
    env: Environment, algorithm: str, plan: Plan, seeds: tuple[int, ...]
) -> dict[str, Any]:
    """What the run is, as it reads when it comes back from JSON."""
    device = jax.devices()[0]
    try:
        environment = json.loads(json.dumps(env.description(), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"environment: the description of {env.name} cannot be written as JSON ({error})"
        ) from error
    description = {
        "format": runs.FORMAT,
        "algorithm": algorithm,
        "environment": environment,
        "costs": list(env.cost_names),
        "settings": plan.settings.to_dict(),
        "limits": list(plan.limits),
        "robust": plan.robust,
        "constrained": plan.constrained,
        "seeds": list(seeds),
        "made_with": {
            "holdfast": __version__,
            "jax": jax.__version__,
            "device": f"{device.platform}: {device.device_kind}",
            "devices": plan.devices,
        },
    }
    return json.loads(json.dumps(description))
