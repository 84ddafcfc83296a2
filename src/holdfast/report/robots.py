"""The table of an experiment on robots, beside published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.experiments.robots import RobotExperiment, RobotJob, published_values


def robot_markdown(experiment: RobotExperiment, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one line per robot and algorithm, or variant of its settings.

    Rewards and costs are those of the last iterations, with drawn actions, and of the most likely
    actions after the last one. A run that is not finished counts with the steps it has.
    """
    source, known = published_values(experiment.published) if experiment.published else ("", {})
    asked = experiment.steps
    lines = [
        f"Reward mean ± standard deviation over seeds, cost mean (largest over seeds); limit "
        f"{experiment.cost_limit:g}, {asked:,} simulator steps, those of adversaries included.",
        *([f"Published: {source}."] if source else []),
        "",
        "| | algorithm | seeds | steps | of adversaries | reward | cost | most likely actions "
        "| published |",
        "|---" * 9 + "|",
    ]
    for environment in experiment.environments:
        for job in experiment.jobs():
            if job.seed or job.environment != environment:
                continue
            found = [row for row in rows if _belongs(row, job)]
            if found:
                value = known.get(environment, {}).get(job.algorithm)
                cells = _cells(found, asked)
                lines.append(f"| {environment} | {job.label} | {cells} | {_published(value)} |")
    return "\n".join(lines) + "\n"


def _belongs(row: Mapping[str, Any], job: RobotJob) -> bool:
    names = ("environment", "algorithm", "variant")
    return all(row[name] == getattr(job, name) for name in names)


def _cells(found: Sequence[Mapping[str, Any]], asked: int) -> str:
    def mean(name: str) -> float:
        return float(np.mean([row[name] for row in found]))

    steps, spread = min(row["steps"] for row in found), np.std([row["reward"] for row in found])
    share = 1 - sum(row["policy_steps"] for row in found) / sum(row["steps"] for row in found)
    likely = ""
    if all("likely_reward" in row for row in found):
        likely = f"{mean('likely_reward'):,.0f} / {mean('likely_cost'):.1f}"
    return " | ".join(
        [
            f"{len(found)}",
            f"{steps:,}" + ("" if steps >= asked else " so far"),
            f"{share:.0%}" if share > 0.005 else "",
            f"{mean('reward'):,.0f} ± {spread:,.0f}",
            f"{mean('cost'):.1f} ({max(row['cost'] for row in found):.1f})",
            likely,
        ]
    )


def _published(value: Sequence[float] | None) -> str:
    if value is None:
        return ""
    reward, spread, cost = value
    return f"{reward:,.0f} ± {spread:,.0f} / {cost:.1f}"
