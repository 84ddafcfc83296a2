"""The verb `train`, and the run that it performs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from holdfast._support.devices import check_devices, on_devices, over_devices, row
from holdfast._support.files import locked
from holdfast._version import __version__
from holdfast.registry import Algorithm
from holdfast.simulators.check_environment import check_disturbed, check_environment
from holdfast.simulators.environment import Environment, TrainingError
from holdfast.simulators.failures import check_finite_training, host_failures
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.memory import Remembering, remembering
from holdfast.simulators.training import checkpoint, runs
from holdfast.simulators.training.arguments import (
    AnyAlgorithm,
    Callback,
    find_algorithm,
    fingerprints,
    inherited,
    read_seeds,
    read_start,
    start_from,
    takes_agents,
)
from holdfast.simulators.training.certified import Attempts, CertifiedGoal
from holdfast.simulators.training.learner import Learner, first_learners, iterations
from holdfast.simulators.training.settings import Plan, Settings, cost_limits, read_settings
from holdfast.simulators.training.tensorboard import event_log
from holdfast.simulators.training.wandb_log import RowLog, wandb_log

__all__ = ["TrainingError", "TrainingRun", "prepare", "train"]

Row = dict[str, Any]

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
    start: Agent | Sequence[Agent] | None = None,
    wandb: str | None = None,
    devices: int = 1,
    algorithm_settings: object = None,
    certified: float | None = None,
    proof_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Agent | list[Agent]:
    """Train a policy that keeps its limits under the worst-case kernels of a simulator.

    Arguments:
        environment: a registered name, a table, an `Environment`, the result of `hf.disturb`, or a
            Gymnasium environment or its id.
        algorithm: "rcpo"; "ppo-lag" or "trpo-lag", with adversaries if radius > 0; "pcpo" or "cpo",
            without an adversary; "trpo", without limits either; the name of a registered algorithm; an
            `Algorithm`; or a function `(plan, environment, state) -> (state, metrics)` that performs
            one iteration.
        seeds: number of policies to train side by side, with seeds 0, 1, …, or a list of seeds; the
            result is then a list of agents. On a CPU each agent is the one that its seed gives alone.
        seed: seed of a single policy.
        steps: simulator steps in the batches of policy updates, in place of `iterations`.
        out: folder for metrics, checkpoints, agents and TensorBoard events. If it contains the same
            run, training continues from its checkpoint, with the same result as an uninterrupted run.
            A finished run returns its agents, and continues if there are more iterations.
        callback: function called after every few iterations with their rows, one per iteration and
            seed. A function of two arguments also gets the current agents, as a list. If it returns
            True, training stops and the current agents are the result; a run in `out` can continue.
        start: agent whose policy is the initial policy, or one agent for each seed. The radius, the
            limits, the algorithm and the environment may be others; observations and actions have to
            be the same. Critics and adversaries start anew.
        wandb: name of a Weights & Biases project that receives the metrics, one run for each seed.
        devices: number of devices over which the episodes of every batch are divided. Up to rounding
            the result is that of one device if the number divides every batch. A run may continue
            on another number, no longer bit for bit; `run.json` records it.
        algorithm_settings: settings of the algorithm, as its settings record or a mapping; they reach
            the algorithm's function as `plan.algorithm_settings`.
        certified: confidence with which the limits have to be proved, such as 0.99. Every few iterations
            the policy is certified at this radius, and training aims lower until the *bound* of
            `certify` is within the limit. The result is the proved policy with the highest reward, and
            `Agent.certificate` is its proof. If none is proved within the iterations, a warning says so,
            and the result is the policy whose bound is closest to its limit.
        proof_options: arguments of these certificates, as in `certify`: cost_range, most_cost,
            reward_range, episodes, draws, updates and deterministic; and `every`, the number of
            iterations between two attempts, by default 25.
        **settings: fields of `Settings`. Omitted fields come from `Environment.training_settings`, then
            from the defaults of `Settings`. Examples are radius, cost_limit, limit_on, iterations,
            batch_size and trust_region; adversary takes an `AdversarySettings` or a mapping.

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
        start=start,
        devices=devices,
        algorithm_settings=algorithm_settings,
        certified=certified,
        proof_options=proof_options,
        **settings,
    )
    agents = run.train(None if out is None else Path(out), callback, wandb)
    for agent in agents:
        if agent.certificate is not None and agent.certificate.verdict != "holds":
            warnings.warn(f"{agent.label}: {agent.certificate.assumptions[0]}", stacklevel=2)
    return agents[0] if seeds is None else agents


def prepare(
    environment: Environment,
    algorithm: AnyAlgorithm,
    *,
    seeds: int | Sequence[int] | None = None,
    seed: int = 0,
    steps: int | None = None,
    start: Agent | Sequence[Agent] | None = None,
    devices: int = 1,
    algorithm_settings: object = None,
    certified: float | None = None,
    proof_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> TrainingRun:
    """Return the run that `train` performs, after all checks of its arguments.

    Raises:
        ValueError: an argument cannot be used; the message names it.
    """
    env, chosen = environment, find_algorithm(algorithm)
    asked = read_settings({**env.training_settings, **inherited(start), **settings}, steps)
    every = read_seeds(seed, seeds)
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
    env = remembering(env, asked.memory)
    limits = cost_limits(env, asked)
    plan = Plan.create(
        env,
        asked,
        robust=chosen.robust and (asked.radius > 0 or not chosen.nominal_at_zero),
        constrained=chosen.constrained,
        devices=devices,
        first_state=chosen.first_state,
        algorithm_settings=chosen.read_settings(algorithm_settings, "algorithm_settings"),
    )
    check_environment(env, steps=0)
    agents = read_start(start, env, asked, len(every))
    goal = CertifiedGoal.read(certified, proof_options)
    if goal is not None:
        goal.check(env, asked.radius, asked.memory, plan.constrained)
    run = TrainingRun(env, chosen, asked, limits, plan, every, agents, goal)
    run.describe(), run.state_shapes()  # both raise if the environment cannot be used
    return run


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
        start: the agent from which each seed starts; empty for policies that ignore the state.
        goal: the certificate that training aims at, or None.
    """

    env: Environment
    algorithm: Algorithm
    settings: Settings
    limits: tuple[float, ...]
    plan: Plan
    seeds: tuple[int, ...]
    start: tuple[Agent, ...] = ()
    goal: CertifiedGoal | None = None

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
            **({"start": fingerprints(self.start)} if self.start else {}),
            **({"certified": self.goal.describe()} if self.goal is not None else {}),
            "made_with": {
                "holdfast": __version__,
                "jax": jax.__version__,
                "device": f"{device.platform}: {device.device_kind}",
                "devices": self.plan.devices,
            },
        }
        return json.loads(json.dumps(description))

    def train(
        self, out: Path | None, callback: Callback | None = None, wandb: str | None = None
    ) -> list[Agent]:
        """Perform the missing iterations and return the agents."""
        with contextlib.closing(self.env), wandb_log(wandb, out, self.describe()) as log:
            if out is not None:
                return self._train_in(out, callback, log)
            learners, done, attempts = self.first(), 0, self._attempts(None, 0)
            steps = self._advance(learners, 0, attempts)
            for learners, rows, _ in steps:
                done = rows[-1]["iteration"] + 1
                log(rows)
                if self._stops(callback, rows, learners):
                    break
            return self._results(learners, done, attempts)

    def _train_in(self, out: Path, callback: Callback | None, log: RowLog) -> list[Agent]:
        if out.exists() and not out.is_dir():
            raise ValueError(f"out: {out} is not a folder")
        description = self.describe()
        with locked(out, "training"):
            learners, done = checkpoint.resume(out, description, self.state_shapes())
            if learners is None:
                learners = self.first()
                checkpoint.save_learners(out, description, learners, 0)
            attempts = self._attempts(out, done)
            if done < self.settings.iterations:
                with event_log(out, description) as write_events:
                    steps = self._advance(learners, done, attempts, f" in {out}")
                    for learners, rows, seconds in steps:
                        runs.append_rows(out, rows, seconds)
                        done = rows[-1]["iteration"] + 1
                        checkpoint.save_learners(out, description, learners, done)
                        write_events(rows)
                        log(rows)
                        if self._stops(callback, rows, learners):
                            break
            agents = self._results(learners, done, attempts)
            runs.write_agents(out, agents)
        return agents

    def _stops(self, callback: Callback | None, rows: list[Row], learners: Learner) -> bool:
        """Call the callback and return whether it stops the run."""
        if callback is None:
            return False
        if not takes_agents(callback):
            return callback(rows) is True
        return callback(rows, self._agents(learners, rows[-1]["iteration"] + 1)) is True

    def first(self) -> Learner:
        """Return the initial state of every seed."""
        learners = first_learners(*self._initial)
        return start_from(learners, self.start) if self.start else learners

    def state_shapes(self) -> Learner:
        """Return the shapes of the state of every seed."""
        return eqx.filter_eval_shape(first_learners, *self._initial)

    @property
    def _initial(self) -> tuple[Any, ...]:
        return self.plan, self.env, self.settings, self.limits, self.seeds

    def _attempts(self, out: Path | None, done: int) -> Attempts | None:
        return None if self.goal is None else Attempts(self.goal, self.env, out, done)

    def _results(self, learners: Learner, done: int, attempts: Attempts | None) -> list[Agent]:
        agents = self._agents(learners, done)
        return agents if attempts is None else attempts.results(agents, done)

    def _advance(
        self, learners: Learner, done: int, attempts: Attempts | None, where: str = ""
    ) -> Iterator[tuple[Learner, list[Row], float]]:
        """Perform the remaining iterations; yield states, rows and seconds of a few at a time."""
        total, devices = self.settings.iterations, self.plan.devices
        chunk = _CPU_CHUNK if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK
        learners = on_devices(learners, devices)
        while done < total:
            count = min(chunk, total - done)
            if attempts is not None:
                count = min(count, attempts.goal.every - done % attempts.goal.every)
            kept = f"; the checkpoint of iteration {done}{where} stays valid" if where else ""
            start = time.perf_counter()
            with host_failures(self.env, kept), over_devices(devices):
                learners, metrics = iterations(
                    self.algorithm, self.plan, chunk, self.env, learners, jnp.asarray(count)
                )
                rows = self._rows(jax.device_get(metrics), done, count)
            check_finite_training(self.env, self.seeds, rows, learners, kept)
            seconds = (time.perf_counter() - start) / count
            done += count
            if attempts is not None and attempts.goal.is_due(done, total):
                agents = self._agents(learners, done)
                learners = attempts.follow(learners, agents, rows[-len(agents) :])
                learners = on_devices(learners, devices)
            yield learners, rows, seconds

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

    def _agents(self, learners: Learner, iterations: int) -> list[Agent]:
        """Return the agents after `iterations` iterations."""
        learners = jax.device_get(learners)
        # An agent of a run that was stopped is not one of a finished run.
        settings = dataclasses.replace(self.settings, iterations=max(1, iterations))
        trained = (learners.policy, learners.sight.observations)
        environment = self.describe()["environment"]
        # The agent keeps its own memory, so that it belongs to the environment without one.
        env = self.env.inner if isinstance(self.env, Remembering) else self.env
        return [
            Agent(
                *jax.tree.map(np.asarray, row(trained, i)),
                algorithm=self.algorithm.name,
                settings=settings,
                limits=self.limits,
                seed=seed,
                environment=env,
                description=environment,
            )
            for i, seed in enumerate(self.seeds)
        ]
