"""What runs gave, as arrays: one job's `Result`, and an experiment's `Results`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from holdfast.experiments.configuration import Job, TabularExperiment, cell_name
from holdfast.model import RobustCMDP


@dataclasses.dataclass(frozen=True)
class Bound:
    """A constraint without its signal: what is needed to read its margins.

    Arguments:
        kind: "utility" or "cost".
        threshold: in the user's own sense.
        name: what the model calls it, if anything.
    """

    kind: str
    threshold: float
    name: str | None = None

    @staticmethod
    def of(model: RobustCMDP) -> tuple[Bound, ...]:
        """The bounds of a model, in its order."""
        return tuple(
            Bound("utility" if c.sense == "at_least" else "cost", c.threshold, c.name)
            for c in model.constraints
        )

    def values(self, margins: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """The utility or cost that has these margins."""
        return self.threshold + margins if self.kind == "utility" else self.threshold - margins


def feasible_rows(history: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " rows"]:
    """Which iterates meet every constraint in the worst case, numerical error taken off."""
    return smallest_margins(history) - history["error"] >= 0


def smallest_margins(history: Mapping[str, np.ndarray]) -> Float[np.ndarray, " rows"]:
    """The worst-case margin of each iterate's tightest constraint."""
    return np.min(history["margins"], axis=1, initial=np.inf)


def columns(
    history: Mapping[str, np.ndarray], bounds: Sequence[Bound]
) -> dict[str, Float[np.ndarray, " rows"]]:
    """A history as named columns, every constraint in its own sense.

    A lone constraint has the columns "utility" (or "cost"), "margin" and "nominal_utility"; with
    several they carry the constraint's index, as in "utility_0". "seconds" and whatever else the
    algorithm recorded come last.
    """
    rows = len(history["reward"])
    table: dict[str, Any] = {"iteration": np.arange(rows), "reward": history["reward"]}
    suffixes = [""] if len(bounds) == 1 else [f"_{i}" for i in range(len(bounds))]
    for i, (bound, suffix) in enumerate(zip(bounds, suffixes, strict=True)):
        table[f"{bound.kind}{suffix}"] = bound.values(history["margins"][:, i])
        table[f"margin{suffix}"] = history["margins"][:, i]
    table["nominal_reward"] = history["nominal_reward"]
    for i, (bound, suffix) in enumerate(zip(bounds, suffixes, strict=True)):
        table[f"nominal_{bound.kind}{suffix}"] = bound.values(history["nominal_margins"][:, i])
    for name in ("kl", "recovered", "error"):
        table[name] = history[name]
    others = {k: v for k, v in history.items() if k not in table and v.shape == (rows,)}
    return table | others


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What one job gave.

    Arguments:
        job: what was run.
        status: as in `Solution`.
        bounds: the model's constraints.
        policy: (S, A), the last iterate.
        history: as in `Solution`.
        certificate: of the policy, as `Certificate.to_dict` gives it, where one was asked for.
        cpu_seconds: of the processor, compilation included.
    """

    job: Job
    status: str
    bounds: tuple[Bound, ...]
    policy: Float[np.ndarray, "S A"]
    history: Mapping[str, np.ndarray]
    certificate: Mapping[str, Any] | None = None
    cpu_seconds: float = 0.0

    @property
    def seed(self) -> int:
        """What drew the initial policy."""
        return self.job.seed

    @property
    def seconds(self) -> float:
        """By the clock, from the start of `solve` to its last iterate."""
        return float(self.history["seconds"][-1])

    @property
    def gap(self) -> float:
        """How far the reward may be from the best possible, as a share; NaN where that is not known."""
        found = None if self.certificate is None else self.certificate.get("gap")
        return math.nan if found is None else float(found)

    @property
    def reward(self) -> float:
        """Worst-case reward at the end."""
        return float(self.history["reward"][-1])

    @property
    def error(self) -> float:
        """Bound on the numerical error of the worst-case values at the end."""
        return float(self.history["error"][-1])

    @property
    def margin(self) -> float:
        """Worst-case margin of the tightest constraint at the end."""
        return float(smallest_margins(self.history)[-1])

    @property
    def feasible(self) -> bool:
        """Whether the end is certainly feasible: margin less numerical error at least zero."""
        return bool(feasible_rows(self.history)[-1])

    @property
    def merit(self) -> tuple[bool, float]:
        """What runs are compared by: feasible ones come first and compare by reward, others by margin.

        Rounded, so that runs that end alike are ties.
        """
        return self.feasible, round(self.reward if self.feasible else self.margin, 9)

    @property
    def violates(self) -> bool:
        """Whether the end certainly is not: the margin itself, an upper bound, is negative."""
        return self.margin < 0

    @property
    def feasible_from(self) -> int | None:
        """The first feasible iterate, 0 the start; None if there is none."""
        feasible = feasible_rows(self.history)
        return int(np.argmax(feasible)) if feasible.any() else None

    @property
    def feasible_after_first(self) -> Bool[np.ndarray, " rows"]:
        """Feasibility of the iterates that follow the first feasible one."""
        first = self.feasible_from
        feasible = feasible_rows(self.history)
        return feasible[:0] if first is None else feasible[first + 1 :]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """What an experiment gave on one model with one radius.

    Arguments:
        experiment: what was run.
        runs: algorithm, with the variant of its settings, to its results, a seed each.
        model: SHA-256 of the model's content.
        environment: what the experiment calls the model.
        radius: of the uncertainty set; None for the model's own.
    """

    experiment: TabularExperiment
    runs: Mapping[str, Sequence[Result]]
    model: str
    environment: str
    radius: float | None = None

    def __iter__(self) -> Iterator[Result]:
        return (result for results in self.runs.values() for result in results)

    @property
    def cell(self) -> str:
        """The model with its radius, as the name of a folder."""
        return cell_name(self.environment, self.radius)

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The model's constraints."""
        return next(iter(self)).bounds

    @property
    def iterations(self) -> int:
        """Of the longest run."""
        return max(len(result.history["reward"]) for result in self) - 1

    def rewards(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Worst-case reward at the end, a seed each."""
        return np.array([result.reward for result in self.runs[algorithm]])

    def errors(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Bound on the numerical error at the end, a seed each."""
        return np.array([result.error for result in self.runs[algorithm]])

    def margins(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Smallest worst-case margin at the end, a seed each."""
        return np.array([result.margin for result in self.runs[algorithm]])

    def feasible(self, algorithm: str) -> Bool[np.ndarray, " seeds"]:
        """Which seeds end certainly feasible."""
        return np.array([result.feasible for result in self.runs[algorithm]])

    def violates(self, algorithm: str) -> Bool[np.ndarray, " seeds"]:
        """Which seeds certainly end in violation."""
        return np.array([result.violates for result in self.runs[algorithm]])
