"""`holdfast train`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import Positional, UseAppendAction, arg

from holdfast.cli._shared import (
    FEASIBLE,
    NOT_FEASIBLE,
    BadInputError,
    FailedError,
    check_writable,
    console,
    refused,
)
from holdfast.simulators.training.settings import AdversarySettings, Settings


@dataclasses.dataclass(frozen=True)
class Train:
    """Train a policy on a simulator that keeps its limits in the worst case."""

    about: ClassVar[str] = """Trains policies that keep their cost limits under the worst-case \
kernels of a simulator.

Environments: point-gather, linear-gaussian, and as simulators the tables gambler, n-chain and
frozen-lake; and every environment of Gymnasium by its id, such as HalfCheetah-v5 or
holdfast/PointCircle-v0, with --channel to say what nature may disturb and with a cost that it gives
itself, or --cost or --speed-limit.

Algorithms: rcpo; pcpo and cpo, which trust the simulator and take no radius; trpo, which knows no limits
either.

The folder gets run.json (all settings), metrics.jsonl (a row for every iteration and seed),
timings.jsonl, checkpoint.safetensors, an agent-SEED.safetensors for each seed once training is done, and
a folder for TensorBoard where that is installed. After an interrupt or a kill the same command goes on,
to the same result; with more iterations it carries a finished run further. `holdfast stress` reads the
folder, and hf.load an agent.

Examples:
  holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
  holdfast train point-gather --algorithm pcpo --cost-limit 0.1 --seed 3 --iterations 50
  holdfast train n-chain --radius 0.15 --limit-on discounted --batch-size 9000 --out runs/chain
  holdfast train HalfCheetah-v5 --channel "parameters mass=0.3" --speed-limit 2 --cost-limit 25 --video

Exit codes: 0 trained, 3 trained but over a limit (the mean of a seed's measured cost, under its
worst-case kernel, over the last tenth of the iterations and at most ten), 1 training had to stop since
something was not a finite number, 2 bad input, 130 interrupted."""

    environment: Annotated[Positional[str], arg(metavar="ENV")]
    """Name of a simulator, such as point-gather, or id of a Gymnasium environment."""
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
    channel: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(metavar="TEXT", help_behavior_hint="(repeatable; default: nothing)"),
    ] = ()
    """What nature disturbs in a Gymnasium environment, and how far: "parameters mass=0.3 friction=0.3",
    "actions 0.1", "observations 0.05", "force torso 20"."""
    cost: Annotated[str, arg(metavar="KEY", help_behavior_hint="(default: cost)")] = ""
    """What a Gymnasium environment calls its cost in info."""
    speed_limit: Annotated[float | None, arg(metavar="V", help_behavior_hint="(default: none)")] = (
        None
    )
    """Speed over which a step of a Gymnasium environment costs 1, instead of a cost of its own."""
    trust_region: Annotated[float, arg(metavar="DELTA")] = Settings.trust_region
    """KL divergence of one update."""
    devices: Annotated[int, arg(metavar="N")] = 1
    """Over which the episodes of every batch are divided: GPUs, or a CPU that counts as several."""
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
    video: Annotated[
        tuple[str, ...] | None,
        arg(metavar="FILE ...", help_behavior_hint="(default: none; without a name: episode.mp4)"),
    ] = None
    """Film an episode of the first policy, with its most likely actions, as .mp4 or .gif: a path, or a
    name in the run's folder."""
    adversary: AdversarySettings = Settings.adversary
    """How hard nature works against the policy; only rcpo has a use for these."""

    def run(self) -> int:
        """Trains what is not trained yet, and prints how it ended."""
        folder = f"{self.environment.replace('/', '-')}-{self.algorithm}"
        folder += f"-radius-{self.radius:g}" if self.radius else ""
        folder += f"-seed-{self.seed}" if self.seed else ""
        out = Path(self.out or Path("runs/train") / folder)
        with refused():
            check_writable(out)
            videos = self._videos(out)
        from holdfast.experiments.compilation_cache import use_compilation_cache
        from holdfast.report.records import read_outcome
        from holdfast.report.training import outcome_table, progress_on
        from holdfast.simulators.train import TrainingError, prepare

        use_compilation_cache()
        chosen = ("radius", "cost_limit", "limit_on", "iterations", "batch_size", "trust_region")
        settings = {
            name: getattr(self, name) for name in (*chosen, "discount", "hidden", "adversary")
        }
        with refused():
            run = prepare(
                self._simulator(),
                self.algorithm,
                seeds=self.seeds,
                seed=self.seed,
                devices=self.devices,
                **settings,
            )
            if videos:
                from holdfast.report.video import check_picture

                check_picture(run.env)
        try:
            with refused(), progress_on(sys.stderr, run.describe()) as progress:
                agents = run.train(out, progress)
        except TrainingError as error:
            raise FailedError(str(error)) from error
        outcome = read_outcome(out)
        console().print(outcome_table(outcome))
        if outcome.over_limits:
            print(f"over a limit: {', '.join(outcome.over_limits)}")
        if self.environment == "point-gather":
            from holdfast.environments.point_gather_episode import Episode, draw_episode

            for suffix in ("png", "gif"):
                if out / f"episode.{suffix}" not in videos:
                    draw_episode(out / f"episode.{suffix}", Episode.of(agents[0]))
        for video in videos:
            from holdfast.report.video import record

            record(agents[0], video)
            print(f"filmed in {video}")
        print(f"written to {out}")
        print(f"next: holdfast stress {out}")
        return NOT_FEASIBLE if outcome.over_limits else FEASIBLE

    def _videos(self, out: Path) -> tuple[Path, ...]:
        """Where videos go; nothing is made yet, but what cannot be is refused."""
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
                raise BadInputError(str(error)) from error
            if path.parent != out:
                check_writable(path.parent)
        return tuple(found)

    def _simulator(self) -> Any:
        """What is trained on: by name, or a Gymnasium environment with what was said about it."""
        options: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("channel", "cost", "speed_limit")
            if getattr(self, name) not in ((), "", None)
        }
        if not options:
            from holdfast.verbs import as_simulator

            return as_simulator(self.environment)
        from holdfast.registry import ENVIRONMENTS

        if self.environment in ENVIRONMENTS:
            raise ValueError(f"{next(iter(options))}: {self.environment} has its own")
        if self.cost and self.speed_limit is not None:
            raise ValueError("speed_limit: give either a speed limit or a cost, not both")
        import holdfast as hf

        if self.channel:
            from holdfast.gym.channels import from_text

            options["channel"] = from_text(self.channel)
        if self.speed_limit is not None:
            options["cost"] = hf.speed_limit(options.pop("speed_limit"))
        return hf.disturb(self.environment, **options)
