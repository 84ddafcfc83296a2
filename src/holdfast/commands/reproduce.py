"""`holdfast reproduce`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional, arg

from holdfast.commands._shared import check_writable, console, refused
from holdfast.experiments import DEEP, PAPER, DeepExperiment, TabularExperiment

if TYPE_CHECKING:
    from holdfast.report.claims import Verdict


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments and check its claims."""

    about: ClassVar[str] = """Runs the paper's experiments and checks its claims against them.

gambler, n-chain and frozen-lake compare RCPO with PCPO, CPO and RVI in tables, from several random
initial policies. Their folders get figure.png and figure.svg, every iterate in data.csv,
summary.json, summary.csv and config.json. They take a minute together.

point-gather trains RCPO, PCPO, CPO and unconstrained TRPO in a simulator, with two step sizes, and
puts the policies under noise and under attack. Its folder gets figure.png, undisturbed.png, table.md,
table.csv, learning.csv and a folder for each training run. It takes hours on two cores, minutes on a
GPU; --seeds 1 --iterations 20 is a quick look.

Beside the folders, claims.md says which claims hold. What is finished is kept: after an interrupt the
same command goes on from there.

Examples:
  holdfast reproduce
  holdfast reproduce gambler n-chain --seeds 2 --iterations 50 --out runs/quick
  holdfast reproduce point-gather

Exit codes: 0 done, 2 bad input, 130 interrupted. Claims that do not hold do not change it."""

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = tuple(PAPER)
    """Which experiments."""
    seeds: Annotated[int, arg(metavar="N")] = TabularExperiment.seeds
    """Runs of every algorithm, with the seeds 0 to N - 1."""
    iterations: Annotated[
        int | None, arg(metavar="N", help_behavior_hint="(default: 200; point-gather: 100)")
    ] = None
    """Iterations of every run."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/reproduce")
    """Folder for everything that is written."""

    def run(self) -> int:
        """Runs what is not there yet, writes the reports and prints the claims."""
        with refused():
            experiments = [self._experiment(name) for name in dict.fromkeys(self.names)]
            check_writable(self.out)
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.claims_table import claims_table, notes, write_claims

        use_compilation_cache()
        tables = [each for each in experiments if isinstance(each, TabularExperiment)]
        verdicts = self._in_tables(tables) if tables else []
        for each in experiments:
            if isinstance(each, DeepExperiment):
                verdicts += self._in_a_simulator(each)
        write_claims(self.out, verdicts)
        console().print(claims_table(verdicts))
        for note in notes(verdicts):
            print(note)
        for experiment in experiments:
            print(f"{experiment.environment}: {self.out / experiment.environment / 'figure.png'}")
        print(f"claims: {self.out / 'claims.md'}")
        return 0

    def _in_tables(self, experiments: list[TabularExperiment]) -> list[Verdict]:
        from holdfast.experiments.runner import run
        from holdfast.report.claims import check_claims
        from holdfast.report.experiment import write_experiment

        results = run(experiments, self.out)
        for found in results:
            write_experiment(self.out / found.experiment.environment, found)
        return check_claims(results)

    def _in_a_simulator(self, experiment: DeepExperiment) -> list[Verdict]:
        from holdfast.experiments.deep_runner import run_deep
        from holdfast.report.deep_claims import check_deep_claims
        from holdfast.report.deep_experiment import write_deep_experiment

        folder = self.out / experiment.environment
        found = run_deep(experiment, folder)
        write_deep_experiment(folder, found)
        return check_deep_claims(found)

    def _experiment(self, name: str) -> TabularExperiment | DeepExperiment:
        known: dict[str, TabularExperiment | DeepExperiment] = {**PAPER, **DEEP}
        if name not in known:
            raise ValueError(f"unknown experiment {name!r}; there are {', '.join(known)}")
        usual = known[name]
        iterations = usual.iterations if self.iterations is None else self.iterations
        return dataclasses.replace(usual, seeds=self.seeds, iterations=iterations)
