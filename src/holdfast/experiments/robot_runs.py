"""Training on robots by simulator steps: the work of an experiment, and its rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast._support.files import write_json
from holdfast.experiments import store
from holdfast.experiments.engines import Done, WorkEvent
from holdfast.experiments.robots import RobotExperiment, RobotJob
from holdfast.gym.channels import from_text

ROW = "row.json"
# Upper bound on iterations; the number of simulator steps ends a run earlier.
_ITERATIONS = 1_000_000
# A final value is the mean over the last iterations: a hundred episodes of 1,000 steps in batches of 10.
_LATE = 10

Row = dict[str, Any]


class RobotPlan:
    """Work of an experiment on robots.

    Arguments:
        experiment: the experiment.
        out: its folder; every training run has its own folder inside.
    """

    def __init__(self, experiment: RobotExperiment, out: Path) -> None:
        self._experiment, self._out = experiment, out

    def write_record(self) -> None:
        """Write `experiment.json`."""
        store.write_record(self._out, self._experiment, {})

    def stages(self) -> Iterator[list[RobotJob]]:
        """Yield all jobs at once: there is no search."""
        yield self._experiment.jobs()

    def items(self, jobs: Sequence[RobotJob]) -> Sequence[RobotJob]:
        """Return the jobs themselves: each is one piece of work."""
        return jobs

    def find(self, job: RobotJob) -> Row | None:
        """Return the row of a run, or None unless it has all its steps."""
        row = read_row(self._out, job)
        return row if row is not None and row["steps"] >= job.experiment.steps else None

    def finished(self, event: WorkEvent) -> str | None:
        """Return a sentence about the job that an event finished, or None."""
        if not isinstance(event, Done) or not isinstance(event.item, RobotJob):
            return None
        if (row := self.find(event.item)) is None:
            return None
        return f"{event.item}: reward {row['reward']:.0f}, cost {row['cost']:.1f}"

    def collect(self) -> list[Row]:
        """Return the rows of all runs that were begun."""
        found = (read_row(self._out, job) for job in self._experiment.jobs())
        return [row for row in found if row is not None]


def read_row(out: Path, job: RobotJob) -> Row | None:
    """Return the row of a run so far, or None if it has none."""
    path = out / job.path / ROW
    return json.loads(path.read_text()) if path.is_file() else None


def train_robot(job: RobotJob, out: Path, seconds: float = float("inf")) -> Row | None:
    """Train one policy until its simulator steps or the seconds are used up; a run resumes.

    Arguments:
        job: the run.
        out: the experiment's folder.
        seconds: wall clock of this call.

    Returns:
        The row of the run: its steps, reward, cost and learning curve.
    """
    began, folder = time.monotonic(), out / job.path
    before = read_row(out, job) or {"seconds": 0.0, "curve": []}
    channel = from_text([job.experiment.channel]) if job.radius > 0 else None
    env = hf.disturb(f"holdfast/{job.environment}", channel, workers=1)
    curve: list[Row] = before["curve"]
    ends: list[float] = []
    counts = [0]  # simulator steps of this process after each iteration

    def record(rows: Sequence[Mapping[str, Any]]) -> bool:
        row, now = rows[-1], time.monotonic()
        # A run that was killed repeats the iterations after its last checkpoint.
        curve[:] = curve[: row["iteration"]]
        counts.append(env.simulated_steps)
        curve.append(_measured(row, curve, counts[-1] - counts[-2]))
        done = curve[-1]["steps"] >= job.experiment.steps
        # Stop while there is time for one more iteration; the first one in a process also compiles.
        ends.append(now)
        took = ends[-1] - ends[-2] if len(ends) > 1 else 0.0
        stop = done or now - began + 2 * took > seconds
        if stop or row["iteration"] % _LATE == 0:
            write_json(folder / ROW, _row(job, curve, before["seconds"] + now - began))
        return stop

    agent = hf.train(
        env,
        job.algorithm,
        iterations=_ITERATIONS,
        out=folder,
        callback=record,
        **job.train_arguments(),
    )
    row = read_row(out, job)
    if row is not None and row["steps"] >= job.experiment.steps and "likely_reward" not in row:
        found = agent.evaluate(episodes=20, deterministic=True)
        row |= {"likely_reward": found.reward.mean, "likely_cost": found.costs[0].mean}
        write_json(folder / ROW, row)
    return row


def _measured(row: Mapping[str, Any], curve: Sequence[Row], simulated: int) -> Row:
    """Return the next entry of the learning curve, after `simulated` further simulator steps."""
    last = curve[-1] if curve else {"steps": 0, "policy_steps": 0}
    return {
        "steps": last["steps"] + simulated,
        "policy_steps": last["policy_steps"] + row["steps"],
        "reward": row["nominal_reward"],
        "cost": row["nominal_costs"][0],
        "worst_cost": row["costs"][0],
    }


def _row(job: RobotJob, curve: Sequence[Row], seconds: float) -> Row:
    late, last = curve[-_LATE:], curve[-1]
    return {
        "environment": job.environment,
        "algorithm": job.algorithm,
        "variant": job.variant,
        "seed": job.seed,
        "steps": last["steps"],
        "policy_steps": last["policy_steps"],
        "reward": sum(each["reward"] for each in late) / len(late),
        "cost": sum(each["cost"] for each in late) / len(late),
        "seconds": seconds,
        "curve": list(curve),
    }
