"""Results of jobs as arrays: of single jobs, and of an experiment on one environment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from holdfast.experiments.description import DeepExperiment, TabularExperiment
from holdfast.experiments.jobs import Job, TrainingJob, cell_name

if TYPE_CHECKING:
    from holdfast.model import RobustCMDP
    from holdfast.simulators.certificates.stress_result import Stress


@dataclasses.dataclass(frozen=True)
class ConstraintThreshold:
    """A constraint without its signal, which is enough to read its margins.

    Arguments:
        kind: "utility" or "cost".
        threshold: lower limit of a utility, upper limit of a cost.
        name: the model's name for the constraint, or None.

    Example:
        >>> ConstraintThreshold("cost", 5.0).values(np.array([0.5]))
        array([4.5])
    """

    kind: str
    threshold: float
    name: str | None = None

    @staticmethod
    def of(model: RobustCMDP) -> tuple[ConstraintThreshold, ...]:
        """Return the thresholds of a model's constraints, in the model's order."""
        return tuple(
            ConstraintThreshold(kind, c.threshold, None if c.label == kind else c.label)
            for c in model.constraints
            for kind in ["utility" if c.sense == "at_least" else "cost"]
        )

    def values(self, margins: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Return the utility or cost that has these margins."""
        return self.threshold + margins if self.kind == "utility" else self.threshold - margins


def feasible_rows(history: Mapping[str, np.ndarray]) -> Bool[np.ndarray, " rows"]:
    """Return which iterates meet every constraint in the worst case, after the numerical error."""
    # Runs that were stored before every signal had its own error have the largest one only.
    errors = history.get("margin_errors", history["error"][:, None])
    return (history["margins"] - errors >= 0).all(1)


def smallest_margins(history: Mapping[str, np.ndarray]) -> Float[np.ndarray, " rows"]:
    """Return the smallest worst-case margin of each iterate."""
    return np.min(history["margins"], axis=1, initial=np.inf)


def columns(
    history: Mapping[str, np.ndarray], bounds: Sequence[ConstraintThreshold]
) -> dict[str, Float[np.ndarray, " rows"]]:
    """Return a history as named columns, with every constraint as the utility or cost it limits.

    A single constraint has the columns "utility" (or "cost"), "margin" and "nominal_utility". Several
    constraints carry their index, as in "utility_0". "seconds" and other recorded columns come last.

    Arguments:
        history: arrays by name, as in `Solution`.
        bounds: thresholds of the model's constraints.
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
    """Result of one solve.

    Arguments:
        job: the job.
        status: "feasible", "infeasible" or "not-found", as in `Solution`.
        bounds: thresholds of the model's constraints.
        policy: last iterate, (S, A).
        history: arrays by name, as in `Solution`.
        certificate: output of `Certificate.to_dict`, or None.
        cpu_seconds: processor time in seconds, compilation included.
    """

    job: Job
    status: str
    bounds: tuple[ConstraintThreshold, ...]
    policy: Float[np.ndarray, "S A"]
    history: Mapping[str, np.ndarray]
    certificate: Mapping[str, Any] | None = None
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Elapsed seconds from the start of `solve` to its last iterate."""
        return float(self.history["seconds"][-1])

    @property
    def gap(self) -> float:
        """Relative gap to the certificate's upper bound; NaN if unknown."""
        found = None if self.certificate is None else self.certificate.get("gap")
        return math.nan if found is None else float(found)

    @property
    def reward(self) -> float:
        """Worst-case reward of the last iterate."""
        return float(self.history["reward"][-1])

    @property
    def error(self) -> float:
        """Bound on the numerical error of the last iterate's worst-case values."""
        return float(self.history["error"][-1])

    @property
    def margin(self) -> float:
        """Smallest worst-case margin of the last iterate."""
        return float(smallest_margins(self.history)[-1])

    @property
    def feasible(self) -> bool:
        """Whether the last iterate is certainly feasible: margin minus numerical error at least zero."""
        return bool(feasible_rows(self.history)[-1])

    @property
    def merit(self) -> tuple[bool, float]:
        """Sort key of runs: feasible ones rank above others and by reward, others by margin.

        Nine decimals remove rounding noise, so that runs with the same outcome tie.
        """
        return self.feasible, round(self.reward if self.feasible else self.margin, 9)

    @property
    def feasible_from(self) -> int | None:
        """Index of the first feasible iterate, 0 for the initial policy; None without one."""
        feasible = feasible_rows(self.history)
        return int(np.argmax(feasible)) if feasible.any() else None

    @property
    def feasible_after_first(self) -> Bool[np.ndarray, " rows"]:
        """Feasibility of the iterates after the first feasible one."""
        first = self.feasible_from
        feasible = feasible_rows(self.history)
        return feasible[:0] if first is None else feasible[first + 1 :]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Results of an experiment on one model with one radius.

    Arguments:
        experiment: the experiment.
        runs: results by algorithm (with its variant), one per seed.
        model: SHA-256 of the model's content.
        environment: the experiment's name for the model.
        radius: radius of the uncertainty set; None for the model's own.
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
        """Folder name of the model with its radius."""
        return cell_name(self.environment, self.radius)

    @property
    def bounds(self) -> tuple[ConstraintThreshold, ...]:
        """Thresholds of the model's constraints."""
        return next(iter(self)).bounds

    @property
    def iterations(self) -> int:
        """Iterations of the longest run."""
        return max(len(result.history["reward"]) for result in self) - 1

    def rewards(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Return the last worst-case reward of each seed."""
        return np.array([result.reward for result in self.runs[algorithm]])

    def errors(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Return the bound on the last numerical error of each seed."""
        return np.array([result.error for result in self.runs[algorithm]])

    def margins(self, algorithm: str) -> Float[np.ndarray, " seeds"]:
        """Return the smallest worst-case margin of each seed's last iterate."""
        return np.array([result.margin for result in self.runs[algorithm]])

    def feasible(self, algorithm: str) -> Bool[np.ndarray, " seeds"]:
        """Return which seeds end certainly feasible."""
        return np.array([result.feasible for result in self.runs[algorithm]])

    def violates(self, algorithm: str) -> Bool[np.ndarray, " seeds"]:
        """Return which seeds end with a negative margin.

        It proves infeasibility, since a reported margin is an upper bound.
        """
        return self.margins(algorithm) < 0


def curve_of(
    rows: Sequence[Mapping[str, Any]], seeds: int, name: str, index: int | None
) -> Float[np.ndarray, "seeds iterations"]:
    """Return one measurement of rows that are ordered by iteration and then by seed."""
    values = [row[name] if index is None else row[name][index] for row in rows]
    return np.array(values, float).reshape(-1, seeds).T


@dataclasses.dataclass(frozen=True)
class Trained:
    """Measurements of one training run.

    Attributes:
        job: the job.
        rows: rows of `metrics.jsonl`, one per iteration and seed.
        stress: result of the stress test, or None.
    """

    job: TrainingJob
    rows: list[dict[str, Any]]
    stress: Stress | None

    def curve(self, name: str, index: int | None = None) -> np.ndarray:
        """Return one measurement, (seeds, iterations); `index` selects an entry of a list."""
        return curve_of(self.rows, self.job.experiment.seeds, name, index)


@dataclasses.dataclass(frozen=True)
class DeepResults:
    """Results of an experiment on one simulator.

    Attributes:
        experiment: the experiment.
        environment: name of the simulator.
        runs: measurements by job.
    """

    experiment: DeepExperiment
    environment: str
    runs: Mapping[TrainingJob, Trained]

    def of(self, algorithm: str, trust_region: float, *, noise: bool = True) -> Trained:
        """Return the run of an algorithm with a step size, and with the first radius if it is robust.

        Raises:
            KeyError: there is no such run.
        """
        for job, trained in self.runs.items():
            same = (job.algorithm, job.trust_region, job.noise) == (algorithm, trust_region, noise)
            if same and job.radius in (0.0, self.experiment.radius):
                return trained
        raise KeyError(f"{algorithm}, {trust_region:g}, noise {noise}")
