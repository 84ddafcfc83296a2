"""Experiments as plain records, free of JAX so that the command line can read them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one algorithm: what `solve` is called with, and nothing else.

    Two jobs that are equal give the same result, so the number of seeds is no part of it.

    Arguments:
        environment: name of a model in `holdfast.environments.MODELS`.
        algorithm: as in `solve`.
        seed: draws the initial policy.
        iterations: as in `solve`.
        trust_region: as in `solve`.
        step: as in `solve`.
        safeguard: as in `solve`.
        worst_case: as in `solve`.
    """

    environment: str
    algorithm: str
    seed: int
    iterations: int
    trust_region: float
    step: str
    safeguard: str | None
    worst_case: str

    def to_dict(self) -> dict[str, Any]:
        """The job as values that JSON can hold."""
        return dataclasses.asdict(self)

    def solve_arguments(self) -> dict[str, Any]:
        """The keyword arguments of `solve`."""
        return {k: v for k, v in self.to_dict().items() if k not in ("environment", "algorithm")}

    def __str__(self) -> str:
        return f"{self.environment} {self.algorithm} seed {self.seed}"


@dataclasses.dataclass(frozen=True)
class TabularExperiment:
    """Several algorithms on one model, each from several random initial policies.

    Arguments:
        environment: name of a model in `holdfast.environments.MODELS`.
        algorithms: the algorithms that are compared.
        seeds: number of runs of each; the seeds are 0, 1, …
        iterations: of every run.
        trust_region: the KL step size δ.
        step: "exact" or "taylor".
        safeguard: "project", or None for the paper's plain update.
        worst_case: how the worst-case kernels are found.

    Example:
        >>> from holdfast.experiments import TabularExperiment
        >>> experiment = TabularExperiment(environment="gambler", seeds=2)
        >>> len(experiment.jobs()), str(experiment.jobs()[0])
        (8, 'gambler rcpo seed 0')
        >>> TabularExperiment.from_dict(experiment.to_dict()) == experiment
        True
    """

    environment: str
    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo", "rvi")
    seeds: int = 5
    iterations: int = 200
    trust_region: float = 0.01
    step: str = "exact"
    safeguard: str | None = "project"
    worst_case: str = "dual"

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise ValueError("algorithms: expected at least one")
        for name in ("seeds", "iterations"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")
        if not self.trust_region > 0:
            raise ValueError(f"trust_region: expected more than 0, got {self.trust_region!r}")

    def jobs(self) -> list[Job]:
        """Every run of the experiment, algorithm by algorithm."""
        shared = self.to_dict()
        for name in ("algorithms", "seeds"):
            del shared[name]
        return [
            Job(algorithm=algorithm, seed=seed, **shared)
            for algorithm in self.algorithms
            for seed in range(self.seeds)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The experiment as values that JSON can hold; `from_dict` reads it back."""
        return dataclasses.asdict(self) | {"algorithms": list(self.algorithms)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TabularExperiment:
        """The inverse of `to_dict`.

        Raises:
            ValueError: a key is missing or is not a setting; the message names it.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        for key in values:
            if key not in fields:
                raise ValueError(f"{key}: not a setting of an experiment")
        if "environment" not in values:
            raise ValueError("environment: an experiment needs one")
        given = dict(values)
        if "algorithms" in given:
            given["algorithms"] = tuple(given["algorithms"])
        return cls(**given)

    def differences(self, other: TabularExperiment) -> dict[str, tuple[Any, Any]]:
        """The settings in which two experiments differ: name to (this one's, the other's)."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


# The paper's section 6.1 says how many runs; the iterations and the step size are ours.
PAPER: Mapping[str, TabularExperiment] = MappingProxyType(
    {
        "gambler": TabularExperiment(environment="gambler"),
        "n-chain": TabularExperiment(environment="n-chain"),
        "frozen-lake": TabularExperiment(environment="frozen-lake"),
    }
)


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

    @property
    def folder(self) -> str:
        """The name of its folder."""
        quiet = "" if self.noise else "-undisturbed"
        return f"{self.algorithm}-{self.trust_region:g}{quiet}"

    def train_arguments(self) -> dict[str, Any]:
        """The keyword arguments of `train`."""
        given = dataclasses.asdict(self)
        return {k: v for k, v in given.items() if k not in ("environment", "noise", "algorithm")}

    def __str__(self) -> str:
        quiet = "" if self.noise else ", undisturbed"
        return f"{self.environment} {self.algorithm}, step {self.trust_region:g}{quiet}"


@dataclasses.dataclass(frozen=True)
class DeepExperiment:
    """Algorithms trained in one simulator, then put under noise and under attack.

    Arguments:
        environment: name of a simulator with Gaussian noise and a scale for it.
        algorithms: that are trained in the disturbed simulator and stressed.
        references: that are trained but not stressed.
        undisturbed: that are trained once more without any disturbance.
        trust_regions: step sizes; every algorithm is trained with each.
        radius: of the sets that the robust algorithms are trained for.
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

    Example:
        >>> from holdfast.experiments import DeepExperiment
        >>> [job.folder for job in DeepExperiment(trust_regions=(0.01,)).jobs()][:3]
        ['rcpo-0.01', 'pcpo-0.01', 'cpo-0.01']
    """

    environment: str = "point-gather"
    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo")
    references: tuple[str, ...] = ("trpo",)
    undisturbed: tuple[str, ...] = ("pcpo", "cpo", "trpo")
    trust_regions: tuple[float, ...] = (0.01, 0.001)
    radius: float = 0.2
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

    def __post_init__(self) -> None:
        for name in ("seeds", "iterations", "batch_size", "episodes", "restarts", "updates"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}")

    def jobs(self) -> list[TrainingJob]:
        """Every training run: the disturbed ones by step size, then the undisturbed ones."""
        return [
            TrainingJob(
                environment=self.environment,
                noise=noise,
                algorithm=algorithm,
                trust_region=trust_region,
                radius=self.radius if algorithm == "rcpo" else 0.0,
                cost_limit=self.cost_limit,
                seeds=self.seeds,
                iterations=self.iterations,
                batch_size=self.batch_size,
            )
            for algorithms, noise in (
                ((*self.algorithms, *self.references), True),
                (self.undisturbed, False),
            )
            for trust_region in self.trust_regions
            for algorithm in algorithms
        ]

    def is_stressed(self, job: TrainingJob) -> bool:
        """Whether a job's policies are put under noise and attack."""
        return job.noise and job.algorithm in self.algorithms

    def to_dict(self) -> dict[str, Any]:
        """The experiment as values that JSON can hold."""
        return dataclasses.asdict(self)


# Section 6.2 gives discount, batch, threshold and network, and names 0.001 as the step size; CPO's own
# setting has 0.01. The radius, the disturbance and the attacks are ours.
DEEP: Mapping[str, DeepExperiment] = MappingProxyType({"point-gather": DeepExperiment()})
