"""Experiments on tables: their models, and the work of solving them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast import registry
from holdfast.experiments import store
from holdfast.experiments.description import TabularExperiment
from holdfast.experiments.engines import File, Made, WorkEvent
from holdfast.experiments.fields import check_keys
from holdfast.experiments.jobs import Job, cell_name
from holdfast.experiments.results import ConstraintThreshold, Result, Results
from holdfast.model import RobustCMDP
from holdfast.model.npz import model_from_bytes, model_to_bytes
from holdfast.verbs import as_model

# Arguments of `solve` that every experiment sets but only some algorithms accept.
SHARED = ("trust_region", "step", "safeguard")


class TablePlan:
    """Work of an experiment on tables. The constructor checks names, models and settings.

    Arguments:
        experiment: the experiment.
        out: its folder.

    Raises:
        ValueError: a model or an algorithm does not exist, or a setting is not the algorithm's.
    """

    def __init__(self, experiment: TabularExperiment, out: Path) -> None:
        self._experiment, self._out = experiment, out
        models = models_of(experiment)
        _check_algorithms(experiment)
        self._bytes = {cell: model_to_bytes(model) for cell, model in models.items()}
        self._digests = {cell: store.model_digest(model) for cell, model in models.items()}

    def find(self, job: Job) -> Result | None:
        """Return the stored result of a job, or None if it has to run (again)."""
        mark, result = store.read(self._out / job.path) or ("", None)
        return result if mark == store.fingerprint(job, self._digests[job.cell]) else None

    def write_record(self) -> None:
        """Write `experiment.json`."""
        store.write_record(self._out, self._experiment, self._digests)

    def stages(self) -> Iterator[list[Job]]:
        """Yield the jobs of the search, then all others with the settings that it selected."""
        yield self._experiment.search_jobs()
        yield self._experiment.jobs(store.chosen(self._experiment, self.find))

    def items(self, jobs: Sequence[Job]) -> list[SolveItem]:
        """Return the work of some jobs; jobs that differ only in their seeds share an item."""
        return [
            SolveItem(tuple(group), self._bytes[cell], self._digests[cell])
            for (cell, _), group in itertools.groupby(jobs, key=lambda job: (job.cell, job.label))
        ]

    def finished(self, event: WorkEvent) -> str | None:
        """Return a sentence about the job that an event finished, or None."""
        found = store.read(self._out / event.file.path) if isinstance(event, Made) else None
        if found is None:
            return None
        result = found[1]
        return (
            f"{result.job}: {result.status}, worst-case reward {result.reward:.4f}, "
            f"margin {result.margin:+.4f}, {result.seconds:.1f} s"
        )

    def collect(self) -> list[Results]:
        """Return the results of all finished jobs."""
        return store.collect(self._experiment, self._digests, self.find)


@dataclasses.dataclass(frozen=True)
class SolveItem:
    """Jobs that differ only in their seeds, so that one compilation serves them all.

    Arguments:
        jobs: the jobs.
        model: the model as `model_to_bytes` writes it, since a worker may not reach its file.
        digest: SHA-256 of the model's content.
    """

    jobs: tuple[Job, ...]
    model: bytes
    digest: str

    @property
    def kin(self) -> str:
        """The model: solves of one model share most of their compiled programs."""
        return self.jobs[0].environment

    def run(self, folder: Path | None) -> Iterator[File]:
        """Yield the file of each job as soon as it is solved."""
        del folder  # a result file is small and returned whole
        model = model_from_bytes(self.model, importing=True)
        for job in self.jobs:
            result = run_job(job, model)
            yield File(job.path, store.to_bytes(result, store.fingerprint(job, self.digest)))

    def __str__(self) -> str:
        return f"{self.jobs[0].cell} {self.jobs[0].label}"


def run_job(job: Job, model: RobustCMDP) -> Result:
    """Solve a model, certify the policy if the job asks for it, and return the result."""
    started = time.process_time()
    accepted = registry.ALGORITHMS.find(job.algorithm).accepts
    arguments = {
        name: value
        for name, value in job.settings.arguments().items()
        if name in accepted or name not in SHARED
    }
    solution = hf.solve(model, job.algorithm, seed=job.seed, **arguments)
    certificate = None
    if job.certify:
        certificate = hf.certify(model, solution.policy, nodes=job.nodes).to_dict()
    return Result(
        job=job,
        status=solution.status,
        bounds=ConstraintThreshold.of(model),
        policy=solution.policy,
        history=solution.history,
        certificate=certificate,
        cpu_seconds=time.process_time() - started,
    )


def models_of(experiment: TabularExperiment) -> dict[str, RobustCMDP]:
    """Return every model with every radius, by cell.

    Raises:
        ValueError: a model does not exist, cannot be built, or has no uncertainty set to change.
    """
    found = {}
    for name, radius in experiment.cells():
        model = _model(name, experiment.environment.get(name, {}))
        if radius is not None:
            if model.uncertainty is None:
                raise ValueError(f"radii: {name} has no uncertainty set")
            model = model.replace(uncertainty=model.uncertainty.with_radius(radius))
        found[cell_name(name, radius)] = model
    return found


def _model(name: str, definition: Mapping[str, Any]) -> RobustCMDP:
    where = f"environment.{name}" if definition else "environments"
    options = dict(definition)
    if "file" in options:
        check_keys(options, ["file"], where)
    source = options.pop("file", None) or options.pop("model", name)
    try:
        return as_model(source, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {str(error).removeprefix('model: ')}") from error


def _check_algorithms(experiment: TabularExperiment) -> None:
    """Raise a ValueError for an unknown algorithm, or for a setting that it does not have."""
    for name in experiment.algorithms:
        algorithm = registry.ALGORITHMS.find(name)
        for table in ("algorithm", "search"):
            for key in getattr(experiment, table).get(name, {}):
                if key in SHARED and key not in algorithm.accepts:
                    raise ValueError(f"{table}.{name}.{key}: {name} does not use it")
    for job in (*experiment.jobs(), *experiment.search_jobs()):
        try:
            registry.ALGORITHMS.find(job.algorithm).read_settings(job.settings.settings or None)
        except TypeError as error:
            raise ValueError(f"settings: {job.algorithm}: {error}") from error
