"""RCPO and four baselines on MuJoCo robots whose mass and friction differ from the model's.

Trains on HalfCheetah with a speed limit and on Point Circle, and tests the frozen policies with every
mass and friction from 0.6 to 1.4 of nominal. RCPO trains with mass and friction drawn once per episode,
against adversaries. The baselines are domain randomisation (PCPO with the same draws and no adversary),
PCPO and CPO with the model's own mass and friction, and PCPO with a limit that is tightened until the
policy keeps the true limit at every level. An unconstrained TRPO shows that the limit binds. Prints a
table, and writes it with a figure.

    python benchmarks/real_physics.py half-cheetah point-circle --out runs/real-physics

Each task takes about an hour on two cores; finished runs are kept. `--processes` runs several jobs at
the same time, each with `--threads` threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hf
from _tightening import survivor, tighten
from holdfast.simulators.certificates.stress_result import Stress

LEVELS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
SEEDS = (0, 1, 2)
# Every baseline by its label, with its algorithm and whether mass and friction are drawn in training.
BASELINES = {
    "rcpo": ("rcpo", True),
    "randomised": ("pcpo", True),
    "tightened": ("pcpo", False),
    "pcpo": ("pcpo", False),
    "cpo": ("cpo", False),
    "trpo": ("trpo", False),
}
ALGORITHMS = tuple(BASELINES)
_PALETTE = ("#0072b2", "#e69f00", "#cc79a7", "#d55e00", "#009e73", "#999999")
COLOURS = dict(zip(BASELINES, _PALETTE, strict=True))


@dataclasses.dataclass(frozen=True)
class Setup:
    """A task, its limit, and its training settings."""

    make: Callable[[int | None], Any]
    limit: float
    radius: float
    settings: dict[str, Any]
    iterations: int


def half_cheetah(threads: int | None) -> Any:
    channel = hf.Parameters(mass=0.3, friction=0.3)
    cost = hf.speed_limit(1.0)
    return hf.disturb("HalfCheetah-v5", channel, cost, horizon=250, workers=threads)


def point_circle(threads: int | None) -> Any:
    channel = hf.Parameters(mass=0.3, friction=0.3)
    return hf.disturb("holdfast/PointCircle-v0", channel, workers=threads)


# A cost is the mean of forty episodes or fifty: hence the margins.
_COMMON = {
    "batch_size": 10_000,
    "trust_region": 0.02,
    "limit_margin": 0.05,
    "limit_confidence": 0.5,
    "adversary": {"batch_size": 10_000, "updates": 1, "minibatches": 1, "epochs": 10},
}
SETUPS = {
    "half-cheetah": Setup(half_cheetah, limit=25.0, radius=1.0, settings=_COMMON, iterations=200),
    "point-circle": Setup(point_circle, limit=20.0, radius=1.0, settings=_COMMON, iterations=150),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=list(SETUPS), choices=list(SETUPS))
    parser.add_argument("--out", type=Path, default=Path("runs/real-physics"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None, help="of MuJoCo, in each process")
    parser.add_argument("--episodes", type=int, default=200, help="that each number is the mean of")
    parser.add_argument("--memory", type=int, default=0, help="past steps that a policy sees")
    parser.add_argument("--iterations", type=int, default=None, help="in place of the task's own")
    parser.add_argument("--job", default="", help="ALGORITHM:SEED, one job of one task")
    given = parser.parse_args()
    if given.job:
        algorithm, seed = given.job.split(":")
        run_job(given.tasks[0], algorithm, int(seed), given)
        return
    for task in given.tasks:
        run_all(task, given)
        report(task, given.out / task)


def jobs() -> list[tuple[str, int]]:
    """Return the jobs, the longest first; one seed is enough to show that the limit binds."""
    found = [(algorithm, seed) for algorithm in ALGORITHMS[:-1] for seed in SEEDS]
    return [*found, ("trpo", 0)]


def run_all(task: str, given: argparse.Namespace) -> None:
    waiting: list[tuple[str, int]] = jobs()
    running: list[subprocess.Popen] = []
    while waiting or running:
        while waiting and len(running) < given.processes:
            algorithm, seed = waiting.pop(0)
            command = [sys.executable, __file__, task, "--job", f"{algorithm}:{seed}"]
            command += ["--out", str(given.out), "--episodes", str(given.episodes)]
            command += ["--memory", str(given.memory)]
            command += ["--iterations", str(given.iterations)] if given.iterations else []
            command += ["--threads", str(given.threads)] if given.threads else []
            running.append(subprocess.Popen(command))
        time.sleep(0.2)
        if any(job.poll() for job in running):
            for job in running:
                job.terminate()
            sys.exit(f"{task}: a job failed")
        running = [job for job in running if job.poll() is None]


def run_job(task: str, algorithm: str, seed: int, given: argparse.Namespace) -> None:
    limit, folder = SETUPS[task].limit, given.out / task / f"{algorithm}-{seed}"
    if algorithm != "tightened":
        train_and_test(task, algorithm, seed, limit, folder, given)
        return

    def attacked(training_limit: float) -> float:
        place = folder / f"limit-{training_limit:g}"
        return train_and_test(task, algorithm, seed, training_limit, place, given)

    found = tighten(attacked, limit)
    # Without a survivor, the one that came closest.
    best = survivor(found, limit) or min(found, key=lambda each: each.attacked)
    chosen = folder / f"limit-{best.limit:g}"
    for name in ("stress.json", "timings.jsonl"):
        shutil.copy(chosen / name, folder / name)
    (folder / "tries.json").write_text(json.dumps([each._asdict() for each in found]))


def train_and_test(
    task: str, label: str, seed: int, limit: float, folder: Path, given: argparse.Namespace
) -> float:
    """Train a policy, test it at every level, and return its largest mean cost."""
    setup, (algorithm, is_drawn) = SETUPS[task], BASELINES[label]
    env = setup.make(given.threads)
    agent = hf.train(
        env if is_drawn else env.with_parameters(mass=1.0, friction=1.0),
        algorithm,
        seed=seed,
        cost_limit=limit,
        iterations=given.iterations or setup.iterations,
        memory=given.memory,
        out=folder,
        **({"radius": setup.radius} if algorithm == "rcpo" else {}),
        **setup.settings,
    )
    path = folder / "stress.json"
    if not path.is_file():
        levels = {"mass": LEVELS, "friction": LEVELS}
        hf.stress(agent, parameters=levels, episodes=given.episodes).save(path)
    return max(row.costs[0].mean for row in Stress.load(path).rows)


def report(task: str, folder: Path) -> None:
    setup = SETUPS[task]
    found = {a: [load(folder / f"{a}-{s}") for b, s in jobs() if b == a] for a in ALGORITHMS}
    steps = sum(each.seconds for every in found.values() for each in every)
    lines = [
        f"{task}: mean of {len(SEEDS)} seeds, cost limit {setup.limit:g}, RCPO's radius "
        f"{setup.radius:g}; training took {steps / 60:.0f} minutes in all",
        "",
        "| | " + " | ".join(f"{a.upper()} reward | cost" for a in ALGORITHMS) + " |",
        "|---" * (1 + 2 * len(ALGORITHMS)) + "|",
    ]
    for label in next(iter(found.values()))[0].rows:
        cells = []
        for algorithm in ALGORITHMS:
            reward, cost = np.mean([each.rows[label] for each in found[algorithm]], axis=0)
            cells.append(
                f"{reward:.1f} | {'**' if cost > setup.limit else ''}{cost:.1f}"
                f"{'**' if cost > setup.limit else ''}"
            )
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "How far each parameter may go with the mean cost of every seed within the limit:",
        "",
    ]
    for algorithm in ALGORITHMS[:-1]:
        held = ", ".join(
            f"{name} {held_over(found[algorithm], name, setup.limit)}"
            for name in ("mass", "friction")
        )
        lines.append(f"- {algorithm.upper()}: {held}")
    text = "\n".join(lines) + "\n"
    (folder / "table.md").write_text(text)
    print(text)
    draw(folder / "figure.png", task, found, setup.limit)


@dataclasses.dataclass(frozen=True)
class Measured:
    """Reward and cost of one policy in every test, and its training time."""

    rows: dict[str, tuple[float, float]]
    seconds: float


def load(folder: Path) -> Measured:
    rows = {}
    for row in Stress.load(folder / "stress.json").rows:
        rows[row.label] = (row.reward.mean, row.costs[0].mean)
    timings = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
    return Measured(rows, sum(each["seconds"] for each in timings))


def held_over(found: list[Measured], name: str, limit: float) -> str:
    """Return the range around nominal in which no seed's mean cost exceeds the limit."""
    held = [
        level
        for level in LEVELS
        if all(each.rows[f"{name} = {level:g}"][1] <= limit for each in found)
    ]
    if 1.0 not in held:
        return "nowhere about nominal"
    low = high = LEVELS.index(1.0)
    while low > 0 and LEVELS[low - 1] in held:
        low -= 1
    while high + 1 < len(LEVELS) and LEVELS[high + 1] in held:
        high += 1
    return f"{LEVELS[low]:g} to {LEVELS[high]:g}"


def draw(path: Path, task: str, found: dict[str, list[Measured]], limit: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True, sharey="row")
    for column, name in enumerate(("mass", "friction")):
        for row, what in enumerate(("reward", "cost")):
            axis = axes[row, column]
            for algorithm, seeds in found.items():
                curves = np.array(
                    [[each.rows[f"{name} = {level:g}"][row] for level in LEVELS] for each in seeds]
                )
                colour, mean = COLOURS[algorithm], curves.mean(0)
                dashes = "--" if algorithm == "trpo" else "-"
                axis.plot(LEVELS, mean, dashes, color=colour, label=algorithm.upper())
                axis.fill_between(LEVELS, curves.min(0), curves.max(0), color=colour, alpha=0.15)
            if what == "cost":
                axis.axhline(limit, color="black", linewidth=0.8, linestyle=":")
                axis.set_xlabel(f"{name}, of nominal")
            if column == 0:
                axis.set_ylabel(f"{what} of an episode")
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 1].legend(frameon=False)
    figure.suptitle(f"{task}: mean over seeds, and their range; the dotted line is the limit")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
