"""`holdfast train`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from holdfast.cli import _shared
from holdfast.cli._shared import check_writable, option, refused
from holdfast.simulators.training.settings import AdversarySettings, Settings

if TYPE_CHECKING:
    from holdfast.simulators.policy.agent import Agent


@dataclasses.dataclass(frozen=True)
class TrainCommand:
    """Train policies that keep their cost limits under the worst-case kernels of a simulator.

    Environments: point-gather, linear-gaussian, every table such as gambler or n-chain, and every
    Gymnasium environment by its id, such as HalfCheetah-v5 or holdfast/PointCircle-v0. For Gymnasium,
    --channel names what nature disturbs, and the cost comes from the environment, --cost or
    --speed-limit.

    Algorithms: rcpo; ppo-lag and trpo-lag, which use adversaries if there is a radius; pcpo and cpo,
    which trust the simulator and take no radius; trpo, which also ignores the limits.

    The folder receives run.json (all settings), metrics.jsonl (one row per iteration and seed),
    timings.jsonl, checkpoint.safetensors, one agent-SEED.safetensors per seed at the end, and
    TensorBoard events if that is installed. After an interrupt or a kill the same command resumes and
    reaches the same result; with more iterations it continues a finished run. `holdfast stress` reads
    the folder, and hf.load an agent.

    Examples:
      holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
      holdfast train point-gather --algorithm pcpo --cost-limit 0.1 --seed 3 --steps 2_500_000
      holdfast train n-chain --radius 0.15 --limit-on discounted --weighting discounted --out runs/chain
      holdfast train point-gather --radius 0.02 --cost-limit 0.3 --certified 0.99
      holdfast train HalfCheetah-v5 --channel "parameters mass=0.3" --speed-limit 2 --cost-limit 25

    Exit codes: 0 trained, 3 trained but over a limit (mean measured cost of a seed under its worst-case
    kernel, with drawn or with most likely actions, over the last tenth of the iterations and at most
    ten) or, with --certified, a limit not proved, 1 the simulator failed or returned a number that is
    not finite, 2 bad input, 4 a file could not be written, 130 interrupted.
    """

    environment: Annotated[Positional[str], arg(metavar="ENV")]
    """Name of an environment such as point-gather, module:NAME, or id of a Gymnasium environment."""
    algorithm: Annotated[str, arg(metavar="NAME")] = "rcpo"
    """One of rcpo, ppo-lag, trpo-lag, pcpo, cpo, trpo, or module:NAME."""
    radius: Annotated[float, arg(metavar="R")] = Settings.radius
    """Radius of the KL ball around the nominal distribution of the disturbance at each step, in nats."""
    cost_limit: Annotated[tuple[float, ...], option("C ...", "the environment's own")] = ()
    """Limit of each cost, in the cost's own unit."""
    limit_on: Annotated[str, arg(metavar="episode|discounted")] = Settings.limit_on
    """Limit the total cost of an episode, or its discounted cost over an infinite horizon."""
    weighting: Annotated[str, arg(metavar="steps|discounted")] = Settings.weighting
    """Count every step of an episode alike in the policy's update, or step t by discount^t as in the
    paper."""
    seeds: Annotated[int | None, option("N", "one")] = None
    """Number of policies trained side by side, with the seeds 0 to N - 1."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of a single policy, without --seeds."""
    iterations: Annotated[int | None, option("N", f"{Settings.iterations}")] = None
    """Number of policy updates."""
    steps: Annotated[int | None, option("N", "--iterations decides")] = None
    """Number of simulator steps in the batches of policy updates, instead of --iterations."""
    batch_size: Annotated[int | None, option("N", f"{Settings.batch_size}; Gymnasium 10000")] = None
    """Number of simulator steps under each kernel for one update."""
    channel: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(metavar="TEXT", help_behavior_hint="(repeatable; default: none)"),
    ] = ()
    """Disturbance of a Gymnasium environment with its scale: "parameters mass=0.3 friction=0.3",
    "actions 0.1", "observations 0.05", "force torso 20"."""
    cost: Annotated[str, option("KEY", "cost")] = ""
    """Key of the cost in the info of a Gymnasium environment."""
    speed_limit: Annotated[float | None, option("V", "none")] = None
    """Speed above which a step of a Gymnasium environment costs 1, in its own unit, as the only cost."""
    step_timeout: Annotated[float | None, option("S", "300")] = None
    """Seconds that a reset or a step of a Gymnasium environment may take; 0 for no limit."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = Settings.trust_region
    """Largest mean KL divergence of one update, in nats."""
    devices: Annotated[int, arg(metavar="N")] = 1
    """Number of devices that share the episodes of every batch."""
    discount: Annotated[float | None, option("G", "the environment's own")] = Settings.discount
    """Discount of the reward, and of costs with --limit-on discounted."""
    hidden: Annotated[tuple[int, ...], option("N ...", "64 32; Gymnasium 64 64")] = ()
    """Widths of the hidden layers of the policy and of each critic."""
    memory: Annotated[int, arg(metavar="K")] = Settings.memory
    """Number of past observations and actions that the policy sees beside the current observation."""
    start: Annotated[str, option("FILE", "none")] = ""
    """Agent whose policy is the initial policy: an agent file, or the folder of a run with one seed."""
    certified: Annotated[float | None, option("P", "none")] = None
    """Confidence, such as 0.99, with which the limits have to be proved. The policy is certified every
    25 iterations, and training aims lower until the proved bound is within the limit."""
    wandb: Annotated[str, option("PROJECT", "none")] = ""
    """Project of Weights & Biases that receives the metrics."""
    out: Annotated[str, option("DIR", "runs/train/ENV-ALGORITHM[-radius-R][-seed-N]")] = ""
    """Folder for the results."""
    video: Annotated[
        tuple[str, ...] | None, option("FILE ...", "none; without a name: episode.mp4")
    ] = None
    """Record one episode of the first policy, with its most likely actions, as .mp4 or .gif: a path,
    or a name in the run's folder."""
    adversary: AdversarySettings = Settings.adversary
    """Training of the adversary, for robust algorithms."""

    def run(self) -> int:
        """Train what is unfinished and print the last measurements."""
        folder = f"{self.environment.replace('/', '-')}-{self.algorithm}"
        folder += f"-radius-{self.radius:g}" if self.radius else ""
        folder += f"-seed-{self.seed}" if self.seed else ""
        out = Path(self.out or Path("runs/train") / folder)
        with refused():
            check_writable(out)
            videos = self._videos(out)
        import holdfast as hf
        from holdfast.report.records import read_training
        from holdfast.report.training import outcome_table, progress_on
        from holdfast.simulators.train import TrainingError, prepare

        accepted = {field.name for field in dataclasses.fields(Settings)}
        accepted |= {"seeds", "seed", "steps", "devices", "certified"}
        settings = {k: v for k, v in vars(self).items() if k in accepted}
        for name in ("iterations", "batch_size", "hidden"):
            if settings[name] in (None, ()):
                del settings[name]
        with refused():
            start = hf.load(self.start) if self.start else None
            run = prepare(self._simulator(), self.algorithm, start=start, **settings)
            if videos:
                from holdfast.report.video import check_picture

                check_picture(run.env)
        try:
            with refused(), progress_on(sys.stderr, run.describe()) as progress:
                agents = run.train(out, progress, self.wandb or None)
        except TrainingError as error:
            raise _shared.FailedError(str(error)) from error
        trained = read_training(out)
        _shared.console().print(outcome_table(trained))
        if trained.over_limits:
            print(f"over a limit: {', '.join(trained.over_limits)}")
        proofs = [(agent.label, agent.certificate) for agent in agents]
        for label, proof in proofs:
            if proof is not None:
                outcome = proof.assumptions[0].removesuffix(".")
                print(f"{label}: {outcome}, with {proof.setup['actions']} actions.")
        unproved = any(proof is not None and proof.verdict != "holds" for _, proof in proofs)
        drawn = self._draw(out, agents[0], videos)
        print(f"written to {out}")
        print(f"next: holdfast stress {out}")
        if not drawn:
            return _shared.NOT_WRITTEN
        broken = unproved if self.certified is not None else bool(trained.over_limits)
        return _shared.NOT_FEASIBLE if broken else _shared.FEASIBLE

    def _draw(self, out: Path, agent: Agent, videos: tuple[Path, ...]) -> bool:
        """Draw and record episodes; return False if a file could not be written."""
        try:
            if self.environment == "point-gather":
                from holdfast.environments.point_gather_episode import Episode, draw_episode

                for suffix in ("png", "gif"):
                    if out / f"episode.{suffix}" not in videos:
                        draw_episode(out / f"episode.{suffix}", Episode.of(agent))
            for video in videos:
                from holdfast.report.video import record

                record(agent, video)
                print(f"recorded in {video}")
        except OSError as error:
            print(f"holdfast: no picture, {error}", file=sys.stderr)
            return False
        return True

    def _videos(self, out: Path) -> tuple[Path, ...]:
        """Return the paths of the videos, or refuse them before any work."""
        if self.video is None:
            return ()
        from holdfast.report.video import check_video, draw_without_display

        draw_without_display()
        found = []
        for name in self.video or ("episode.mp4",):
            path = Path(name) if Path(name).name != name else out / name
            try:
                found.append(check_video(path))
            except ImportError as error:
                raise _shared.BadInputError(str(error)) from error
            if path.parent != out:
                check_writable(path.parent)
        return tuple(found)

    def _simulator(self) -> Any:
        """Return the named simulator, or the Gymnasium environment with its options."""
        names = ("channel", "cost", "speed_limit", "step_timeout")
        return _shared.named_simulator(
            self.environment, {name: getattr(self, name) for name in names}
        )
