"""What workers do for an experiment on tables: the seeds of one algorithm on one model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.experiments.configuration import Job
from holdfast.experiments.engines import File
from holdfast.experiments.results import Bound, Result
from holdfast.experiments.store import fingerprint, to_bytes
from holdfast.model import RobustCMDP
from holdfast.model.npz import model_from_bytes
from holdfast.tabular.algorithms import ALGORITHMS

# Arguments of `solve` that some algorithms have no use for.
SHARED = ("trust_region", "step", "safeguard")


@dataclasses.dataclass(frozen=True)
class SolveTask:
    """Jobs that differ in their seeds alone, so that one compilation serves them all.

    Arguments:
        jobs: what to run.
        model: as `model_to_bytes` gives it: a worker may have no other way to it.
        digest: SHA-256 of the model's content.
    """

    jobs: tuple[Job, ...]
    model: bytes
    digest: str

    @property
    def kin(self) -> str:
        """Tasks on the same model share most of their programs."""
        return self.jobs[0].environment

    def run(self, folder: Path | None) -> Iterator[File]:
        """A file for each job, as soon as it is done."""
        del folder  # a job's file is small, and whole or not there
        model = model_from_bytes(self.model)
        for job in self.jobs:
            result = run_job(job, model)
            yield File(job.path, to_bytes(result, fingerprint(job, self.digest)))

    def __str__(self) -> str:
        return f"{self.jobs[0].cell} {self.jobs[0].label}"


def run_job(job: Job, model: RobustCMDP) -> Result:
    """Solves, and certifies where that was asked for."""
    started = time.process_time()
    solution = hf.solve(model, job.algorithm, seed=job.seed, **arguments_of(job))
    certificate = None
    if job.certify:
        certificate = hf.certify(model, solution.policy, nodes=job.nodes).to_dict()
    return Result(
        job=job,
        status=solution.status,
        bounds=Bound.of(model),
        policy=solution.policy,
        history=solution.history,
        certificate=certificate,
        cpu_seconds=time.process_time() - started,
    )


def arguments_of(job: Job) -> dict[str, Any]:
    """What `solve` is called with: of the settings that algorithms share, those that this one reads."""
    reads = ALGORITHMS[job.algorithm].accepts
    given = job.settings.arguments()
    return {k: v for k, v in given.items() if k in reads or k not in SHARED}
