"""Run `holdfast bench velocity` in a limited time, one run per core, with the standard library only.

    python benchmarks/velocity.py velocity --processes 16 --seconds 540 --out runs/velocity
    python benchmarks/velocity.py velocity-ablation --processes 16 --seconds 540 --out runs/ablation

It trains what the experiment describes, each run in a process of its own on one core with one physics
thread, until `--seconds` have passed, and prints the table of what there is. The same command continues.
`--environments`, `--algorithms`, `--variants`, `--seeds` and `--steps` select a part.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path

from _cores import run_on_cores
from holdfast.experiments import RobotExperiment, RobotJob, read_description


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="velocity, velocity-ablation or a TOML file")
    parser.add_argument("--environments", nargs="+", default=[])
    parser.add_argument("--algorithms", nargs="+", default=[])
    parser.add_argument("--variants", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs/velocity"))
    parser.add_argument("--job", type=int, default=None, help="number of one run, in this process")
    given = parser.parse_args()
    experiment = described(given)
    if given.job is not None:
        from holdfast.experiments.robot_runs import train_robot

        train_robot(experiment.jobs()[given.job], given.out, given.seconds)
        return
    train_all(experiment, given)
    print(table(experiment, given.out))


def described(given: argparse.Namespace) -> RobotExperiment:
    experiment = read_description(given.experiment)
    assert isinstance(experiment, RobotExperiment)
    chosen = experiment.selected(environments=given.environments, algorithms=given.algorithms)
    changes = {name: getattr(given, name) for name in ("seeds", "steps") if getattr(given, name)}
    if given.variants:
        changes["variants"] = {name: experiment.variants[name] for name in given.variants}
    return dataclasses.replace(chosen, **changes)


def train_all(experiment: RobotExperiment, given: argparse.Namespace) -> None:
    """Run unfinished jobs, each bound to one core, until all are done or the time is up."""
    waiting = [str(i) for i, job in enumerate(experiment.jobs()) if not is_done(given.out, job)]
    failed = run_on_cores(waiting, given.processes, given.seconds)
    left = sum(not is_done(given.out, job) for job in experiment.jobs())
    print(f"{left} of {len(experiment.jobs())} runs are not finished; {failed} failed")


def is_done(out: Path, job: RobotJob) -> bool:
    path = out / job.path / "row.json"
    return path.is_file() and json.loads(path.read_text())["steps"] >= job.experiment.steps


def table(experiment: RobotExperiment, out: Path) -> str:
    from holdfast.experiments.robot_runs import RobotPlan
    from holdfast.report.robots import robot_markdown

    return robot_markdown(experiment, RobotPlan(experiment, out).collect())


if __name__ == "__main__":
    main()
