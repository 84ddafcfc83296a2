"""Descriptions of experiments on robots, whose runs end by simulator steps. Imports no JAX."""

from __future__ import annotations

import dataclasses
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast import registry
from holdfast.experiments.description import Experiment
from holdfast.experiments.engines import File


@dataclasses.dataclass(frozen=True)
class RobotJob:
    """One training run of one seed on a Gymnasium environment; also its work item.

    Arguments:
        experiment: the experiment, with the settings that all its jobs share.
        environment: name of the environment in the namespace `holdfast`.
        algorithm: as in `train`.
        seed: as in `train`.
        variant: name of the changes to the settings, "" for none.
    """

    experiment: RobotExperiment
    environment: str
    algorithm: str
    seed: int
    variant: str = ""

    @property
    def label(self) -> str:
        """The algorithm with the variant of its settings."""
        return f"{self.algorithm} {self.variant}".strip()

    @property
    def path(self) -> str:
        """Path of the run's folder in the experiment's folder."""
        return f"{self.environment}/{self.label.replace(' ', '-')}-seed-{self.seed}"

    @property
    def radius(self) -> float:
        """Radius of the set: 0 for an algorithm that may do without an adversary."""
        found = registry.SIMULATOR_ALGORITHMS.find(self.algorithm)
        return self.experiment.radii[0] if found.robust and not found.nominal_at_zero else 0.0

    @property
    def kin(self) -> str:
        """The runs that compile the same program."""
        return f"{self.environment} {self.label}"

    def train_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `train`, without the number of iterations."""
        asked = self.experiment
        own = {"cost_limit": asked.cost_limit, "radius": self.radius, "seed": self.seed}
        return {**asked.settings, **asked.variants.get(self.variant, {}), **own}

    def run(self, folder: Path | None) -> Iterator[File]:
        """Train in the experiment's folder, where a run resumes; elsewhere, yield every file."""
        from holdfast.experiments.robot_runs import train_robot

        if folder is not None:
            train_robot(self, folder)
            return
        with tempfile.TemporaryDirectory() as scratch:
            train_robot(self, Path(scratch))
            for file in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                yield File(file.relative_to(scratch).as_posix(), file.read_bytes())

    def __str__(self) -> str:
        return f"{self.environment} {self.label} seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class RobotExperiment(Experiment):
    """Algorithms × robots × seeds, each for a number of simulator steps.

    Arguments:
        environments: names of Gymnasium environments in the namespace `holdfast`.
        algorithms: algorithms of `train`.
        radii: one radius, for algorithms that need an adversary.
        seeds: number of runs of each combination; the seeds are 0, 1, …
        name: name of the experiment.
        about: purpose of the experiment, in one sentence.
        cost_limit: limit of the first cost.
        steps: simulator steps of a run, those of adversaries included.
        settings: settings of `train` that differ from the environment's own defaults.
        variants: named changes to the settings; every algorithm runs with each of them.
        channel: disturbance of runs with a radius, as in `holdfast train --channel`.
        published: name of a table in the package to compare with, or "".

    Example:
        >>> from holdfast.experiments import read_suite
        >>> experiment = read_suite("velocity")
        >>> len(experiment.jobs()), experiment.jobs()[0].path
        (75, 'HalfCheetahVelocity-v0/cpo-seed-0')
    """

    radii: tuple[float, ...] = (0.0,)
    cost_limit: float = 25.0
    steps: int = 10_000_000
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    channel: str = ""
    published: str = ""

    kind = "robots"
    default_engine = "processes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.radii) != 1:
            raise ValueError(f"radii: expected one radius, got {list(self.radii)}")
        if self.radii[0] > 0 and not self.channel:
            raise ValueError("channel: expected the disturbance of runs with a radius, got none")

    def jobs(self) -> list[RobotJob]:
        """Return every training run; the first seed of everything comes first."""
        return [
            RobotJob(self, environment, algorithm, seed, variant)
            for seed in range(self.seeds)
            for environment in self.environments
            for algorithm in self.algorithms
            for variant in self.variants or ("",)
        ]

    def with_iterations(self, iterations: int) -> RobotExperiment:
        """Refuse: these runs end after a number of simulator steps."""
        raise ValueError(f"iterations: these runs end by steps; use --steps, got {iterations}")


def published_values(name: str) -> tuple[str, dict[str, dict[str, tuple[float, ...]]]]:
    """Return the source of a published table, and its values by environment and algorithm.

    A value is the mean reward, its standard deviation over seeds, and the mean cost.

    Example:
        >>> source, values = published_values("velocity")
        >>> values["HopperVelocity-v0"]["cpo"]
        (1714, 18, 13.4)
    """
    path = files("holdfast.experiments") / "published" / f"{name}.toml"
    if not path.is_file():
        raise ValueError(f"published: there is no table {name!r}")
    found = tomllib.loads(path.read_text())
    source = found.pop("source")
    return source, {
        environment: {algorithm: tuple(value) for algorithm, value in row.items()}
        for environment, row in found.items()
    }
