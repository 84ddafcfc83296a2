"""Runs experiments job by job; what an earlier run finished is not run again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import holdfast as hf
from holdfast._model import RobustCMDP
from holdfast.experiments.configuration import Job, TabularExperiment
from holdfast.experiments.progress import Progress, progress_on
from holdfast.experiments.results import Bound, Result, Results
from holdfast.experiments.store import fingerprint, job_path, load, model_digest, save


def run(
    experiments: Sequence[TabularExperiment], out: Path, *, stream: TextIO | None = None
) -> list[Results]:
    """Runs every job that has no file yet and gives all results.

    The files of an experiment lie in `out / experiment.environment`. An interrupt leaves the jobs
    that were finished; calling again with the same arguments goes on from there.

    Arguments:
        experiments: what to run, each on an environment of its own.
        out: the folder for all of them.
        stream: where progress goes; stderr if left out.

    Raises:
        ValueError: an environment is unknown or is named twice, before any work.
    """
    models = {e.environment: _model(e.environment) for e in experiments}
    if len(models) != len(experiments):
        raise ValueError("experiments: two have the same environment, so the same folder")
    jobs = sum(len(experiment.jobs()) for experiment in experiments)
    with progress_on(sys.stderr if stream is None else stream, jobs) as progress:
        return [
            _run_experiment(e, models[e.environment], out / e.environment, progress)
            for e in experiments
        ]


def _model(environment: str) -> RobustCMDP:
    models = hf.environments.MODELS
    if environment not in models:
        raise ValueError(f"environment: expected one of {', '.join(models)}, got {environment!r}")
    return models[environment]()


def _run_experiment(
    experiment: TabularExperiment, model: RobustCMDP, folder: Path, progress: Progress
) -> Results:
    digest = model_digest(model)
    runs: dict[str, list[Result]] = {algorithm: [] for algorithm in experiment.algorithms}
    for job in experiment.jobs():
        path, mark = job_path(folder, job), fingerprint(job, digest)
        result = load(path, job, mark)
        if result is not None:
            progress.kept(job)
        else:
            progress.begun(job)
            result = _run_job(job, model, progress)
            save(path, result, mark)
            progress.finished(result)
        runs[job.algorithm].append(result)
    return Results(experiment, runs, digest)


def _run_job(job: Job, model: RobustCMDP, progress: Progress) -> Result:
    solution = hf.solve(model, job.algorithm, callback=progress.iterated, **job.solve_arguments())
    return Result(
        job=job,
        status=solution.status,
        bounds=Bound.of(model),
        policy=solution.policy,
        history=solution.history,
    )
