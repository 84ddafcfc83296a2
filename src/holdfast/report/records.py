"""Reads run folders into typed records, from which figures, tables and the HTML page are made."""

from __future__ import annotations

import dataclasses
import operator
import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from jaxtyping import Float

from holdfast import __version__
from holdfast._support.files import read_json
from holdfast.experiments.results import curve_of
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.training import runs
from holdfast.simulators.training.runs import Row

if TYPE_CHECKING:
    from holdfast.report.page.content import Arena

# Measurements that are averaged over the end of a run.
_MEANS = ("reward", "nominal_reward", "costs", "nominal_costs", "cost_errors", "kl")
# Measurements of every row; those in `_LISTS` have one number per cost.
_MEASURED = ("reward_error", *_MEANS)
_LISTS = ("costs", "nominal_costs", "cost_errors")
# Entries of `run.json` that the report reads.
_DESCRIBED: dict[str, type | tuple[type, ...]] = {
    "algorithm": str,
    "environment": dict,
    "environment.name": str,
    "settings": dict,
    "settings.iterations": int,
    "settings.radius": (int, float),
    "settings.limit_on": str,
    "costs": list,
    "limits": list,
    "seeds": list,
    "robust": bool,
    "constrained": bool,
    "made_with": dict,
}
# The end of a run is its last tenth, and at most its last ten iterations: means over more would mix in
# iterates that still improve.
_LATE = 10


def check_not_newer(versions: Mapping[str, Any]) -> None:
    """Raise a ValueError if a newer version wrote a folder: its numbers may have another meaning.

    Arguments:
        versions: versions by package, as the folder stores them, with the key "holdfast".

    Example:
        >>> check_not_newer({"holdfast": "0.0.1"})
        >>> check_not_newer({"holdfast": "99.1"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: written by Holdfast 99.1, which is newer than this one, ...
    """
    found = str(versions.get("holdfast", ""))
    if _release(found) > _release(__version__):
        raise ValueError(
            f"written by Holdfast {found}, which is newer than this one, {__version__}"
        )


def _release(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


@dataclasses.dataclass(frozen=True)
class Standing:
    """The measurements of one seed, or their mean over several seeds.

    Attributes:
        label: the seed, or "mean".
        reward: worst-case reward; nominal reward if the algorithm has no adversary.
        nominal_reward: reward under the nominal kernel.
        costs: worst-case costs; nominal costs if the algorithm has no adversary.
        likely_costs: the same with most likely actions instead of drawn ones; equal to `costs` in runs
            of version 0.1.0, which did not measure them.
        nominal_costs: costs under the nominal kernel.
        cost_errors: standard errors of `costs`.
        kl: KL divergence of the policy update.
    """

    label: str
    reward: float
    nominal_reward: float
    costs: list[float]
    likely_costs: list[float]
    nominal_costs: list[float]
    cost_errors: list[float]
    kl: float

    @classmethod
    def of(cls, label: str, rows: Sequence[Row]) -> Self:
        """Return the mean of rows of `metrics.jsonl`."""
        means = {name: np.mean([row[name] for row in rows], axis=0).tolist() for name in _MEANS}
        likely = [row.get("likely_costs", row["costs"]) for row in rows]
        return cls(label, **means, likely_costs=np.mean(likely, axis=0).tolist())

    @property
    def larger_costs(self) -> list[float]:
        """The larger cost of drawn and of most likely actions."""
        return list(map(max, self.costs, self.likely_costs))


def standings(description: Mapping[str, Any], rows: Sequence[Row]) -> list[Standing]:
    """Return the standing of every seed over the rows, and the mean if there are several seeds."""
    seeds = description["seeds"]
    found = [Standing.of(str(seed), [row for row in rows if row["seed"] == seed]) for seed in seeds]
    return [*found, Standing.of("mean", rows)] if len(seeds) > 1 else found


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingRecord:
    """A folder that `holdfast train` wrote, finished or not.

    Attributes:
        folder: the folder.
        description: content of `run.json`.
        rows: rows of `metrics.jsonl`, for the iterations that all seeds have finished.
        stress: result of `holdfast stress` in the same folder, or None.
        arena: episodes on a map, or None.
    """

    folder: Path
    description: Mapping[str, Any]
    rows: Sequence[dict[str, Any]]
    stress: Stress | None = None
    arena: Arena | None = None

    @property
    def done(self) -> int:
        """Number of finished iterations."""
        return len(self.rows) // len(self.description["seeds"])

    @property
    def finished(self) -> bool:
        """Whether no iterations are left."""
        return self.done >= self.description["settings"]["iterations"]

    @property
    def late(self) -> int:
        """Number of iterations at the end of the run so far: its last tenth, and at most ten."""
        return max(1, min(_LATE, self.done // _LATE))

    @property
    def standings(self) -> list[Standing]:
        """Means over the end of the run, as `standings` returns them."""
        return standings(self.description, self.rows[-self.late * len(self.description["seeds"]) :])

    @property
    def seeds(self) -> list[Standing]:
        """The standings of the seeds, without the mean."""
        return [each for each in self.standings if each.label != "mean"]

    @property
    def kept(self) -> list[bool]:
        """Whether every cost of a seed is at most its limit, with drawn and most likely actions."""
        limits = self.description["limits"]
        return [all(map(operator.le, each.larger_costs, limits)) for each in self.seeds]

    @property
    def over_limits(self) -> list[str]:
        """Seeds with a cost over its limit; empty if the algorithm has no limits."""
        pairs = zip(self.seeds, self.kept, strict=True)
        over = [f"seed {each.label}" for each, kept in pairs if not kept]
        return over if self.description["constrained"] else []

    def curve(self, name: str, index: int | None = None) -> Float[np.ndarray, "seeds iterations"]:
        """Return a measurement by seed and iteration."""
        return curve_of(self.rows, len(self.description["seeds"]), name, index)

    def agent_files(self) -> list[Path]:
        """Return the files from which episodes are played; empty before the run is finished."""
        first = runs.agent_file(self.folder, self.description["seeds"][0])
        return [first, self.folder / runs.CHECKPOINT] if self.finished and first.is_file() else []


def read_training(folder: Path, stress: Stress | None = None) -> TrainingRecord:
    """Return the record of a training run; an incomplete last line is ignored.

    Arguments:
        folder: folder of the run.
        stress: result of `holdfast stress` for the run, or None.

    Raises:
        ValueError: a file is damaged or was written by a newer version; the message names the file.
    """
    # A newer version may use another format, so its number is checked before the format.
    described = read_json(folder / runs.DESCRIPTION, "the description of a run")
    if isinstance(made_with := described.get("made_with"), Mapping):
        check_not_newer(made_with)
    description = runs.read_description(folder)
    assert description is not None
    _check_description(folder / runs.DESCRIPTION, description)
    if stress is not None and list(stress.cost_names) != description["costs"]:
        raise ValueError(f"{folder}: its stress test and its description have different costs")
    rows = runs.read_lines(folder / runs.METRICS)
    seeds, costs = description["seeds"], len(description["costs"])
    for i, row in enumerate(rows):
        _check_row(f"{folder / runs.METRICS}: line {i + 1}", row, costs)
        # Lines are written by iteration and then by seed, so that only the last iteration can be
        # incomplete.
        iteration, place = divmod(i, len(seeds))
        if (row["iteration"], row["seed"]) != (iteration, seeds[place]):
            raise ValueError(
                f"{folder / runs.METRICS}: line {i + 1} has iteration {row['iteration']} of seed "
                f"{row['seed']!r}, expected iteration {iteration} of seed {seeds[place]}"
            )
    whole = len(rows) - len(rows) % len(seeds)
    return TrainingRecord(folder, description, rows[:whole], stress)


def _check_description(path: Path, description: Mapping[str, Any]) -> None:
    """Raise a ValueError if an entry that the report reads is missing or has another type."""
    for name, kind in _DESCRIBED.items():
        value: Any = description
        for key in name.split("."):
            value = value.get(key)
        # A bool is an int in Python, but neither a count nor a radius.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            found = "nothing" if value is None else reprlib.repr(value)
            raise ValueError(f"{path}: damaged, {name} is {found}")
    seeds = description["seeds"]
    if not seeds or not all(type(seed) is int for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ValueError(f"{path}: damaged, seeds is {reprlib.repr(seeds)}")
    costs, limits = description["costs"], description["limits"]
    if len(costs) != len(limits) or not all(isinstance(name, str) for name in costs):
        raise ValueError(f"{path}: damaged, the costs {reprlib.repr(costs)} do not fit the limits")
    if not all(map(_is_finite, [*limits, description["settings"]["radius"]])):
        raise ValueError(f"{path}: damaged, a limit or the radius is not a number")


def _check_row(where: str, row: Row, costs: int) -> None:
    """Raise a ValueError if a measurement of a row is missing or is not a finite number."""
    for name in ("seed", *_MEASURED):
        if name not in row:
            raise ValueError(f"{where} has no {name}")
    for name in _MEASURED:
        values = row[name] if name in _LISTS else [row[name]]
        if not isinstance(values, list) or not all(map(_is_finite, values)):
            raise ValueError(f"{where} is damaged, {name} is {reprlib.repr(row[name])}")
        if name in _LISTS and len(values) != costs:
            raise ValueError(f"{where} is damaged, {name} has {len(values)} numbers, not {costs}")


def _is_finite(value: Any) -> bool:
    # Numbers beyond 1e300 overflow when they are squared or formatted.
    return isinstance(value, int | float) and type(value) is not bool and abs(value) <= 1e300
