"""The verb `train`, and the run that it performs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from holdfast._support.arguments import check_whole_number
from holdfast._support.devices import check_devices, on_devices, over_devices, row
from holdfast._version import __version__
from holdfast.registry import SIMULATOR_ALGORITHMS, Algorithm
from holdfast.simulators.environment import (
    Environment,
    TrainingError,
    check_disturbed,
    check_environment,
)
from holdfast.simulators.failures import host_failures
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.training import checkpoint, runs
from holdfast.simulators.training.learner import Learner, first_learners, iterations
from holdfast.simulators.training.settings import Plan, Settings, cost_limits, read_settings
from holdfast.simulators.training.tensorboard import event_log

__all__ = ["TrainingError", "TrainingRun", "prepare", "train"]

Row = dict[str, Any]
Callback = Callable[[Sequence[Row]], None]
AnyAlgorithm = str | Algorithm | Callable[..., Any]

# Iterations per compiled call. On an accelerator every call is a synchronisation with the host; on a
# CPU it costs nothing, and rows appear one by one.
_CPU_CHUNK, _ACCELERATOR_CHUNK = 1, 10


def train(
    environment: Environment,
    algorithm: AnyAlgorithm = "rcpo",
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    out: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    devices: int = 1,
    algorithm_settings: object = None,
    **settings: Any,
) -> Agent | list[Agent]:
    """Train a policy that keeps its limits under the worst-case kernels of a simulator.

    Arguments:
        environment: a registered name, a table, an `Environment`, the result of `hf.disturb`, or a
            Gymnasium environment or its id.
        algorithm: "rcpo"; "pcpo" or "cpo", without an adversary; "trpo", without limits either; the
            name of a registered algorithm; an `Algorithm`; or a function
            `(plan, environment, state) -> (state, metrics)` that performs one iteration.
        seeds: number of policies to train side by side, with seeds 0, 1, …, or a list of seeds; the
            result is then a list of agents. On a CPU each agent is the one that its seed gives alone.
        seed: seed of a single policy.
        steps: simulator steps in the batches of policy updates, in place of `iterations`.
        out: folder for metrics, checkpoints, agents and TensorBoard events. If it contains the same
            run, training continues from its checkpoint, with the same result as an uninterrupted run.
            A finished run returns its agents, and continues if there are more iterations.
        callback: function called with the rows of a few iterations, one per iteration and seed.
        devices: number of devices over which the episodes of every batch are divided. Up to rounding
            the result is that of one device if the number divides every batch. A run may continue
            on another number, no longer bit for bit; `run.json` records it.
        algorithm_settings: settings of the algorithm, as its settings record or a mapping; they reach
            the algorithm's function as `plan.algorithm_settings`.
        **settings: fields of `Settings`, such as radius, cost_limit, limit_on, iterations, batch_size
            and trust_region; adversary takes an `AdversarySettings` or a mapping.

    Returns:
        The agent, or with `seeds` a list of agents.

    Raises:
        ValueError: an argument cannot be used, or `out` contains another run or a damaged one. The
            message names it; nothing is overwritten.
        TrainingError: the simulator returned a value that is not finite, or failed; the last
            checkpoint stays valid.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "pcpo", limit_on="discounted", iterations=2, batch_size=300)
        >>> agent.limits, agent.predict([0, 0, 1, 0, 0]) in (0, 1)
        ((-6.0,), True)
    """
    run = prepare(
        environment,
        algorithm,
        seeds=seeds,
        seed=seed,
        steps=steps,
        devices=devices,
        algorithm_settings=algorithm_settings,
        **settings,
    )
    agents = run.train(None if out is None else Path(out), callback)
    return agents[0] if seeds is None else agents


def prepare(
    environment: Environment,
    algorithm: AnyAlgorithm,
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    devices: int = 1,
    algorithm_settings: object = None,
    **settings: Any,
) -> TrainingRun:
    """Return the run that `train` performs, after all checks of its arguments.

    Raises:
        ValueError: an argument cannot be used; the message names it.
    """
    env, chosen = environment, _algorithm(algorithm)
    asked, every = read_settings(settings, steps), _seeds(seed, seeds)
    if asked.radius > 0 and not chosen.robust:
        raise ValueError(
            f"radius: {chosen.name} uses the nominal kernel, got {asked.radius}; use rcpo"
        )
    check_disturbed(env, asked.radius)
    if env.is_hosted and asked.adversary.gradient == "pathwise":
        raise ValueError(
            f"gradient: {env.name} runs outside JAX and has no derivatives; use 'score'"
        )
    if env.is_hosted and devices > 1:
        raise ValueError(f"devices: {env.name} runs outside JAX, on one device; got {devices}")
    check_devices(devices)
    limits = cost_limits(env, asked)
    plan = Plan.create(
        env,
        asked,
        robust=chosen.robust,
        constrained=chosen.constrained,
        devices=devices,
        algorithm_settings=chosen.read_settings(algorithm_settings, "algorithm_settings"),
    )
    check_environment(env)
    run = TrainingRun(env, chosen, asked, limits, plan, every)
    run.describe(), run.state_shapes()  # both raise if the environment cannot be used
    return run


def _seeds(seed: int, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    if seeds is not None and seed != 0:
        raise ValueError("seed: give either seed or seeds, not both")
    if isinstance(seeds, numbers.Integral):
        check_whole_number("seeds", seeds, least=1)
        return tuple(range(int(seeds)))
    if seeds is None:
        seeds = (seed,)
    elif isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ValueError(f"seeds: expected a whole number or a list of them, got {seeds!r}")
    chosen = tuple(seeds)
    for each in chosen:
        check_whole_number("seed", each, least=0)
        if each >= 2**32:  # keys are made of 32 bits
            raise ValueError(f"seed: expected a whole number under 2**32, got {each}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"seeds: expected at least one, all different, got {list(chosen)}")
    return tuple(int(each) for each in chosen)


def _algorithm(given: AnyAlgorithm) -> Algorithm:
    if isinstance(given, str):
        given = SIMULATOR_ALGORITHMS.find(given)
    if isinstance(given, Algorithm):
        return given
    if not callable(given):
        raise ValueError(f"algorithm: expected a name, an Algorithm or a function, got {given!r}")
    return Algorithm(getattr(given, "__name__", type(given).__name__), given)


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """A training run: everything that determines its result.

    Attributes:
        env: the simulator.
        algorithm: the algorithm.
        settings: all settings.
        limits: limit of every cost.
        plan: the static part, compiled into the program.
        seeds: the seeds.
    """

    env: Environment
    algorithm: Algorithm
    settings: Settings
    limits: tuple[float, ...]
    plan: Plan
    seeds: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        """Return the content of `run.json`, as JSON gives it back.

        Raises:
            ValueError: the description of the environment is not JSON.
        """
        device, own = jax.devices()[0], self.plan.algorithm_settings
        try:
            environment = json.loads(json.dumps(self.env.description(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"environment: the description of {self.env.name} cannot be written as JSON "
                f"({error})"
            ) from error
        description = {
            "format": runs.FORMAT,
            "algorithm": self.algorithm.name,
            **({} if own is None else {"algorithm_settings": dataclasses.asdict(own)}),
            "environment": environment,
            "costs": list(self.env.cost_names),
            "settings": self.settings.to_dict(),
            "limits": list(self.limits),
            "robust": self.plan.robust,
            "constrained": self.plan.constrained,
            "seeds": list(self.seeds),
            "made_with": {
                "holdfast": __version__,
                "jax": jax.__version__,
                "device": f"{device.platform}: {device.device_kind}",
                "devices": self.plan.devices,
            },
        }
        return json.loads(json.dumps(description))

    def train(self, out: Path | None, callback: Callback | None = None) -> list[Agent]:
        """Perform the missing iterations and return the agents."""
        with contextlib.closing(self.env):
            if out is not None:
                return self._train_in(out, callback)
            learners = self.first()
            steps = self._advance(learners, 0)
            for learners, rows, _ in steps:  # noqa: B007
                if callback is not None:
                    callback(rows)
            return self._agents(learners)

    def _train_in(self, out: Path, callback: Callback | None) -> list[Agent]:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out: {out} is not a folder")
        description = self.describe()
        with runs.locked(out):
            learners, done = checkpoint.resume(out, description, self.state_shapes())
            if learners is None:
                learners = self.first()
                checkpoint.save_learners(out, description, learners, 0)
            if done < self.settings.iterations:
                with event_log(out, description) as write_events:
                    steps = self._advance(learners, done, f" in {out}")
                    for learners, rows, seconds in steps:
                        runs.append_rows(out, rows, seconds)
                        done = rows[-1]["iteration"] + 1
                        checkpoint.save_learners(out, description, learners, done)
                        write_events(rows)
                        if callback is not None:
                            callback(rows)
            agents = self._agents(learners)
            runs.write_agents(out, agents)
        return agents

    def first(self) -> Learner:
        """Return the initial state of every seed."""
        return first_learners(*self._initial)

    def state_shapes(self) -> Learner:
        """Return the shapes of the state of every seed."""
        return eqx.filter_eval_shape(first_learners, *self._initial)

    @property
    def _initial(self) -> tuple[Any, ...]:
        return self.plan, self.env, self.settings, self.limits, self.seeds

    def _advance(
        self, learners: Learner, done: int, where: str = ""
    ) -> Iterator[tuple[Learner, list[Row], float]]:
        """Perform the remaining iterations; yield states, rows and seconds of a few at a time."""
        total, devices = self.settings.iterations, self.plan.devices
        chunk = _CPU_CHUNK if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK
        learners = on_devices(learners, devices)
        while done < total:
            count = min(chunk, total - done)
            kept = f"; the checkpoint of iteration {done}{where} stays valid" if where else ""
            start = time.perf_counter()
            with host_failures(self.env, kept), over_devices(devices):
                learners, metrics = iterations(
                    self.algorithm, self.plan, chunk, self.env, learners, jnp.asarray(count)
                )
                rows = self._rows(jax.device_get(metrics), done, count)
            self._check_finite(rows, learners, kept)
            yield learners, rows, (time.perf_counter() - start) / count
            done += count

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

    def _check_finite(self, rows: list[Row], learners: Learner, kept: str) -> None:
        """Raise a TrainingError before a value that is not finite is written or returned."""
        for each in rows:
            where = f"in iteration {each['iteration']} of seed {each['seed']}"
            bad = each.pop("bad_step", -1)
            if bad >= 0:
                raise TrainingError(
                    f"{self.env.name} returned a value that is not finite at step {bad} of an "
                    f"episode, {where}{kept}"
                )
            for name, value in each.items():
                if not np.isfinite(value).all():
                    raise TrainingError(f"{name} on {self.env.name} is not finite {where}{kept}")
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(learners)):
            healthy = np.isfinite(leaf).reshape(len(self.seeds), -1).all(1)
            if not healthy.all():
                raise TrainingError(
                    f"training on {self.env.name} diverged: "
                    f"{jax.tree_util.keystr(path).lstrip('.')} is not finite after iteration "
                    f"{rows[-1]['iteration']} of seed {self.seeds[int(np.argmin(healthy))]}{kept}"
                )

    def _agents(self, learners: Learner) -> list[Agent]:
        learners = jax.device_get(learners)
        trained = (learners.policy, learners.sight.observations)
        environment = self.describe()["environment"]
        return [
            Agent(
                *jax.tree.map(np.asarray, row(trained, i)),
                algorithm=self.algorithm.name,
                settings=self.settings,
                limits=self.limits,
                seed=seed,
                environment=self.env,
                description=environment,
            )
            for i, seed in enumerate(self.seeds)
        ]
