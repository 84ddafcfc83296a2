"""Runs the experiments in simulators: training, then stress; what is on disk is not done again."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from holdfast._support.arguments import meant
from holdfast._support.files import write_bytes
from holdfast.environments.table_simulator import SIMULATORS
from holdfast.experiments.deep_configuration import DeepExperiment, TrainingJob
from holdfast.experiments.engines import (
    Begun,
    Done,
    EngineOptions,
    Failed,
    File,
    Made,
    engine_named,
)
from holdfast.experiments.folder import write_description
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.stress import stress
from holdfast.simulators.train import prepare, train
from holdfast.simulators.training import runs

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
    """All that an experiment measured in one simulator."""

    experiment: DeepExperiment
    environment: str
    runs: Mapping[TrainingJob, Trained]

    def of(
        self,
        algorithm: str,
        trust_region: float,
        *,
        noise: bool = True,
        radius: float | None = None,
    ) -> Trained:
        """The run of an algorithm with a step size; of the first radius, where there are several.

        Raises:
            KeyError: there is none.
        """
        robust = self.experiment.radius if radius is None else radius
        for job, trained in self.runs.items():
            same = (job.algorithm, job.trust_region, job.noise) == (algorithm, trust_region, noise)
            if same and job.radius in (0.0, robust):
                return trained
        raise KeyError(f"{algorithm}, {trust_region:g}, noise {noise}")


@dataclasses.dataclass(frozen=True)
class TrainTask:
    """A training run, and its stress where there is to be one.

    Arguments:
        job: what is trained.
        asked: the arguments of `stress`, None for a run that is not stressed.
    """

    job: TrainingJob
    asked: Mapping[str, Any] | None

    @property
    def kin(self) -> str:
        """Runs of one simulator share what they can."""
        return self.job.environment

    def run(self, folder: Path | None) -> Iterator[File]:
        """Trains in the experiment's folder, or elsewhere where that cannot be reached.

        There it can go on from its checkpoint; elsewhere every file comes back at the end.
        """
        if folder is not None:
            self._run(folder / self.job.path)
            return
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / self.job.path
            self._run(out)
            for file in sorted(path for path in out.rglob("*") if path.is_file()):
                yield File(f"{self.job.path}/{file.relative_to(out).as_posix()}", file.read_bytes())

    def _run(self, out: Path) -> None:
        env = _simulator(self.job)
        agents = train(env, self.job.algorithm, out=out, **self.job.train_arguments())
        if self.asked is not None and _known_stress(out, agents, self.asked) is None:
            stress(agents, **self.asked).save(out / _STRESS)

    def __str__(self) -> str:
        return str(self.job)


def run_deep(
    experiment: DeepExperiment,
    folder: Path,
    *,
    engine: str = "inline",
    options: EngineOptions | None = None,
    stream: TextIO | None = None,
    kept: Callable[[], None] = lambda: None,
) -> tuple[list[DeepResults], list[Failed]]:
    """Trains and stresses whatever has not been yet, and gives everything, by simulator.

    Each training run has a folder of its own in `folder`; an interrupt or a kill loses an iteration at
    most where the engine reaches that folder, and the same call goes on.

    Arguments:
        experiment: what to run.
        folder: for all of it.
        engine: "processes", "ray" or "inline". One training uses all of a machine, hence the default.
        options: of the engine; one worker with all processors if left out.
        stream: where progress goes; stderr if left out.
        kept: called whenever a training run was finished.

    Raises:
        ValueError: something cannot be run; before any work.
    """
    stream = sys.stderr if stream is None else stream
    start = engine_named(engine)
    for name in experiment.environments:
        if name not in SIMULATORS:
            raise ValueError(f"environments: there is no {name!r}{meant(name, SIMULATORS)}")
    jobs = experiment.jobs()
    for job in jobs:
        prepare(_simulator(job), job.algorithm, **job.train_arguments())
    for name in experiment.environments:
        alone = dataclasses.replace(experiment, environments=(name,))
        write_description(folder / name, alone, {})
    tasks = [TrainTask(job, _asked(experiment, job)) for job in jobs]
    missing = [task for task in tasks if _finished(task, folder) is None]
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} kept from an earlier run", file=stream, flush=True)
    failures: list[Failed] = []
    for event in start(missing, folder, options or EngineOptions(1, 0)) if missing else ():
        if isinstance(event, Made):
            write_bytes(folder / event.file.path, event.file.data)
        elif isinstance(event, Failed):
            last = event.traceback.strip().splitlines()[-1]
            print(f"{event.task}: failed ({last})", file=stream, flush=True)
            if event.for_good:
                failures.append(event)
        else:
            words = {Begun: "begun", Done: "done"}[type(event)]
            print(f"{event.task}: {words}", file=stream, flush=True)
            kept()
    return _collect(experiment, tasks, folder), failures


def _collect(experiment: DeepExperiment, tasks: list[TrainTask], folder: Path) -> list[DeepResults]:
    """What is finished, by simulator; one of which something is missing is left out."""
    found: dict[str, dict[TrainingJob, Trained | None]] = {}
    for task in tasks:
        trained = _finished(task, folder)
        found.setdefault(task.job.environment, {})[task.job] = trained
    return [
        DeepResults(experiment, environment, {k: v for k, v in of.items() if v is not None})
        for environment, of in found.items()
        if all(each is not None for each in of.values())
    ]


def _finished(task: TrainTask, folder: Path) -> Trained | None:
    """What the run measured, where it is finished and the very one that is asked for."""
    out = folder / task.job.path
    try:
        run = prepare(_simulator(task.job), task.job.algorithm, **task.job.train_arguments())
        runs.check_same(out, run.describe())
        files = runs.agent_files(out)
        rows = runs.read_lines(out / runs.METRICS)
    except ValueError:
        return None
    if task.asked is None:
        return Trained(task.job, rows, None)
    found = _known_stress(out, files, task.asked)
    return None if found is None else Trained(task.job, rows, found)


def _asked(experiment: DeepExperiment, job: TrainingJob) -> dict[str, Any] | None:
    if not experiment.is_stressed(job):
        return None
    return {
        "radii": experiment.attacks or None,
        "noise": experiment.noise or None,
        "action_noise": experiment.action_noise or None,
        "episodes": experiment.episodes,
        "restarts": experiment.restarts,
        "updates": experiment.updates,
    }


def _simulator(job: TrainingJob) -> Environment:
    return SIMULATORS[job.environment](**({} if job.noise else {"noise_scale": 0.0}))


def _known_stress(
    out: Path, agents: list[Agent] | list[Path], asked: Mapping[str, Any]
) -> Stress | None:
    """An earlier result that is what would be measured now, and of these very agents."""
    path = out / _STRESS
    trained = max(file.stat().st_mtime for file in runs.agent_files(out))
    if not path.is_file() or path.stat().st_mtime < trained:
        return None
    try:
        found = Stress.load(path)
    except ValueError:
        return None
    return found if _same(found, len(agents), asked) else None


def _same(found: Stress, agents: int, asked: Mapping[str, Any]) -> bool:
    """Whether an earlier result is what would be measured now."""
    for kind, name in (("attack", "radii"), ("noise", "noise"), ("action noise", "action_noise")):
        if {row.level for row in found.rows if row.kind == kind} != set(asked[name] or ()):
            return False
    return (
        len(found.agents) == agents
        and all(found.setup[name] == asked[name] for name in ("episodes", "restarts"))
        and found.setup["kernels"][0]["updates"] == asked["updates"]
    )
