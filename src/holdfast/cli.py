"""The command line: parses, calls, prints.

Nothing heavy is imported until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol

from tyro.conf import Positional, arg

from holdfast import __version__
from holdfast.experiments import PAPER, Job, TabularExperiment

if TYPE_CHECKING:
    from rich.console import Console

FEASIBLE, BAD_INPUT, NOT_FEASIBLE, INTERRUPTED = 0, 2, 3, 130

_ABOUT = """Policies that keep their constraints when the world is not the model.

Start with one of:
  holdfast reproduce gambler --seeds 1
  holdfast solve gambler --out runs/gambler
  holdfast certify gambler runs/gambler

`holdfast COMMAND --help` teaches a command; `holdfast --version` prints the version."""


class BadInputError(Exception):
    """What the user gave cannot be used; the message is one sentence that names it."""


class Command(Protocol):
    """A subcommand: a frozen record of its arguments that can be run."""

    about: ClassVar[str]

    def run(self) -> int:
        """Does the work and gives the exit code."""


@dataclasses.dataclass(frozen=True)
class Reproduce:
    """Run the paper's tabular experiments and check its claims."""

    about: ClassVar[
        str
    ] = """Runs the paper's tabular experiments and checks its claims against them.

Each experiment compares RCPO with PCPO, CPO and RVI from several random initial policies. Its
folder gets figure.png and figure.svg, every iterate in data.csv, summary.json, summary.csv and
config.json; beside the folders, claims.md says which of the paper's claims hold. Finished runs are
kept: after an interrupt, or with more seeds, the same command goes on from there.

Examples:
  holdfast reproduce
  holdfast reproduce gambler n-chain --seeds 2 --iterations 50 --out runs/quick

Exit codes: 0 done, 2 bad input, 130 interrupted. Claims that do not hold do not change it."""

    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = tuple(PAPER)
    """Which experiments."""
    seeds: Annotated[int, arg(metavar="N")] = TabularExperiment.seeds
    """Runs of every algorithm, with the seeds 0 to N - 1."""
    iterations: Annotated[int, arg(metavar="N")] = TabularExperiment.iterations
    """Iterations of every run."""
    out: Annotated[Path, arg(metavar="DIR")] = Path("runs/reproduce")
    """Folder for everything that is written."""

    def run(self) -> int:
        """Runs what is not there yet, writes the reports and prints the claims."""
        with _refused():
            experiments = [self._experiment(name) for name in dict.fromkeys(self.names)]
            _check_writable(self.out)
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.experiments.runner import run
        from holdfast.report.claims import check_claims
        from holdfast.report.claims_table import claims_table, notes, write_claims
        from holdfast.report.experiment import write_experiment

        use_compilation_cache()
        results = run(experiments, self.out)
        for found in results:
            write_experiment(self.out / found.experiment.environment, found)
        verdicts = check_claims(results)
        write_claims(self.out, verdicts)
        _console().print(claims_table(verdicts))
        for note in notes(verdicts):
            print(note)
        for experiment in experiments:
            print(f"{experiment.environment}: {self.out / experiment.environment / 'figure.png'}")
        print(f"claims: {self.out / 'claims.md'}")
        return 0

    def _experiment(self, name: str) -> TabularExperiment:
        if name not in PAPER:
            raise ValueError(f"unknown experiment {name!r}; there are {', '.join(PAPER)}")
        return dataclasses.replace(PAPER[name], seeds=self.seeds, iterations=self.iterations)


@dataclasses.dataclass(frozen=True)
class Solve:
    """Search for a policy that keeps a model's constraints in the worst case."""

    about: ClassVar[str] = """Searches for the best policy that keeps a model's constraints in the \
worst case.

Prints what was found and writes a folder: policy.npz, model.npz, history.csv (every iterate) and
solution.json. `holdfast certify` reads that folder. RobustCMDP.save writes a model file.

Examples:
  holdfast solve gambler --out runs/gambler
  holdfast solve my-model.npz --iterations 500 --trust-region 0.005

Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input, 130 interrupted."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A .npz file, a folder that solve wrote, or a name such as gambler."""
    algorithm: Annotated[str, arg(metavar="NAME")] = "rcpo"
    """One of rcpo, pcpo, cpo, rvi, lp."""
    iterations: Annotated[int, arg(metavar="N")] = TabularExperiment.iterations
    """Number of policy updates."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = TabularExperiment.trust_region
    """Largest expected KL divergence of one update."""
    step: Annotated[str, arg(metavar="exact|taylor")] = TabularExperiment.step
    """Solve each update exactly, or its second-order expansion."""
    safeguard: Annotated[str, arg(metavar="project|none")] = "project"
    """"project" keeps a feasible policy feasible; "none" is the paper's plain update."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Draws the initial policy."""
    out: Annotated[
        str, arg(metavar="DIR", help_behavior_hint="(default: runs/solve/MODEL-ALGORITHM-seed-N)")
    ] = ""
    """Folder for what is written."""

    def run(self) -> int:
        """Solves, prints a table and writes the folder."""
        job = Job(
            environment=Path(self.model).name,
            algorithm=self.algorithm,
            seed=self.seed,
            iterations=self.iterations,
            trust_region=self.trust_region,
            step=self.step,
            safeguard=None if self.safeguard == "none" else self.safeguard,
            worst_case=TabularExperiment.worst_case,
        )
        folder = f"{Path(self.model).stem}-{self.algorithm}-seed-{self.seed}"
        out = Path(self.out or Path("runs/solve") / folder)
        import holdfast as hf
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.experiments.progress import progress_on
        from holdfast.report.solution import read_model, solution_table, write_solution

        with _refused():
            _check_writable(out)
            model = read_model(self.model)
        use_compilation_cache()
        with _refused(), progress_on(sys.stderr, jobs=1) as progress:
            progress.begun(job)
            solution = hf.solve(
                model, job.algorithm, callback=progress.iterated, **job.solve_arguments()
            )
        write_solution(out, model, solution, job.to_dict())
        _console().print(solution_table(model, solution))
        if solution.attainable is not None:
            best = ", ".join(f"{value:.6g}" for value in solution.attainable)
            print(f"each constraint on its own could reach, in the worst case: {best}")
        print(f"written to {out}")
        return FEASIBLE if solution.status == "feasible" else NOT_FEASIBLE


@dataclasses.dataclass(frozen=True)
class Certify:
    """Prove whether a policy keeps a model's constraints in the worst case."""

    about: ClassVar[
        str
    ] = """Proves whether a policy keeps a model's constraints in the worst case, \
and by how much.

The worst-case values are bracketed from both sides, so the answer does not rest on the search for
the worst case having gone well.

Examples:
  holdfast certify gambler runs/gambler
  holdfast certify my-model.npz my-policy.npy --json

Exit codes: 0 the policy is feasible, 3 it is not, 2 bad input."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A .npz file, a folder that solve wrote, or a name such as gambler."""
    policy: Annotated[Positional[Path], arg(metavar="POLICY")]
    """A .npz file with the array "policy", a .npy file, or a folder that solve wrote."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Certifies and prints the certificate."""
        import holdfast as hf
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.solution import read_model, read_policy
        from holdfast.report.tables import to_json

        use_compilation_cache()
        with _refused():
            certificate = hf.certify(read_model(self.model), read_policy(self.policy))
        print(to_json(certificate.to_dict()) if self.json else certificate)
        return FEASIBLE if certificate.feasible else NOT_FEASIBLE


COMMANDS: dict[str, type[Command]] = {"reproduce": Reproduce, "solve": Solve, "certify": Certify}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"holdfast {__version__}")
        return 0
    try:
        return _parse(arguments).run()
    except BadInputError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(
            "Interrupted: the same command goes on, with every finished run kept.", file=sys.stderr
        )
        return INTERRUPTED


def _parse(arguments: list[str]) -> Command:
    import tyro

    if arguments and arguments[0] in COMMANDS:
        command = COMMANDS[arguments[0]]
        return tyro.cli(
            command,
            prog=f"holdfast {arguments[0]}",
            description=command.about,
            args=arguments[1:],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    # Only ever prints help or refuses: every subcommand was taken care of above.
    return tyro.extras.subcommand_cli_from_dict(
        dict(COMMANDS), prog="holdfast", description=_ABOUT, args=arguments
    )


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Input that the library does not take becomes one sentence and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadInputError(" ".join(str(error).split())) from error


def _check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written to, without making it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{folder}: cannot be written to, since {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: cannot be written to, permission denied")


def _console() -> Console:
    from rich.console import Console

    # A pipe or a file has no width of its own, and rich's 80 columns would fold every cell.
    return Console() if sys.stdout.isatty() else Console(width=120)
