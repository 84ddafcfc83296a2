"""Experiments in simulators as plain records, free of JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast._support.arguments import check_whole_number
from holdfast.experiments._reading import check_keys, names, numbers


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """Policies trained by one algorithm with one step size: what `train` is called with.

    Arguments:
        environment: name of a simulator.
        noise: whether the simulator is disturbed at all.
        algorithm: as in `train`.
        trust_region: as in `train`.
        radius: as in `train`; 0 for an algorithm that trusts the simulator.
        cost_limit: as in `train`.
        seeds: as in `train`.
        iterations: as in `train`.
        batch_size: as in `train`.
        folder: the name of its folder.
    """

    environment: str
    noise: bool
    algorithm: str
    trust_region: float
    radius: float
    cost_limit: float
    seeds: int
    iterations: int
    batch_size: int
    folder: str

    @property
    def path(self) -> str:
        """Where its folder lies in the experiment's."""
        return f"{self.environment}/{self.folder}"

    def train_arguments(self) -> dict[str, Any]:
        """The keyword arguments of `train`."""
        given = dataclasses.asdict(self)
        mine = ("environment", "noise", "algorithm", "folder")
        return {k: v for k, v in given.items() if k not in mine}

    def __str__(self) -> str:
        quiet = "" if self.noise else ", undisturbed"
        return f"{self.environment} {self.algorithm}, step {self.trust_region:g}{quiet}"


@dataclasses.dataclass(frozen=True)
class DeepExperiment:
    """Algorithms × simulators × radii × step sizes, then put under noise and under attack.

    Arguments:
        environments: names of simulators with Gaussian noise and a scale for it.
        algorithms: that are trained in the disturbed simulator and stressed.
        references: that are trained but not stressed.
        undisturbed: that are trained once more without any disturbance.
        trust_regions: step sizes; every algorithm is trained with each.
        radii: of the sets that the robust algorithms are trained for.
        cost_limit: of the first cost.
        seeds: policies of each.
        iterations: of training.
        batch_size: steps under each kernel for an iteration.
        attacks: radii of the attacks.
        action_noise: standard deviations of the noise on actions; the authors' is 0.1.
        noise: factors on the simulator's own noise.
        episodes: that every measurement is the mean of, for each seed.
        restarts: adversaries of each kind for a radius; the strongest counts.
        updates: batches that a learned adversary is trained on.
        name: of the experiment.
        about: what it is for, in a sentence.

    Example:
        >>> from holdfast.experiments import DeepExperiment
        >>> [job.folder for job in DeepExperiment(trust_regions=(0.01,)).jobs()][:3]
        ['rcpo-0.01', 'pcpo-0.01', 'cpo-0.01']
    """

    environments: tuple[str, ...] = ("point-gather",)
    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo")
    references: tuple[str, ...] = ("trpo",)
    undisturbed: tuple[str, ...] = ("pcpo", "cpo", "trpo")
    trust_regions: tuple[float, ...] = (0.01, 0.001)
    radii: tuple[float, ...] = (0.2,)
    cost_limit: float = 0.1
    seeds: int = 5
    iterations: int = 100
    batch_size: int = 50_000
    attacks: tuple[float, ...] = (0.1, 0.2, 0.4)
    action_noise: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    noise: tuple[float, ...] = (1.5, 2.0)
    episodes: int = 20_000
    restarts: int = 2
    updates: int = 100
    name: str = "experiment"
    about: str = ""

    def __post_init__(self) -> None:
        for field in ("environments", "algorithms"):
            if not names(field, getattr(self, field)):
                raise ValueError(f"{field}: expected at least one")
        for field in ("references", "undisturbed"):
            names(field, getattr(self, field))
        for field in ("trust_regions", "radii", "attacks", "action_noise", "noise"):
            numbers(field, getattr(self, field))
        for field in ("seeds", "iterations", "batch_size", "episodes", "restarts", "updates"):
            check_whole_number(field, getattr(self, field), least=1)
        if not self.trust_regions or not self.radii:
            missing = "radii" if self.trust_regions else "trust_regions"
            raise ValueError(f"{missing}: expected at least one")

    @property
    def radius(self) -> float:
        """The first of the radii: the one that claims are about."""
        return self.radii[0]

    def jobs(self) -> list[TrainingJob]:
        """Every training run: by simulator, the disturbed ones by step size, then the undisturbed."""
        return [
            self._job(environment, algorithm, trust_region, radius, noise)
            for environment in self.environments
            for algorithms, noise in (
                ((*self.algorithms, *self.references), True),
                (self.undisturbed, False),
            )
            for trust_region in self.trust_regions
            for algorithm in algorithms
            for radius in (self.radii if algorithm == "rcpo" else (0.0,))
        ]

    def _job(
        self, environment: str, algorithm: str, trust_region: float, radius: float, noise: bool
    ) -> TrainingJob:
        several = f"-radius-{radius:g}" if radius and len(self.radii) > 1 else ""
        quiet = "" if noise else "-undisturbed"
        return TrainingJob(
            environment=environment,
            noise=noise,
            algorithm=algorithm,
            trust_region=trust_region,
            radius=radius,
            cost_limit=self.cost_limit,
            seeds=self.seeds,
            iterations=self.iterations,
            batch_size=self.batch_size,
            folder=f"{algorithm}-{trust_region:g}{several}{quiet}",
        )

    def is_stressed(self, job: TrainingJob) -> bool:
        """Whether a job's policies are put under noise and attack."""
        return job.noise and job.algorithm in self.algorithms

    def to_dict(self) -> dict[str, Any]:
        """The experiment as values that JSON can hold; `from_dict` reads it back."""
        found = dataclasses.asdict(self)
        return {
            "kind": "simulators",
            **{k: list(v) if isinstance(v, tuple) else v for k, v in found.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DeepExperiment:
        """The inverse of `to_dict`, and what a TOML file holds.

        Raises:
            ValueError: a key is none, or its value cannot be; the message names it.
        """
        given = {key: value for key, value in values.items() if key != "kind"}
        check_keys(given, [field.name for field in dataclasses.fields(cls)])
        for key in ("environments", "algorithms", "references", "undisturbed"):
            if key in given:
                given[key] = names(key, given[key])
        for key in ("trust_regions", "radii", "attacks", "action_noise", "noise"):
            if key in given:
                given[key] = numbers(key, given[key])
        return cls(**given)
