"""RCPO and its baselines on MuJoCo robots whose mass and friction differ from the model's.

Trains HalfCheetah and Hopper with a speed limit, and tests the frozen policies with masses and frictions
from 0.6 to 1.4 of nominal, with drawn and with most likely actions. RCPO trains with mass and friction
drawn once per episode, against adversaries. The baselines are PCPO with the model's own mass and
friction, domain randomisation (PCPO with wide draws and no adversary), both with tightened limits, CPO,
and TRPO without the limit, which shows that the limit binds:

    python benchmarks/real_physics.py half-cheetah hopper --processes 2 --out runs/real-physics

Every job runs in a process of its own on one core with one physics thread, the most important first, for
`--seconds` in all. A job that has no time left tests the policy that it has, if it has half of its
iterations. The same command continues.
Each task's folder receives table.md and figure.png; `--report` only makes these.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import holdfast as hf
from _cores import run_on_cores
from _real_physics_report import ROW, TEST, report

LEVELS = (0.6, 0.8, 1.0, 1.2, 1.4)
# Seconds that a process keeps for its test and for iterations that have begun, and seconds with which a
# job is worth beginning.
_TEST_SECONDS, _SHORTEST = 130.0, 350.0
# A policy with a smaller share of its iterations is not tested.
_LEAST_TRAINED = 0.5


# The set: a scale of 0.1 and a radius of 12.5 let nature move the mean of the draw by five standard
# deviations, so to 0.62 or 1.61 of nominal along one axis, with the spread of 10 % around it. A scale of
# 0.3 covers the same range without an adversary: 0.6 and 1.4 are within two standard deviations.
SCALE, RADIUS, WIDE = 0.1, 12.5, 0.3


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm and what it trains with.

    Attributes:
        algorithm: as in `hf.train`.
        drawn: scale of mass and friction, which are drawn once per episode; 0 for the model's own.
        share: training limit, as a fraction of the task's limit.
        seeds: number of runs.
        settings: changes to the common settings.
        tasks: the tasks that it runs on.
    """

    algorithm: str
    drawn: float = 0.0
    share: float = 1.0
    seeds: int = 3
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tasks: tuple[str, ...] = ("half-cheetah", "hopper")


_ROBUST = {"radius": RADIUS, "trust_region_on": "all"}
# The most important first.
METHODS = {
    "rcpo": Method("rcpo", SCALE, settings=_ROBUST),
    "pcpo": Method("pcpo"),
    "randomised": Method("pcpo", WIDE),
    "pcpo at 1/2": Method("pcpo", share=1 / 2),
    "randomised at 1/2": Method("pcpo", WIDE, share=1 / 2),
    "rcpo, margin 0.3": Method(
        "rcpo", SCALE, settings=_ROBUST | {"limit_margin": 0.3}, tasks=("half-cheetah",)
    ),
    "trpo": Method("trpo", seeds=1),
    "pcpo at 1/4": Method("pcpo", share=1 / 4, seeds=1),
    "randomised at 1/4": Method("pcpo", WIDE, share=1 / 4, seeds=1),
    "cpo": Method("cpo", seeds=1),
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A task: its robot, its largest speed in metres per second, its limit and its training settings."""

    robot: str
    speed: float = 1.0
    limit: float = 25.0
    horizon: int = 250
    iterations: int = 240
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def environment(self, scale: float) -> Any:
        """Return the task with mass and friction drawn at this scale; with 0, the model's own."""
        channel = hf.Parameters(mass=scale or SCALE, friction=scale or SCALE)
        cost = hf.speed_limit(self.speed)
        env = hf.disturb(self.robot, channel, cost, horizon=self.horizon, workers=1)
        return env if scale else env.with_parameters(mass=1.0, friction=1.0)


# Batches of twenty episodes. The adversaries choose two numbers in an episode, so that ten episodes of
# their own are enough. Actions start with a smaller standard deviation than the default of robots, 0.4:
# the most likely actions then cost about as much as the drawn ones.
_COMMON = {
    "batch_size": 5_000,
    "trust_region": 0.02,
    "initial_std": 0.25,
    "limit_margin": 0.2,
    "adversary": {
        "kernel": "direction-search",
        "batch_size": 2_500,
        "updates": 1,
        "minibatches": 1,
        "epochs": 10,
    },
}
SETUPS = {
    "half-cheetah": Setup("HalfCheetah-v5", settings=_COMMON),
    "hopper": Setup("Hopper-v5", settings=_COMMON),
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One policy of one task."""

    task: str
    label: str
    seed: int

    @property
    def name(self) -> str:
        """The path of the job's folder."""
        word = self.label.replace(",", "").replace(" ", "-").replace("/", "-")
        return f"{self.task}/{word}-{self.seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(SETUPS)}; default: all")
    parser.add_argument("--out", type=Path, default=Path("runs/real-physics"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--episodes", type=int, default=50, help="that each number is the mean of")
    parser.add_argument("--iterations", type=int, default=None, help="in place of the task's own")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--job", default="", help="name of one job, in this process")
    given = parser.parse_args()
    given.tasks = given.tasks or list(SETUPS)
    if unknown := set(given.tasks) - set(SETUPS):
        parser.error(f"tasks: expected some of {', '.join(SETUPS)}, got {', '.join(unknown)}")
    every = {job.name: job for job in jobs(given.tasks)}
    if given.job:
        run_job(every[given.job], given)
        return
    if not given.report:
        waiting = [name for name in every if not is_done(given.out / name)]
        failed = run_on_cores(waiting, given.processes, given.seconds, _SHORTEST)
        left = sum(not is_done(given.out / name) for name in every)
        print(f"{left} of {len(every)} jobs are not finished; {failed} failed")
    for task in given.tasks:
        of_task = {
            label: [given.out / Job(task, label, seed).name for seed in range(method.seeds)]
            for label, method in METHODS.items()
            if task in method.tasks
        }
        report(task, SETUPS[task].limit, of_task, given.out / task)


def jobs(tasks: Sequence[str]) -> list[Job]:
    """Return the jobs, the most important first."""
    return [
        Job(task, label, seed)
        for label, method in METHODS.items()
        for task in tasks
        if task in method.tasks
        for seed in range(method.seeds)
    ]


def is_done(folder: Path) -> bool:
    return read_row(folder)["finished"]


def read_row(folder: Path) -> dict[str, Any]:
    """Return how far the training of a job is."""
    path = folder / ROW
    if path.is_file():
        return json.loads(path.read_text())
    return {"finished": False, "iteration": 0, "simulated_steps": 0}


def run_job(job: Job, given: argparse.Namespace) -> None:
    """Train a policy, as long as there is time, and test it at every level."""
    began, folder = time.monotonic(), given.out / job.name
    setup, method = SETUPS[job.task], METHODS[job.label]
    env = setup.environment(method.drawn)
    iterations = given.iterations or setup.iterations
    row = read_row(folder)
    before = row["simulated_steps"]

    def record(rows: Sequence[Mapping[str, Any]]) -> bool:
        row["iteration"] = rows[-1]["iteration"] + 1
        row["simulated_steps"] = before + env.simulated_steps
        (folder / ROW).write_text(json.dumps(row))
        return time.monotonic() - began > given.seconds - _TEST_SECONDS

    agent = hf.train(
        env,
        method.algorithm,
        seed=job.seed,
        cost_limit=method.share * setup.limit,
        iterations=iterations,
        out=folder,
        callback=record,
        **changed(setup.settings, method.settings),
    )
    if row["iteration"] < _LEAST_TRAINED * iterations:
        return
    levels = {"mass": LEVELS, "friction": LEVELS}
    test = setup.environment(0.0)
    found = hf.stress(agent, environment=test, parameters=levels, episodes=given.episodes)
    found.save(folder / TEST)
    row |= {"finished": row["iteration"] >= iterations, "episodes": given.episodes}
    (folder / ROW).write_text(json.dumps(row))


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes; those of the adversary are merged."""
    adversary = {**settings["adversary"], **changes.get("adversary", {})}
    return {**settings, **changes, "adversary": adversary}


if __name__ == "__main__":
    main()
