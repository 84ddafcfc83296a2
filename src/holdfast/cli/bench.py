"""`holdfast bench`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._shared import FAILED, check_writable, console, refused
from holdfast.experiments import DeepExperiment, TabularExperiment, read_description

if TYPE_CHECKING:
    from holdfast.experiments.deep_runner import DeepResults
    from holdfast.experiments.engines import EngineOptions, Failed
    from holdfast.experiments.results import Results

Sender = Callable[[], None]


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

    def resolved(self, *, simulators: bool) -> tuple[str, EngineOptions]:
        """The engine's name and its options."""
        from holdfast.experiments.engines import ENGINES, EngineOptions

        if self.engine and self.engine not in ENGINES:
            raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {self.engine!r}")
        if self.address and self.engine != "ray":
            raise ValueError("address: it goes with --engine ray")
        alone = simulators and self.workers <= 1
        engine = self.engine or ("inline" if alone else "processes")
        workers = 1 if alone and engine != "ray" else self.workers
        threads = 0 if alone and engine != "ray" else self.threads
        return engine, EngineOptions(workers, threads, self.address, cache=True)


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
        """Runs what is not there yet, writes the tables and figures and prints the comparison."""
        with refused():
            experiment = changed(
                read_description(self.experiment), seeds=self.seeds, iterations=self.iterations
            )
            out = self.out or f"runs/bench/{experiment.name}"
            return run_experiment(experiment, out, self.on)


def changed(
    experiment: TabularExperiment | DeepExperiment, *, seeds: int | None, iterations: int | None
) -> TabularExperiment | DeepExperiment:
    """An experiment with another number of seeds or iterations."""
    if seeds is not None:
        experiment = dataclasses.replace(experiment, seeds=seeds)
    if iterations is None:
        return experiment
    if isinstance(experiment, DeepExperiment):
        return dataclasses.replace(experiment, iterations=iterations)
    settings = dataclasses.replace(experiment.settings, iterations=iterations)
    return dataclasses.replace(experiment, settings=settings)


def run_experiment(
    experiment: TabularExperiment | DeepExperiment, out: str, on: EngineArguments
) -> int:
    """Runs an experiment of either kind and says where everything is."""
    from holdfast.experiments.mirror import is_remote, working_folder

    if not is_remote(out):
        check_writable(Path(out))
    with working_folder(out) as (folder, send):
        if isinstance(experiment, TabularExperiment):
            from holdfast.report.comparison_tables import comparison_table

            tables, failures = in_tables(experiment, folder, on, send)
            if tables:
                console().print(comparison_table(tables))
        else:
            found, failures = in_simulators(experiment, folder, on, send)
            for each in found:
                print((folder / each.environment / "table.md").read_text())
    print(f"written to {out}")
    return tell_failures(failures)


def in_tables(
    experiment: TabularExperiment, folder: Path, on: EngineArguments, send: Sender = lambda: None
) -> tuple[list[Results], list[Failed]]:
    """Runs an experiment on tables and writes its tables and figures."""
    from holdfast.experiments.compilation_cache import use_compilation_cache
    from holdfast.experiments.runner import run
    from holdfast.report.experiment import write_experiment

    engine, options = on.resolved(simulators=False)
    use_compilation_cache()
    outcome = run(experiment, folder, engine=engine, options=options, kept=send)
    if outcome.results:
        write_experiment(folder, outcome.results)
    return outcome.results, outcome.failures


def in_simulators(
    experiment: DeepExperiment, folder: Path, on: EngineArguments, send: Sender = lambda: None
) -> tuple[list[DeepResults], list[Failed]]:
    """Runs an experiment in simulators and writes its tables and figures."""
    from holdfast.experiments.compilation_cache import use_compilation_cache
    from holdfast.experiments.deep_runner import run_deep
    from holdfast.report.deep_experiment import write_deep_experiment

    engine, options = on.resolved(simulators=True)
    use_compilation_cache()
    found, failures = run_deep(experiment, folder, engine=engine, options=options, kept=send)
    for each in found:
        write_deep_experiment(folder / each.environment, each)
    return found, failures


def tell_failures(failures: list[Failed]) -> int:
    """Prints the tracebacks of what failed for good, and gives the exit code."""
    for failure in failures:
        print(f"{failure.task} failed {failure.attempts} times, at last so:\n{failure.traceback}")
    return FAILED if failures else 0
