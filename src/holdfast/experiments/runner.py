"""Runs experiments on tables; what an earlier run finished is not run again."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from holdfast._support.arguments import meant
from holdfast._support.files import write_bytes
from holdfast.experiments import store
from holdfast.experiments.configuration import Job, TabularExperiment, cell_name
from holdfast.experiments.engines import EngineOptions, Failed, Made, Task, engine_named
from holdfast.experiments.folder import chosen, collect, finder, write_description
from holdfast.experiments.models import models_of
from holdfast.experiments.progress import progress_on
from holdfast.experiments.results import Results
from holdfast.experiments.tasks import SHARED, SolveTask
from holdfast.model.npz import model_to_bytes
from holdfast.tabular.algorithms import ALGORITHMS


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
    contents = {
        cell_name(*cell): (model_to_bytes(model), store.model_digest(model))
        for cell, model in models.items()
    }
    digests = {cell: digest for cell, (_, digest) in contents.items()}
    write_description(out, experiment, digests)
    find = finder(digests, out)
    failures: list[Failed] = []
    total = len(experiment.search_jobs()) + len(experiment.jobs())
    with progress_on(sys.stderr if stream is None else stream, total) as progress:

        def work(jobs: list[Job]) -> None:
            missing = [job for job in jobs if find(job) is None]
            progress.kept(len(jobs) - len(missing))
            tasks = _tasks(missing, contents)
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

        work(experiment.search_jobs())
        work(experiment.jobs(chosen(experiment, find)))
    return Outcome(collect(experiment, digests, find), failures)


def _check_algorithms(experiment: TabularExperiment) -> None:
    """Refuses algorithms that are not there, and settings that are not theirs."""
    for name in experiment.algorithms:
        if name not in ALGORITHMS:
            raise ValueError(f"algorithms: there is no {name!r}{meant(name, ALGORITHMS)}")
        for table in ("algorithm", "search"):
            for key in getattr(experiment, table).get(name, {}):
                if key in SHARED and key not in ALGORITHMS[name].accepts:
                    raise ValueError(f"{table}.{name}.{key}: {name} has no use for it")
    for job in (*experiment.jobs(), *experiment.search_jobs()):
        try:
            ALGORITHMS[job.algorithm].read_settings(job.settings.settings or None)
        except TypeError as error:
            raise ValueError(f"settings: {job.algorithm}: {error}") from error


def _tasks(jobs: list[Job], contents: Mapping[str, tuple[bytes, str]]) -> list[Task]:
    """The jobs, those that differ in their seeds alone together."""
    return [
        SolveTask(tuple(group), *contents[cell])
        for (cell, _), group in itertools.groupby(jobs, key=lambda job: (job.cell, job.label))
    ]
