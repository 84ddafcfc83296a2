"""`holdfast reproduce`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast._support.arguments import meant
from holdfast.cli._shared import check_writable, console, option, refused
from holdfast.cli.bench import EngineArguments, changed, perform, tell_failures
from holdfast.experiments import Experiment, TabularExperiment, read_suite

if TYPE_CHECKING:
    from holdfast.experiments.engines import Failed
    from holdfast.report.claims import Verdict

TABLES = read_suite("paper").environments
SIMULATORS = read_suite("point-gather").environments


@dataclasses.dataclass(frozen=True)
class ReproduceCommand:
    """Run the paper's experiments and check its claims.

    gambler, n-chain and frozen-lake compare RCPO with PCPO, CPO and RVI on tables, from several random
    initial policies. Each model's folder receives figure.png, figure.svg and every iterate in data.csv.
    The output folder receives table.md, overall.md and timings.md (also .csv and .tex). The three take
    about a minute. This is `holdfast bench paper` with a check of the claims.

    point-gather trains RCPO, PCPO, CPO and unconstrained TRPO on a simulator with two step sizes, and
    tests the policies under noise and attack. Its folder receives figure.png, undisturbed.png, table.md,
    table.csv, learning.csv and one folder per training run. It takes hours on two cores and minutes on
    a GPU; --seeds 1 --iterations 20 is a quick look.

    claims.md lists which claims hold. Finished work is kept: after an interrupt the same command
    resumes.

    Examples:
      holdfast reproduce
      holdfast reproduce gambler n-chain --seeds 2 --iterations 50 --out runs/quick
      holdfast reproduce point-gather

    Exit codes: 0 done, whether or not the claims hold, 1 some jobs failed, 2 bad input, 4 a file
    could not be written, 130 interrupted.
    """

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = TABLES
    """Experiments to run: gambler, n-chain, frozen-lake, point-gather."""
    seeds: Annotated[int, arg(metavar="N")] = TabularExperiment.seeds
    """Number of runs of every algorithm, with the seeds 0 to N - 1."""
    iterations: Annotated[int | None, option("N", "200; point-gather: 100")] = None
    """Number of policy updates in every run."""
    on: OmitArgPrefixes[EngineArguments] = dataclasses.field(default_factory=EngineArguments)
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/reproduce")
    """Folder for all results."""

    def run(self) -> int:
        """Run unfinished jobs, write the reports and print the claims."""
        with refused():
            experiments = self._experiments()
            check_writable(self.out)
            for each in experiments:
                self.on.resolved(each)
        from holdfast.report.claims import check_claims, claims_table, notes, write_claims

        verdicts: list[Verdict] = []
        failures: list[Failed] = []
        for each in experiments:
            outcome = perform(each, self.out, self.on)
            verdicts += check_claims(outcome.results)
            failures += outcome.failures
        write_claims(self.out, verdicts)
        console().print(claims_table(verdicts))
        for note in notes(verdicts):
            print(note)
        for name in dict.fromkeys(self.names):
            print(f"{name}: {self.out / name / 'figure.png'}")
        print(f"claims: {self.out / 'claims.md'}")
        return tell_failures(failures)

    def _experiments(self) -> list[Experiment]:
        known = (*TABLES, *SIMULATORS)
        for name in self.names:
            if name not in known:
                raise ValueError(f"names: there is no {name!r}{meant(name, known)}")
        found: list[Experiment] = []
        for suite, every in (("paper", TABLES), ("point-gather", SIMULATORS)):
            asked = tuple(name for name in dict.fromkeys(self.names) if name in every)
            if asked:
                experiment = dataclasses.replace(read_suite(suite), environments=asked)
                found.append(changed(experiment, seeds=self.seeds, iterations=self.iterations))
        return found
