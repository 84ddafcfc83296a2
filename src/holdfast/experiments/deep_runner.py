"""Runs the experiments in simulators: training, then stress; what is on disk is not done again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from holdfast.deep import runs
from holdfast.deep.agent import Agent
from holdfast.deep.environment import Environment
from holdfast.deep.stress import stress
from holdfast.deep.stress_result import Stress
from holdfast.deep.train import prepare, train
from holdfast.environments.simulators import SIMULATORS
from holdfast.experiments.configuration import DeepExperiment, TrainingJob
from holdfast.report.training import progress_on, tests_on

_STRESS = "stress.json"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training job's measurements.

    Attributes:
        job: what was run.
        rows: of `metrics.jsonl`, every iteration and seed.
        stress: what noise and attacks left, if the job is stressed.
    """

    job: TrainingJob
    rows: list[dict[str, Any]]
    stress: Stress | None

    def curve(self, name: str, index: int | None = None) -> np.ndarray:
        """A measurement by seed and iteration, (seeds, iterations)."""
        seeds = sorted({row["seed"] for row in self.rows})
        values = {
            seed: [
                row[name] if index is None else row[name][index]
                for row in self.rows
                if row["seed"] == seed
            ]
            for seed in seeds
        }
        return np.array([values[seed] for seed in seeds])


@dataclasses.dataclass(frozen=True)
class DeepResults:
    """All that an experiment measured."""

    experiment: DeepExperiment
    runs: Mapping[TrainingJob, Trained]

    def of(self, algorithm: str, trust_region: float, *, noise: bool = True) -> Trained:
        """The run of an algorithm with a step size.

        Raises:
            KeyError: there is none.
        """
        for job, trained in self.runs.items():
            if (job.algorithm, job.trust_region, job.noise) == (algorithm, trust_region, noise):
                return trained
        raise KeyError(f"{algorithm}, {trust_region:g}, noise {noise}")


def run_deep(
    experiment: DeepExperiment, folder: Path, *, stream: TextIO | None = None
) -> DeepResults:
    """Trains and stresses whatever has not been yet, and gives everything.

    Each training run has a folder of its own in `folder`; an interrupt or a kill loses an iteration at
    most, and the same call goes on.

    Arguments:
        experiment: what to run.
        folder: for all of it.
        stream: where progress goes; stderr if left out.
    """
    stream = sys.stderr if stream is None else stream
    results = {}
    for job in experiment.jobs():
        out = folder / job.folder
        agents = _train(job, out, stream)
        found = _stress(experiment, agents, out, stream) if experiment.is_stressed(job) else None
        results[job] = Trained(job, runs.read_lines(out / runs.METRICS), found)
    return DeepResults(experiment, results)


def _simulator(job: TrainingJob) -> Environment:
    return SIMULATORS[job.environment](**({} if job.noise else {"noise_scale": 0.0}))


def _train(job: TrainingJob, out: Path, stream: TextIO) -> list[Agent]:
    env = _simulator(job)
    print(f"{job}: training", file=stream, flush=True)
    run = prepare(env, job.algorithm, **job.train_arguments())
    with progress_on(stream, run.describe()) as progress:
        return train(env, job.algorithm, out=out, callback=progress, **job.train_arguments())


def _stress(experiment: DeepExperiment, agents: list[Agent], out: Path, stream: TextIO) -> Stress:
    asked: dict[str, Any] = {
        "radii": experiment.attacks,
        "noise": experiment.noise,
        "action_noise": experiment.action_noise,
        "episodes": experiment.episodes,
        "restarts": experiment.restarts,
        "updates": experiment.updates,
    }
    path = out / _STRESS
    trained = max(file.stat().st_mtime for file in runs.agent_files(out))
    if path.is_file() and path.stat().st_mtime >= trained:
        found = Stress.load(path)
        if _same(found, agents, asked):
            return found
    with tests_on(stream) as progress:
        found = stress(agents, callback=progress, **asked)
    found.save(path)
    return found


def _same(found: Stress, agents: list[Agent], asked: Mapping[str, Any]) -> bool:
    """Whether an earlier result is what would be measured now."""
    levels = {
        kind: {row.level for row in found.rows if row.kind == kind}
        for kind in ("attack", "noise", "action noise")
    }
    return (
        len(found.agents) == len(agents)
        and levels["attack"] == set(asked["radii"])
        and levels["noise"] == set(asked["noise"])
        and levels["action noise"] == set(asked["action_noise"])
        and all(found.setup[name] == asked[name] for name in ("episodes", "restarts"))
        and found.setup["kernels"][0]["updates"] == asked["updates"]
    )
