"""Experiments on simulators: the work of training and stressing policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.experiments import store
from holdfast.experiments.description import DeepExperiment
from holdfast.experiments.engines import Done, WorkEvent
from holdfast.experiments.jobs import TrainingJob
from holdfast.experiments.results import DeepResults, Trained
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.stress import stress
from holdfast.simulators.train import prepare
from holdfast.simulators.training import runs
from holdfast.verbs import as_simulator

_STRESS = "stress.json"


class SimulatorPlan:
    """Work of an experiment on simulators. The constructor checks names and settings.

    Arguments:
        experiment: the experiment.
        out: its folder; every simulator and every training run has its own folder inside.

    Raises:
        ValueError: a simulator or an algorithm does not exist, or a setting is not allowed.
    """

    def __init__(self, experiment: DeepExperiment, out: Path) -> None:
        self._experiment, self._out = experiment, out
        self._jobs = experiment.jobs()
        self._runs = {job: _prepared(job) for job in self._jobs}

    def write_record(self) -> None:
        """Write `experiment.json` into the folder of each simulator."""
        for name in self._experiment.environments:
            alone = dataclasses.replace(self._experiment, environments=(name,))
            store.write_record(self._out / name, alone, {})

    def stages(self) -> Iterator[list[TrainingJob]]:
        """Yield all jobs at once: there is no search."""
        yield self._jobs

    def items(self, jobs: Sequence[TrainingJob]) -> Sequence[TrainingJob]:
        """Return the jobs themselves: each is one piece of work."""
        return jobs

    def find(self, job: TrainingJob) -> Trained | None:
        """Return the measurements of a run, or None unless exactly this run is finished."""
        out = self._out / job.path
        try:
            runs.check_same(out, self._runs[job].describe())
            runs.agent_files(out)
            rows = runs.read_lines(out / runs.METRICS)
        except ValueError:
            return None
        found = _finished_stress(out, job)
        return None if found is None and job.stress is not None else Trained(job, rows, found)

    def finished(self, event: WorkEvent) -> str | None:
        """Return a sentence about the job that an event finished, or None."""
        return f"{event.item}: trained" if isinstance(event, Done) else None

    def collect(self) -> list[DeepResults]:
        """Return the results of each simulator on which every run is finished."""
        found = []
        for name in self._experiment.environments:
            jobs = [job for job in self._jobs if job.environment == name]
            trained = {job: each for job in jobs if (each := self.find(job)) is not None}
            if len(trained) == len(jobs):
                found.append(DeepResults(self._experiment, name, trained))
        return found


def train_job(job: TrainingJob, folder: Path) -> None:
    """Train the policies of a job, and stress them if the job asks for it.

    Arguments:
        job: the job.
        folder: the experiment's folder.
    """
    out = folder / job.path
    agents = prepare(_simulator(job), job.algorithm, **job.train_arguments()).train(out)
    if job.stress is not None and _finished_stress(out, job) is None:
        stress(agents, **job.stress).save(out / _STRESS)


def _simulator(job: TrainingJob) -> Any:
    return as_simulator(job.environment, **({} if job.noise else {"noise_scale": 0.0}))


def _prepared(job: TrainingJob) -> Any:
    try:
        env = _simulator(job)
    except (TypeError, ValueError) as error:
        raise ValueError(f"environments: {str(error).removeprefix('environment: ')}") from error
    return prepare(env, job.algorithm, **job.train_arguments())


def _finished_stress(out: Path, job: TrainingJob) -> Stress | None:
    """Return an earlier stress test of these agents with these settings, or None."""
    path = out / _STRESS
    trained = max(file.stat().st_mtime for file in runs.agent_files(out))
    if job.stress is None or not path.is_file() or path.stat().st_mtime < trained:
        return None
    try:
        found = Stress.load(path)
    except ValueError:
        return None
    return found if _matches(found, job.experiment.seeds, job.stress) else None


def _matches(found: Stress, agents: int, asked: Mapping[str, Any]) -> bool:
    levels = {kind: {row.level for row in found.rows if row.kind == kind} for kind in _KINDS}
    return (
        len(found.agents) == agents
        and len(found.actions) > 1  # version 0.1.0 tested drawn actions only
        and all(levels[kind] == set(asked[name] or ()) for kind, name in _KINDS.items())
        and all(found.setup[name] == asked[name] for name in ("episodes", "restarts"))
        and found.setup["kernels"][0]["updates"] == asked["updates"]
    )


# Arguments of `stress` by the kind of row that they produce.
_KINDS = {"attack": "radii", "noise": "noise", "action noise": "action_noise"}
