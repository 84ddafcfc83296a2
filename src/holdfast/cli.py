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
from holdfast.deep.configuration import AdversarySettings, Settings
from holdfast.experiments import DEEP, PAPER, DeepExperiment, Job, TabularExperiment

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.report.claims import Verdict

FEASIBLE, FAILED, BAD_INPUT, NOT_FEASIBLE, INTERRUPTED = 0, 1, 2, 3, 130

_ABOUT = """Policies that keep their constraints when the world is not the model.

Start with one of:
  holdfast reproduce gambler --seeds 1
  holdfast solve gambler --out runs/gambler
  holdfast certify gambler runs/gambler
  holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
  holdfast stress runs/train/point-gather-rcpo-radius-0.2

`holdfast COMMAND --help` teaches a command; `holdfast --version` prints the version."""


class BadInputError(Exception):
    """What the user gave cannot be used; the message is one sentence that names it."""


class FailedError(Exception):
    """The work itself cannot go on; the message is one sentence that says why."""


class Command(Protocol):
    """A subcommand: a frozen record of its arguments that can be run."""

    about: ClassVar[str]

    def run(self) -> int:
        """Does the work and gives the exit code."""


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
        with _refused():
            experiments = [self._experiment(name) for name in dict.fromkeys(self.names)]
            _check_writable(self.out)
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.claims_table import claims_table, notes, write_claims

        use_compilation_cache()
        tables = [each for each in experiments if isinstance(each, TabularExperiment)]
        verdicts = self._in_tables(tables) if tables else []
        for each in experiments:
            if isinstance(each, DeepExperiment):
                verdicts += self._in_a_simulator(each)
        write_claims(self.out, verdicts)
        _console().print(claims_table(verdicts))
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


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy on a simulator that keeps its limits in the worst case."""

    about: ClassVar[str] = """Trains policies that keep their cost limits under the worst-case \
kernels of a simulator.

Environments: point-gather, linear-gaussian, and as simulators the tables gambler, n-chain and
frozen-lake. Algorithms: rcpo; pcpo and cpo, which trust the simulator and take no radius; trpo, which
knows no limits either.

The folder gets run.json (all settings), metrics.jsonl (a row for every iteration and seed),
timings.jsonl, checkpoint.safetensors, an agent-SEED.safetensors for each seed once training is done, and
a folder for TensorBoard where that is installed. After an interrupt or a kill the same command goes on,
to the same result; with more iterations it carries a finished run further. `holdfast stress` reads the
folder, and hf.load an agent.

Examples:
  holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
  holdfast train point-gather --algorithm pcpo --cost-limit 0.1 --seed 3 --iterations 50
  holdfast train n-chain --radius 0.15 --limit-on discounted --batch-size 9000 --out runs/chain

Exit codes: 0 trained, 3 trained but over a limit (the mean of a seed's measured cost, under its
worst-case kernel, over the last tenth of the iterations and at most ten), 1 training had to stop since
something was not a finite number, 2 bad input, 130 interrupted."""

    environment: Annotated[Positional[str], arg(metavar="ENV")]
    """Name of a simulator, such as point-gather."""
    algorithm: Annotated[str, arg(metavar="NAME")] = "rcpo"
    """One of rcpo, pcpo, cpo, trpo."""
    radius: Annotated[float, arg(metavar="R")] = Settings.radius
    """Of the KL ball of the disturbance around its nominal distribution, at every step."""
    cost_limit: Annotated[
        tuple[float, ...],
        arg(metavar="C ...", help_behavior_hint="(default: the environment's own)"),
    ] = ()
    """Limit of each cost."""
    limit_on: Annotated[str, arg(metavar="episode|discounted")] = Settings.limit_on
    """Limit the cost of an episode, or the discounted cost with what follows its cut."""
    seeds: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: one)")] = None
    """Policies trained side by side, with the seeds 0 to N - 1."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the one policy, where --seeds is left out."""
    iterations: Annotated[int, arg(metavar="N")] = Settings.iterations
    """Number of policy updates."""
    batch_size: Annotated[int, arg(metavar="N")] = Settings.batch_size
    """Steps drawn under each kernel for one update."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = Settings.trust_region
    """KL divergence of one update."""
    discount: Annotated[
        float | None, arg(metavar="G", help_behavior_hint="(default: the environment's own)")
    ] = Settings.discount
    """Of the reward, and of costs with --limit-on discounted."""
    hidden: Annotated[tuple[int, ...], arg(metavar="N ...")] = Settings.hidden
    """Layers of the policy and of each critic."""
    out: Annotated[
        str,
        arg(
            metavar="DIR",
            help_behavior_hint="(default: runs/train/ENV-ALGORITHM[-radius-R][-seed-N])",
        ),
    ] = ""
    """Folder for what is written."""
    adversary: AdversarySettings = Settings.adversary
    """How hard nature works against the policy; only rcpo has a use for these."""

    def run(self) -> int:
        """Trains what is not trained yet, and prints how it ended."""
        folder = f"{self.environment}-{self.algorithm}"
        folder += f"-radius-{self.radius:g}" if self.radius else ""
        folder += f"-seed-{self.seed}" if self.seed else ""
        out = Path(self.out or Path("runs/train") / folder)
        with _refused():
            _check_writable(out)
        from holdfast.deep.train import TrainingError, prepare
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.training import Outcome, progress_on

        use_compilation_cache()
        chosen = ("radius", "cost_limit", "limit_on", "iterations", "batch_size", "trust_region")
        settings = {
            name: getattr(self, name) for name in (*chosen, "discount", "hidden", "adversary")
        }
        with _refused():
            run = prepare(
                self.environment, self.algorithm, seeds=self.seeds, seed=self.seed, **settings
            )
        try:
            with _refused(), progress_on(sys.stderr, run.describe()) as progress:
                agents = run.train(out, progress)
        except TrainingError as error:
            raise FailedError(str(error)) from error
        outcome = Outcome.of(out)
        _console().print(outcome.table())
        if outcome.over_limits:
            print(f"over a limit: {', '.join(outcome.over_limits)}")
        if self.environment == "point-gather":
            from holdfast.report.episode import Episode, draw_episode

            for suffix in ("png", "gif"):
                draw_episode(out / f"episode.{suffix}", Episode.of(agents[0]))
        print(f"written to {out}")
        print(f"next: holdfast stress {out}")
        return NOT_FEASIBLE if outcome.over_limits else FEASIBLE


@dataclasses.dataclass(frozen=True)
class Stress:
    """Put trained policies under kernels that they were not trained on."""

    about: ClassVar[
        str
    ] = """Puts trained policies under kernels that they were not trained on, and \
measures what is left.

For every radius fresh adversaries are trained against the frozen policy, for the reward and for each
cost; besides them, stronger noise, noise on actions and other physics are tried. Prints a table and the
critical radius, the largest at which every limit was found to hold, and writes stress.json and
stress.png.

Examples:
  holdfast stress runs/train/point-gather-rcpo-radius-0.2
  holdfast stress runs/train/point-gather-rcpo-radius-0.2/agent-3.safetensors --radii 0.1 0.2 0.4
  holdfast stress runs/mine --radii 0 --noise 1 2 4 --parameters speed=0.8,1.2 turn=0.5,2

Exit codes: 0 done, whatever was found, 1 the simulator returned something that is not a finite number, 2
bad input, 130 interrupted."""

    agents: Annotated[Positional[Path], arg(metavar="RUN_OR_AGENT")]
    """A folder that train wrote, or one agent's file."""
    radii: Annotated[
        tuple[float, ...], arg(metavar="R ...", help_behavior_hint="(default: 0.05 0.1 0.2 0.4)")
    ] = ()
    """Radii of the attacks; 0 alone leaves them out."""
    noise: Annotated[
        tuple[float, ...],
        arg(metavar="X ...", help_behavior_hint="(default: 1 1.5 2 3, where it is Gaussian)"),
    ] = ()
    """Factors on the disturbance."""
    action_noise: Annotated[
        tuple[float, ...],
        arg(metavar="S ...", help_behavior_hint="(default: 0.05 0.1 0.2, where they are vectors)"),
    ] = ()
    """Standard deviations of noise on the actions."""
    parameters: Annotated[
        tuple[str, ...], arg(metavar="NAME=V,V ...", help_behavior_hint="(default: none)")
    ] = ()
    """Physical parameters of the environment, and values to try for each."""
    restarts: Annotated[int, arg(metavar="N")] = 2
    """Adversaries of each kind for each radius and signal; the strongest counts."""
    episodes: Annotated[int, arg(metavar="N")] = 20_000
    """Episodes that each number is the mean of, for each agent."""
    updates: Annotated[int, arg(metavar="N")] = 100
    """Batches that a learned adversary is trained on."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of all that is drawn."""
    json: bool = False
    """Print JSON."""
    out: Annotated[
        str,
        arg(metavar="DIR", help_behavior_hint="(default: the run's folder, or AGENT-stress)"),
    ] = ""
    """Folder for stress.json and stress.png."""

    def run(self) -> int:
        """Stresses, prints the table and writes the files."""
        given = self.agents
        out = Path(self.out or (given if given.is_dir() else f"{given.with_suffix('')}-stress"))
        with _refused():
            parameters = dict(map(_parameter, self.parameters))
            _check_writable(out)
        import holdfast as hf
        from holdfast.deep.runs import agent_files
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.tables import to_json
        from holdfast.report.training import tests_on

        use_compilation_cache()
        with _refused():
            agents = [hf.load(file) for file in (agent_files(given) if given.is_dir() else [given])]
        given_tests = {
            name: getattr(self, name)
            for name in ("radii", "noise", "action_noise")
            if getattr(self, name)
        }
        try:
            with _refused(), tests_on(sys.stderr) as progress:
                found = hf.stress(
                    agents,
                    parameters=parameters,
                    restarts=self.restarts,
                    episodes=self.episodes,
                    updates=self.updates,
                    seed=self.seed,
                    callback=progress,
                    **given_tests,
                )
        except FloatingPointError as error:
            raise FailedError(str(error)) from error
        found.save(out / "stress.json")
        written = [out / "stress.json"]
        if len(found.rows) > 1:  # there is nothing to draw of the nominal kernel alone
            found.plot(out / "stress.png")
            written.append(out / "stress.png")
        print(to_json(found.to_dict()) if self.json else found)
        if not self.json:
            print(f"written to {' and '.join(map(str, written))}")
        return 0


def _parameter(text: str) -> tuple[str, list[float]]:
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise ValueError(f"parameters: expected NAME=VALUE,VALUE, got {text!r}") from error


COMMANDS: dict[str, type[Command]] = {
    "reproduce": Reproduce,
    "solve": Solve,
    "certify": Certify,
    "train": Train,
    "stress": Stress,
}


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
    except FailedError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on from what is on disk.", file=sys.stderr)
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
