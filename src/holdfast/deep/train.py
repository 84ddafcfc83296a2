"""The verb for simulators: `train`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from holdfast._arguments import check_whole_number
from holdfast._model import RobustCMDP
from holdfast._version import __version__
from holdfast.deep import checkpoint, runs
from holdfast.deep._devices import side_by_side
from holdfast.deep.agent import Agent
from holdfast.deep.algorithms import ALGORITHMS
from holdfast.deep.configuration import AdversarySettings, Settings
from holdfast.deep.environment import Environment
from holdfast.deep.learner import Learner, Plan

Row = dict[str, Any]
Callback = Callable[[Sequence[Row]], None]

# Iterations between two looks at what came out: on an accelerator each look is a wait.
_CHUNK = {"cpu": 1}
_ACCELERATOR_CHUNK = 10


class TrainingError(RuntimeError):
    """Training cannot go on; what was saved before stands."""


@overload
def train(
    environment: str | RobustCMDP | Environment,
    algorithm: str = ...,
    *,
    seeds: None = ...,
    seed: int = ...,
    steps: int | None = ...,
    out: str | PathLike[str] | None = ...,
    callback: Callback | None = ...,
    **settings: Any,
) -> Agent: ...


@overload
def train(
    environment: str | RobustCMDP | Environment,
    algorithm: str = ...,
    *,
    seeds: int | Sequence[int],
    seed: int = ...,
    steps: int | None = ...,
    out: str | PathLike[str] | None = ...,
    callback: Callback | None = ...,
    **settings: Any,
) -> list[Agent]: ...


def train(
    environment: str | RobustCMDP | Environment,
    algorithm: str = "rcpo",
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    out: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> Agent | list[Agent]:
    """Trains a policy that keeps its limits under the worst-case kernels of a simulator.

    Arguments:
        environment: a name in `hf.environments.SIMULATORS`, a table, or a simulator of your own.
        algorithm: "rcpo", or without an adversary "pcpo", "cpo" and, without limits, "trpo".
        seeds: how many policies to train side by side, with seeds 0, 1, …, or which seeds; a list of agents
            comes back.
        seed: of the one policy that is trained where `seeds` is left out.
        steps: simulator steps in the batches of policy updates, instead of `iterations`.
        out: folder for metrics, checkpoints and the agents. Where it holds the same run already, training
            goes on from its checkpoint, and gives the same as if it had never stopped.
        callback: called with the rows of each few iterations, one for every iteration and seed.
        **settings: fields of `Settings`, such as radius, cost_limit, limit_on, iterations, batch_size and
            trust_region; adversary takes an `AdversarySettings` or a mapping.

    Returns:
        The agent, or with `seeds` a list of them.

    Raises:
        ValueError: an argument cannot be used; the message names it, before any work.
        TrainingError: the simulator returned something that is not finite; the last checkpoint stands.

    Example:
        >>> import holdfast as hf
        >>> agent = hf.train("point-gather", "rcpo", radius=0.2, cost_limit=0.1, iterations=1, batch_size=300)
        >>> agent.limits, agent.settings.radius
        ((0.1,), 0.2)
    """
    env = as_simulator(environment)
    several = seeds is not None
    chosen = _seeds(seed if seeds is None else seeds, several=several)
    run = Run.create(env, algorithm, _settings(settings, steps), chosen)
    agents = run.train(None if out is None else Path(out), callback)
    return agents if several else agents[0]


def as_simulator(environment: str | RobustCMDP | Environment) -> Environment:
    """A simulator from its name, from a table, or as it is.

    Raises:
        ValueError: there is none of that name.
        TypeError: it is none of the three.
    """
    from holdfast.environments.simulators import SIMULATORS
    from holdfast.environments.table_simulator import TableSimulator

    if isinstance(environment, Environment):
        return environment
    if isinstance(environment, RobustCMDP):
        return TableSimulator(environment)
    if not isinstance(environment, str):
        raise TypeError(
            "environment: expected a name, a RobustCMDP or an Environment, "
            f"got {type(environment).__name__}"
        )
    if environment not in SIMULATORS:
        known = ", ".join(SIMULATORS)
        raise ValueError(f"environment: expected one of {known}, got {environment!r}")
    return SIMULATORS[environment]()


def _seeds(seeds: int | Sequence[int], *, several: bool) -> tuple[int, ...]:
    if not several or not isinstance(seeds, int):
        chosen = (seeds,) if isinstance(seeds, int) else tuple(seeds)
        for each in chosen:
            check_whole_number("seed", each, least=0)
        if not chosen or len(set(chosen)) != len(chosen):
            raise ValueError(f"seeds: expected different ones, at least one, got {chosen}")
        return chosen
    check_whole_number("seeds", seeds, least=1)
    return tuple(range(seeds))


def _settings(given: dict[str, Any], steps: int | None) -> Settings:
    given = dict(given)
    limit = given.get("cost_limit")
    if limit is not None:
        given["cost_limit"] = tuple(np.atleast_1d(np.asarray(limit, float)).tolist())
    adversary = given.get("adversary")
    if isinstance(adversary, AdversarySettings):
        given["adversary"] = dataclasses.asdict(adversary)
    settings = Settings.from_dict(given)
    if steps is None:
        return settings
    if "iterations" in given:
        raise ValueError("steps: give either steps or iterations, not both")
    check_whole_number("steps", steps, least=1)
    return dataclasses.replace(settings, iterations=-(-steps // settings.batch_size))


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run: everything that decides its result."""

    env: Environment
    algorithm: str
    plan: Plan
    seeds: tuple[int, ...]

    @classmethod
    def create(
        cls, env: Environment, algorithm: str, settings: Settings, seeds: tuple[int, ...]
    ) -> Run:
        """Checks what can be checked before any work.

        Raises:
            ValueError: an argument cannot be used; the message names it.
        """
        if algorithm not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise ValueError(f"algorithm: expected one of {known}, got {algorithm!r}")
        module = ALGORITHMS[algorithm]
        if settings.radius > 0 and not module.ROBUST:
            raise ValueError(
                f"radius: {algorithm} trusts the simulator and has no use for radius "
                f"{settings.radius}; rcpo has"
            )
        plan = Plan.create(env, settings, robust=module.ROBUST, constrained=module.CONSTRAINED)
        run = cls(env, algorithm, plan, seeds)
        jax.eval_shape(lambda: run._first())  # shapes and kernels that do not fit are refused here
        return run

    def describe(self) -> dict[str, Any]:
        """What the run is, as values that JSON can hold."""
        return {
            "version": __version__,
            "algorithm": self.algorithm,
            "environment": self.env.description(),
            "settings": self.plan.settings.to_dict(),
            "limits": list(self.plan.limits),
            "seeds": list(self.seeds),
        }

    def train(self, out: Path | None, callback: Callback | None = None) -> list[Agent]:
        """Runs the iterations that are missing and gives the agents."""
        iterations = self.plan.settings.iterations
        learners, done = self._begin(out)
        advance = self._compiled()
        while done < iterations:
            count = min(self._chunk(), iterations - done)
            start = time.perf_counter()
            learners, metrics = advance(self.env, learners, jnp.asarray(count))
            rows = self._rows(jax.device_get(metrics), done, count)
            self._check_finite(rows, out)
            seconds = time.perf_counter() - start
            done += count
            if out is not None:
                self._write(out, learners, done, rows, seconds / count)
            if callback is not None:
                callback(rows)
        agents = [self._agent(learners, i) for i in range(len(self.seeds))]
        if out is not None:
            for agent in agents:
                agent.save(runs.agent_file(out, agent.seed))
        return agents

    def _chunk(self) -> int:
        return _CHUNK.get(jax.default_backend(), _ACCELERATOR_CHUNK)

    def _first(self) -> Learner:
        keys = jnp.stack([jax.random.PRNGKey(seed) for seed in self.seeds])
        return side_by_side(lambda key: Learner.create(self.plan, self.env, key), keys)

    def _compiled(self) -> Callable[..., tuple[Learner, dict[str, jax.Array]]]:
        iterate = ALGORITHMS[self.algorithm].iterate
        plan, chunk = self.plan, self._chunk()

        def advance(
            env: Environment, learners: Learner, count: jax.Array
        ) -> tuple[Learner, dict[str, jax.Array]]:
            def one(learners: Learner) -> tuple[Learner, dict[str, jax.Array]]:
                return side_by_side(lambda learner: iterate(plan, env, learner), learners)

            shapes = jax.eval_shape(one, learners)[1]
            rows = jax.tree.map(lambda s: jnp.zeros((chunk, *s.shape), s.dtype), shapes)

            def body(i: jax.Array, carry: tuple[Learner, Any]) -> tuple[Learner, Any]:
                learners, rows = carry
                learners, row = one(learners)
                return learners, jax.tree.map(lambda all_, new: all_.at[i].set(new), rows, row)

            return lax.fori_loop(0, count, body, (learners, rows))

        def precise(
            env: Environment, learners: Learner, count: jax.Array
        ) -> tuple[Learner, dict[str, jax.Array]]:
            # Conjugate gradients do not forgive the short products of tensor cores.
            with jax.default_matmul_precision("float32"):
                return advance(env, learners, count)

        return eqx.filter_jit(precise)

    def _begin(self, out: Path | None) -> tuple[Learner, int]:
        create = eqx.filter_jit(self._first)
        if out is None:
            return create(), 0
        found = runs.read_description(out)
        if found is not None:
            runs.check_same(out, found, self.describe())
        path = out / runs.CHECKPOINT
        done = 0
        if found is not None and path.is_file():
            header, learners = checkpoint.load(path, jax.eval_shape(self._first))
            done = int(header["iteration"])
            learners = jax.tree.map(jnp.asarray, learners)
        else:
            learners = create()
        out.mkdir(parents=True, exist_ok=True)
        for name in (runs.METRICS, runs.TIMINGS):
            runs.keep_lines(out / name, done)
        runs.write_description(out, self.describe())
        return learners, done

    def _write(
        self, out: Path, learners: Learner, done: int, rows: list[Row], seconds: float
    ) -> None:
        """Measurements first, then the checkpoint: a kill between the two repeats, and loses nothing."""
        runs.append_lines(out / runs.METRICS, rows)
        first = rows[0]["iteration"]
        timings = [{"iteration": i, "seconds": seconds} for i in range(first, done)]
        runs.append_lines(out / runs.TIMINGS, timings)
        header = {"kind": "checkpoint", "version": __version__, "iteration": done}
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

    def _check_finite(self, rows: list[Row], out: Path | None) -> None:
        for row in rows:
            if row["bad_step"] >= 0:
                kept = f"; the checkpoint in {out} stands" if out is not None else ""
                raise TrainingError(
                    f"{self.env.name} returned something that is not a finite number at step "
                    f"{row['bad_step']} of an episode, in iteration {row['iteration']} of seed "
                    f"{row['seed']}{kept}"
                )

    def _agent(self, learners: Learner, index: int) -> Agent:
        learner = jax.tree.map(lambda leaf: np.asarray(leaf[index]), learners)
        return Agent(
            policy=learner.policy,
            observations=learner.sight.observations,
            algorithm=self.algorithm,
            settings=self.plan.settings,
            limits=self.plan.limits,
            seed=self.seeds[index],
            environment=self.env,
            description=self.env.description(),
        )


