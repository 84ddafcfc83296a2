"""Runs experiments on tables; what an earlier run finished is not run again."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from holdfast._files import write_bytes
from holdfast._model import RobustCMDP
from holdfast._model_file import model_to_bytes
from holdfast.experiments import store
from holdfast.experiments._reading import meant
from holdfast.experiments.configuration import Job, TabularExperiment
from holdfast.experiments.engines import EngineOptions, Failed, Made, Task, engine_named
from holdfast.experiments.folder import collect, write_description
from holdfast.experiments.models import models_of
from holdfast.experiments.progress import progress_on
from holdfast.experiments.results import Results
from holdfast.experiments.tasks import SolveTask


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of an experiment.

    Attributes:
        results: of the jobs that were finished, for each model and radius that has any.
        failures: of the tasks that failed for good.
    """

    results: list[Results]
    failures: list[Failed]


def run(
    experiment: TabularExperiment,
    out: Path,
    *,
    engine: str = "processes",
    options: EngineOptions | None = None,
    stream: TextIO | None = None,
    kept: Callable[[], None] = lambda: None,
) -> Outcome:
    """Runs every job that has no file yet and gives all results.

    An interrupt or a kill leaves the jobs that were finished; calling again with the same arguments
    goes on from there. A job that fails is tried again twice, and then told while the others go on.

    Arguments:
        experiment: what to run.
        out: the experiment's folder.
        engine: "processes", "ray" or "inline".
        options: of the engine.
        stream: where progress goes; stderr if left out.
        kept: called whenever a job's file was written.

    Raises:
        ValueError: a model, an algorithm or the engine is not to be had; before any work.
    """
    start = engine_named(engine)
    models = models_of(experiment)
    _check_algorithms(experiment)
    digests = {cell: store.model_digest(model) for cell, model in models.items()}
    by_cell = {job.cell: digests[job.environment, job.radius] for job in experiment.jobs()}
    write_description(out, experiment, by_cell)
    tasks, old = _tasks(experiment, models, digests, out)
    failures: list[Failed] = []
    jobs = len(experiment.jobs())
    with progress_on(sys.stderr if stream is None else stream, jobs) as progress:
        progress.kept(old)
        for event in start(tasks, out, options or EngineOptions()) if tasks else ():
            if isinstance(event, Made):
                write_bytes(out / event.file.path, event.file.data)
                kept()
                progress.finished(store.read(out / event.file.path)[1])
            elif isinstance(event, Failed):
                progress.failed(event)
                if event.for_good:
                    failures.append(event)
            else:
                progress.told(event)
    return Outcome(collect(experiment, by_cell, out), failures)


def _check_algorithms(experiment: TabularExperiment) -> None:
    from holdfast.tabular.algorithms import ALGORITHMS

    for name in experiment.algorithms:
        if name not in ALGORITHMS:
            raise ValueError(f"algorithms: there is no {name!r}{meant(name, ALGORITHMS)}")


def _tasks(
    experiment: TabularExperiment,
    models: dict[tuple[str, float | None], RobustCMDP],
    digests: dict[tuple[str, float | None], str],
    out: Path,
) -> tuple[Sequence[Task], int]:
    """The jobs that are missing, the seeds of an algorithm together; and how many are not."""
    tasks, old = [], 0
    for (cell, _), group in itertools.groupby(
        experiment.jobs(), key=lambda job: ((job.environment, job.radius), job.label)
    ):
        missing: list[Job] = []
        for job in group:
            if store.load(out / job.path, store.fingerprint(job, digests[cell])) is None:
                missing.append(job)
            else:
                old += 1
        if missing:
            content = model_to_bytes(models[cell])
            tasks.append(SolveTask(tuple(missing), content, digests[cell]))
    return tasks, old
