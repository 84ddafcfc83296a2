"""`holdfast bench`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._shared import FAILED, check_writable, console, refused
from holdfast.experiments import DeepExperiment, Experiment, read_description

if TYPE_CHECKING:
    from holdfast.experiments.engines import EngineOptions, Failed
    from holdfast.experiments.runner import RunOutcome


@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """Where the jobs of an experiment are done."""

    engine: Annotated[
        str,
        arg(metavar="processes|ray|inline", help_behavior_hint="(default: processes for tables)"),
    ] = ""
    """Other processes here, a Ray cluster, or this process. Trainings go one after the other in this
    process unless there are several workers."""
    workers: Annotated[int, arg(metavar="N", help_behavior_hint="(default: one a processor)")] = 0
    """Jobs at the same time."""
    threads: Annotated[int, arg(metavar="N")] = 1
    """Of each worker process; inline has none. Results may depend on it in their last digits."""
    address: Annotated[str, arg(metavar="HOST:PORT", help_behavior_hint="(default: none)")] = ""
    """Of a Ray cluster that is running."""

    def resolved(self, experiment: Experiment) -> tuple[str, EngineOptions]:
        """Return the name and the options of the engine for an experiment.

        Raises:
            ValueError: the options contradict each other.
        """
        from holdfast.experiments.engines import EngineOptions, engine_named

        if self.address and self.engine != "ray":
            raise ValueError("address: it goes with --engine ray")
        # Several trainings at the same time need several processes.
        several = self.workers > 1
        engine = self.engine or ("processes" if several else experiment.default_engine)
        engine_named(engine)
        options = EngineOptions(self.workers, self.threads, self.address, cache=True)
        if isinstance(experiment, DeepExperiment) and engine == "processes" and not several:
            options = dataclasses.replace(options, workers=1, threads=0)
        return engine, options


@dataclasses.dataclass(frozen=True)
class Bench:
    """Compare algorithms over models, radii, settings and seeds."""

    about: ClassVar[str] = """Runs an experiment that a TOML file describes: algorithms x models x \
radii x settings x seeds.

  environments = ["gambler", "n-chain"]
  algorithms = ["rcpo", "pcpo"]
  radii = [0.05, 0.1, 0.2]          # left out: each model's own
  seeds = 5
  certify = true                    # left out: no certificates

  [settings]                        # what `holdfast solve` takes
  iterations = 200

  [environment.machine]             # a model of your own, once "machine" is among the environments
  file = "machine.npz"

The folder gets experiment.json, a file for every finished run, table.md/.csv/.tex (a line for each
algorithm on each model), overall.* (over all models), timings.*, and for each model figure.png and
data.csv. `holdfast report DIR` makes a page of it. What is finished is kept: after an interrupt or a
kill the same command goes on. A job that fails is tried again twice, and then told while the others
go on.

Examples:
  holdfast bench my-experiment.toml --out runs/mine
  holdfast bench paper --seeds 2 --workers 2
  holdfast bench my-experiment.toml --engine ray --address 10.0.0.1:6379 --out s3://bucket/mine

Exit codes: 0 done, 1 some jobs failed, 2 bad input, 130 interrupted."""

    experiment: Annotated[Positional[str], arg(metavar="FILE")]
    """A TOML file, or the name of an experiment in the package, such as paper."""
    seeds: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: as described)")] = (
        None
    )
    """Runs of every algorithm, with the seeds 0 to N - 1."""
    iterations: Annotated[
        int | None, arg(metavar="N", help_behavior_hint="(default: as described)")
    ] = None
    """Iterations of every run, where the algorithm has no number of its own."""
    on: OmitArgPrefixes[EngineArguments] = dataclasses.field(default_factory=EngineArguments)
    out: Annotated[str, arg(metavar="DIR", help_behavior_hint="(default: runs/bench/NAME)")] = ""
    """Folder for everything that is written; a URL where fsspec knows it."""

    def run(self) -> int:
        """Run unfinished jobs, write tables and figures, and print the comparison."""
        with refused():
            experiment = changed(
                read_description(self.experiment), seeds=self.seeds, iterations=self.iterations
            )
            return run_experiment(experiment, self.out or f"runs/bench/{experiment.name}", self.on)


def changed(experiment: Experiment, *, seeds: int | None, iterations: int | None) -> Experiment:
    """Return an experiment with another number of seeds or iterations."""
    if seeds is not None:
        experiment = dataclasses.replace(experiment, seeds=seeds)
    return experiment if iterations is None else experiment.with_iterations(iterations)


def run_experiment(experiment: Experiment, out: str, on: EngineArguments) -> int:
    """Run an experiment, print its comparison, and return the exit code."""
    from holdfast.experiments.mirror import is_remote, working_folder
    from holdfast.report.tables import comparison_table

    if not is_remote(out):
        check_writable(Path(out))
    with working_folder(out) as (folder, send):
        outcome = perform(experiment, folder, on, send)
        if isinstance(experiment, DeepExperiment):
            for each in outcome.results:
                print((folder / each.environment / "table.md").read_text())
        elif outcome.results:
            console().print(comparison_table(outcome.results, console().width))
    print(f"written to {out}")
    return tell_failures(outcome.failures)


def perform(
    experiment: Experiment,
    folder: Path,
    on: EngineArguments,
    send: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Run an experiment and write its tables and figures."""
    from holdfast.experiments import runner
    from holdfast.experiments.compilation_cache import use_compilation_cache
    from holdfast.report.experiment import write_experiment, write_simulator_experiment

    engine, options = on.resolved(experiment)
    use_compilation_cache()
    outcome = runner.run(experiment, folder, engine=engine, options=options, kept=send)
    if isinstance(experiment, DeepExperiment):
        for each in outcome.results:
            write_simulator_experiment(folder / each.environment, each)
    elif outcome.results:
        write_experiment(folder, outcome.results)
    return outcome


def tell_failures(failures: list[Failed]) -> int:
    """Print the tracebacks of work that failed on every attempt, and return the exit code."""
    for failure in failures:
        print(f"{failure.item} failed {failure.attempts} times:\n{failure.traceback}")
    return FAILED if failures else 0
