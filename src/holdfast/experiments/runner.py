"""The runner of experiments. Finished jobs are kept and not run again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from holdfast._support.files import path_inside, write_bytes
from holdfast.experiments.description import DeepExperiment, Experiment, TabularExperiment
from holdfast.experiments.engines import Done, EngineOptions, Failed, Made, engine_named
from holdfast.experiments.progress import progress_on
from holdfast.experiments.robot_runs import RobotPlan
from holdfast.experiments.robots import RobotExperiment
from holdfast.experiments.simulators import SimulatorPlan
from holdfast.experiments.tables import TablePlan

_PLANS: dict[str, Any] = {
    TabularExperiment.kind: TablePlan,
    DeepExperiment.kind: SimulatorPlan,
    RobotExperiment.kind: RobotPlan,
}


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """Outcome of an experiment.

    Attributes:
        results: results of finished jobs: `Results` per model and radius, `DeepResults` per simulator,
            one row per run on a robot.
        failures: work that failed on every attempt.
    """

    results: list[Any]
    failures: list[Failed]


def run(
    experiment: Experiment,
    out: Path,
    *,
    engine: str | None = None,
    options: EngineOptions | None = None,
    stream: TextIO | None = None,
    kept: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Run every job that is not finished, and return the results of all jobs.

    An interrupt or a kill keeps finished jobs, and the same call resumes. A failed job is tried twice
    more, and the other jobs continue.

    Arguments:
        experiment: the experiment.
        out: its folder.
        engine: "processes", "ray" or "inline"; the default is "processes" for tables and "inline" for
            simulators.
        options: options of the engine.
        stream: stream for progress, stderr by default.
        kept: function called whenever the folder holds new results.

    Raises:
        ValueError: a name cannot be resolved or a setting is not allowed; nothing is written then.

    Example:
        >>> import io, tempfile
        >>> from holdfast.experiments import TabularExperiment
        >>> from holdfast.experiments.runner import run
        >>> experiment = TabularExperiment(("n-chain",), algorithms=("lp",), seeds=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     outcome = run(experiment, Path(folder), engine="inline", stream=io.StringIO())
        >>> [results.cell for results in outcome.results], outcome.failures
        (['n-chain'], [])
    """
    start = engine_named(engine or experiment.default_engine)
    plan = _PLANS[experiment.kind](experiment, out)
    plan.write_record()
    failures: list[Failed] = []
    total = len(experiment.search_jobs()) + len(experiment.jobs())
    with progress_on(sys.stderr if stream is None else stream, total) as progress:
        for jobs in plan.stages():
            missing = [job for job in jobs if plan.find(job) is None]
            progress.keep(len(jobs) - len(missing))
            items = plan.items(missing)
            for event in start(items, out, options or EngineOptions()) if items else ():
                progress.show(event)
                if isinstance(event, Made):
                    write_bytes(path_inside(out, event.file.path), event.file.data)
                if isinstance(event, Failed) and event.for_good:
                    failures.append(event)
                if isinstance(event, Made | Done):
                    kept()
                if told := plan.finished(event):
                    progress.finish(told)
    return RunOutcome(plan.collect(), failures)
