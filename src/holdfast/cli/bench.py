"""`holdfast bench`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast._support.files import locked, remove_unfinished, write_text
from holdfast.cli._shared import FAILED, check_writable, console, option, refused
from holdfast.experiments import DeepExperiment, Experiment, RobotExperiment, read_description

if TYPE_CHECKING:
    from holdfast.experiments.engines import EngineOptions, Failed
    from holdfast.experiments.runner import RunOutcome


# More columns than the widest table, which then is neither folded nor cut.
_FULL = 1_000


@dataclasses.dataclass(frozen=True)
class EngineArguments:
    """Engine that runs the jobs."""

    engine: Annotated[
        str, option("processes|ray|inline", "processes for tables, inline for simulators")
    ] = ""
    """Worker processes on this machine, a Ray cluster, or this process. The default for simulators with
    several workers is processes."""
    workers: Annotated[int, option("N", "one per processor")] = 0
    """Number of jobs at the same time."""
    threads: Annotated[int, arg(metavar="N")] = 1
    """Threads of each worker; results may depend on it in their last digits. No effect with inline."""
    address: Annotated[str, option("HOST:PORT", "none")] = ""
    """Address of a running Ray cluster; HOLDFAST_RAY_TIMEOUT seconds (30) are allowed to connect."""

    def resolved(self, experiment: Experiment) -> tuple[str, EngineOptions]:
        """Return the name and the options of the engine for an experiment.

        Raises:
            ValueError: the options contradict each other.
        """
        from holdfast.experiments.engines import EngineOptions, engine_named

        if self.address and self.engine != "ray":
            raise ValueError("address: allowed only with --engine ray")
        # Several trainings at the same time need several processes.
        several = self.workers > 1
        engine = self.engine or ("processes" if several else experiment.default_engine)
        engine_named(engine)
        options = EngineOptions(self.workers, self.threads, self.address)
        if isinstance(experiment, DeepExperiment) and engine == "processes" and not several:
            options = dataclasses.replace(options, workers=1, threads=0)
        return engine, options


@dataclasses.dataclass(frozen=True)
class BenchCommand:
    """Compare algorithms over models, radii, settings and seeds.

    A TOML file describes the experiment:

      environments = ["gambler", "n-chain"]
      algorithms = ["rcpo", "pcpo"]
      radii = [0.05, 0.1, 0.2]          # default: each model's own
      seeds = 5
      certify = true                    # default: no certificates

      [settings]                        # options of `holdfast solve`
      iterations = 200

      [environment.machine]             # your own model; add "machine" to the environments
      file = "machine.npz"

    The folder receives experiment.json, one file per finished run, table.md/.csv/.tex (one line per
    algorithm and model), overall.* (over all models), timings.*, and for each model figure.png and
    data.csv. `holdfast report DIR` makes a page of it. Finished runs are kept: after an interrupt or a
    kill the same command resumes. A failed job is tried twice more while the others continue.

    Examples:
      holdfast bench my-experiment.toml --out runs/mine
      holdfast bench paper --seeds 2 --workers 2
      holdfast bench velocity --environments HopperVelocity-v0 --algorithms cpo pcpo --steps 1000000
      holdfast bench my-experiment.toml --engine ray --address 10.0.0.1:6379 --out s3://bucket/mine

    Exit codes: 0 done, 1 some jobs failed, 2 bad input, 4 a file could not be written, 130 interrupted.
    """

    experiment: Annotated[Positional[str], arg(metavar="FILE")]
    """TOML file, or an experiment in the package: paper, point-gather, radii, tabular, velocity,
    velocity-ablation."""
    seeds: Annotated[int | None, option("N", "as described")] = None
    """Number of runs of every algorithm, with the seeds 0 to N - 1."""
    iterations: Annotated[int | None, option("N", "as described")] = None
    """Number of policy updates in every run whose algorithm has no number of its own."""
    environments: Annotated[tuple[str, ...], option("NAME ...", "all")] = ()
    """Run only these environments of the experiment."""
    algorithms: Annotated[tuple[str, ...], option("NAME ...", "all")] = ()
    """Run only these algorithms of the experiment."""
    steps: Annotated[int | None, option("N", "as described")] = None
    """Number of simulator steps of every run, adversaries included; for experiments on robots."""
    on: OmitArgPrefixes[EngineArguments] = dataclasses.field(default_factory=EngineArguments)
    out: Annotated[str, option("DIR", "runs/bench/NAME")] = ""
    """Folder for all results, or a URL that fsspec supports."""

    def run(self) -> int:
        """Run unfinished jobs, write tables and figures, and print the comparison."""
        with refused():
            experiment = changed(
                read_description(self.experiment), seeds=self.seeds, iterations=self.iterations
            ).selected(environments=self.environments, algorithms=self.algorithms)
            if self.steps is not None:
                if not isinstance(experiment, RobotExperiment):
                    raise ValueError(
                        f"steps: {experiment.name} ends by iterations, got {self.steps}"
                    )
                experiment = dataclasses.replace(experiment, steps=self.steps)
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
        elif isinstance(experiment, RobotExperiment):
            print((folder / "table.md").read_text())
        elif outcome.results:
            screen = console(width=_FULL)
            screen.print(comparison_table(outcome.results, screen.width))
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
    from holdfast.report.experiment import write_experiment, write_simulator_experiment

    engine, options = on.resolved(experiment)
    with locked(folder, "running an experiment"):
        outcome = runner.run(experiment, folder, engine=engine, options=options, kept=send)
        for inside, _, _ in os.walk(folder):
            remove_unfinished(Path(inside))
        if isinstance(experiment, DeepExperiment):
            for each in outcome.results:
                write_simulator_experiment(folder / each.environment, each)
        elif isinstance(experiment, RobotExperiment):
            from holdfast.report.robots import robot_markdown

            write_text(folder / "table.md", robot_markdown(experiment, outcome.results))
        elif outcome.results:
            write_experiment(folder, outcome.results)
    return outcome


def tell_failures(failures: list[Failed]) -> int:
    """Print the tracebacks of work that failed on every attempt, and return the exit code."""
    for failure in failures:
        print(f"{failure.item} failed {failure.attempts} times:\n{failure.traceback}")
    return FAILED if failures else 0
