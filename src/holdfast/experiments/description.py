"""Descriptions of experiments as frozen records. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from holdfast import registry
from holdfast._support.files import check_path_name
from holdfast.experiments.fields import check_keys, checked
from holdfast.experiments.jobs import Job, SolveSettings, TrainingJob, cell_name
from holdfast.simulators.training.settings import MOST_SEEDS

# A job takes at least a tenth of a second, so these take a day on one processor.
_MOST_JOBS = 1_000_000

_TABLES_OF = {"algorithms": ("search",)}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Algorithms × environments × seeds: the fields that both kinds of experiment share.

    `TabularExperiment` solves tables, `DeepExperiment` trains on simulators. Lists become tuples.

    Arguments:
        environments: names of environments: registered, or "module:NAME".
        algorithms: names of algorithms: registered, or "module:NAME".
        radii: radii of the uncertainty sets.
        seeds: number of seeds; the seeds are 0, 1, …
        name: name of the experiment.
        about: purpose of the experiment, in one sentence.
    """

    environments: tuple[str, ...]
    algorithms: tuple[str, ...]
    radii: tuple[float, ...] = ()
    seeds: int = 5
    name: str = "experiment"
    about: str = ""

    kind: ClassVar[str]
    # A solve uses one thread, so solves share the processors; a training uses the whole machine.
    default_engine: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = checked(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        for name in ("environments", "algorithms"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one name")
        check_path_name("name", self.name)
        for argument in ("environments", "algorithms", "variants", "references", "undisturbed"):
            for name in getattr(self, argument, ()):
                check_path_name(argument, name)

    def jobs(self) -> Sequence[Any]:
        """Return every run of the experiment."""
        raise NotImplementedError

    def search_jobs(self) -> list[Job]:
        """Return the runs that select settings, to be run before the others."""
        return []

    def with_iterations(self, iterations: int) -> Experiment:
        """Return a copy with another number of iterations."""
        raise NotImplementedError

    def selected(self, **names: Sequence[str]) -> Experiment:
        """Return a copy with some of the environments and some of the algorithms; all if none is named.

        Raises:
            ValueError: the experiment has no such environment or algorithm.

        Example:
            >>> from holdfast.experiments import read_suite
            >>> read_suite("paper").selected(algorithms=["rcpo"], environments=[]).algorithms
            ('rcpo',)
        """
        chosen: dict[str, Any] = {}
        for field, given in names.items():
            if given:
                check_keys(given, getattr(self, field), field)
                chosen[field] = tuple(given)
                # Tables with settings of single names: `algorithm` and `search` beside `algorithms`.
                for table in (field.removesuffix("s"), *_TABLES_OF.get(field, ())):
                    kept = getattr(self, table, {}).items()
                    chosen |= {table: {k: v for k, v in kept if k in given}} if kept else {}
        return dataclasses.replace(self, **chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return the experiment as values that JSON and TOML can hold."""
        found = dataclasses.asdict(self)
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}
        return {"kind": self.kind, **plain}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Experiment:
        """Return the experiment that `to_dict` or a TOML file describes; its "kind" selects the class.

        Raises:
            ValueError: a key does not exist or has a value that is not allowed.

        Example:
            >>> Experiment.from_dict({"environments": ["gambler"], "seeds": 2}).seeds
            2
        """
        given = dict(values)
        kind = given.pop("kind", TabularExperiment.kind)
        kinds = {each.kind: each for each in Experiment.__subclasses__()}
        if kind not in kinds:
            raise ValueError(f"kind: expected {' or '.join(kinds)}, got {kind!r}")
        cls = kinds[kind]
        check_keys(given, [field.name for field in dataclasses.fields(cls)])
        return cls(**{"environments": getattr(cls, "environments", ()), **given})

    def differences(self, other: Experiment) -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ, as name: (value here, value in the other experiment)."""
        mine, theirs = _flat(self.to_dict()), _flat(other.to_dict())
        return {
            name: (mine.get(name), theirs.get(name))
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        }


@dataclasses.dataclass(frozen=True)
class TabularExperiment(Experiment):
    """Algorithms × models × radii × settings, each from several random initial policies.

    Arguments:
        environments: names of models: registered, "module:NAME", or keys of `environment`.
        algorithms: names of algorithms of `solve`.
        radii: radii of the uncertainty sets; empty keeps each model's own.
        seeds: number of runs of each combination; the seeds are 0, 1, …
        name: name of the experiment.
        about: purpose of the experiment, in one sentence.
        settings: settings of every run.
        variants: named changes to the settings; every algorithm runs with each of them.
        algorithm: changes to the settings for single algorithms.
        search: lists of values to try, by algorithm and setting. All combinations run on each model
            with one additional seed, and the other runs use the best.
        environment: definitions of models by name: a `model` with the arguments of its function, or a
            `file` that `RobustCMDP.load` reads.
        certify: whether to certify every last policy, which gives its gap.
        nodes: largest number of regions that branch and bound examines for a certificate.

    Example:
        >>> from holdfast.experiments import TabularExperiment
        >>> experiment = TabularExperiment(environments=("gambler",), radii=(0.1, 0.2), seeds=2)
        >>> len(experiment.jobs()), str(experiment.jobs()[0])
        (16, 'gambler-radius-0.1 rcpo seed 0')
        >>> TabularExperiment.from_dict(experiment.to_dict()) == experiment
        True
    """

    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo", "rvi")
    settings: SolveSettings = dataclasses.field(default_factory=SolveSettings)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    algorithm: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    search: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    certify: bool = False
    nodes: int = 0

    kind = "tables"
    default_engine = "processes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.settings, SolveSettings):
            settings = SolveSettings().changed(self.settings, "settings")
            object.__setattr__(self, "settings", settings)
        if self.nodes and not self.certify:
            raise ValueError("nodes: regions are for certificates, so certify has to be true")
        check_keys(self.algorithm, self.algorithms, "algorithm")
        check_keys(self.environment, self.environments, "environment")
        check_keys(self.search, self.algorithms, "search")
        if self.search and self.variants:
            raise ValueError("search: give either search or variants, not both")
        self._check_size()
        # Building all jobs checks every variant and every candidate of the search.
        self.jobs()
        self.search_jobs()

    def _check_size(self) -> None:
        """Raise a ValueError if there are more jobs than anyone can run, before any is made."""
        solves = len(self.algorithms) * max(1, len(self.variants)) * self.seeds
        searched = (
            math.prod(len(values) for values in self._searched(name).values())
            for name in self.search
        )
        jobs = len(self.cells()) * (solves + sum(searched))
        if jobs > _MOST_JOBS:
            raise ValueError(
                f"seeds: {self.seeds:,} seeds make {jobs:,} jobs; expected at most {_MOST_JOBS:,} jobs"
            )

    def jobs(self, chosen: Mapping[tuple[str, str], SolveSettings] | None = None) -> list[Job]:
        """Return every solve, ordered by model, radius, algorithm, variant and seed.

        Arguments:
            chosen: settings that the search selected, by cell and algorithm.
        """
        best = chosen or {}
        return [
            Job(
                environment=environment,
                algorithm=algorithm,
                seed=seed,
                settings=best.get(
                    (cell_name(environment, radius), algorithm), self._settings(algorithm, variant)
                ),
                radius=radius,
                variant=variant,
                certify=self.certify,
                nodes=self.nodes,
            )
            for environment, radius in self.cells()
            for algorithm in self.algorithms
            for variant in self.variants or ("",)
            for seed in range(self.seeds)
        ]

    def search_jobs(self) -> list[Job]:
        """Return the solves that select settings, with a seed that no other run has."""
        return [
            Job(environment, algorithm, self.seeds, settings, radius, name, searching=True)
            for environment, radius in self.cells()
            for algorithm in self.search
            for name, settings in self._candidates(algorithm).items()
        ]

    def cells(self) -> list[tuple[str, float | None]]:
        """Return every model with every radius."""
        return [(name, radius) for name in self.environments for radius in self.radii or (None,)]

    def with_iterations(self, iterations: int) -> TabularExperiment:
        """Return a copy with another number of iterations, except for algorithms that set their own."""
        settings = dataclasses.replace(self.settings, iterations=iterations)
        return dataclasses.replace(self, settings=settings)

    def _settings(self, algorithm: str, variant: str) -> SolveSettings:
        own = self.algorithm.get(algorithm, {})
        settings = self.settings.changed(own, f"algorithm.{algorithm}")
        return settings.changed(self.variants.get(variant, {}), f"variants.{variant}")

    def _searched(self, algorithm: str) -> dict[str, Any]:
        """Return the values to try, by setting: those of `solve`, then the algorithm's own."""
        where, shared = f"search.{algorithm}", dict(self.search[algorithm])
        own = shared.pop("settings", {})
        if not isinstance(own, Mapping):
            raise ValueError(f"{where}.settings: expected a table, got {own!r}")
        lists = {**shared, **own}
        for key, values in lists.items():
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"{where}.{key}: expected a list of values to try, got {values!r}")
        return lists

    def _candidates(self, algorithm: str) -> dict[str, SolveSettings]:
        """Return the settings of every combination of searched values, by a name for it."""
        where = f"search.{algorithm}"
        usual = self._settings(algorithm, "")
        lists = self._searched(algorithm)
        shared = [key for key in self.search[algorithm] if key != "settings"]
        own = [key for key in lists if key not in shared]
        found = {}
        for values in itertools.product(*lists.values()):
            combined = dict(zip(lists, values, strict=True))
            changes = {key: combined[key] for key in shared}
            if own:
                changes["settings"] = {**usual.settings, **{key: combined[key] for key in own}}
            name = " ".join(f"{key}={value}" for key, value in combined.items())
            check_path_name(where, name)
            found[name] = usual.changed(changes, where)
        return found


@dataclasses.dataclass(frozen=True)
class DeepExperiment(Experiment):
    """Algorithms × simulators × radii × step sizes, followed by stress tests.

    Arguments:
        environments: names of simulators with Gaussian noise and an option `noise_scale`.
        algorithms: algorithms of `train`; their policies are stressed.
        radii: radii of the sets that robust algorithms train against.
        seeds: number of policies of each training run.
        name: name of the experiment.
        about: purpose of the experiment, in one sentence.
        references: algorithms that are trained but not stressed.
        undisturbed: algorithms that are trained once more without disturbance.
        trust_regions: step sizes; every algorithm trains with each.
        cost_limit: limit of the first cost.
        iterations: number of policy updates.
        batch_size: simulator steps under each kernel in one iteration.
        attacks: radii of the attacks.
        action_noise: standard deviations of noise on the actions; the paper's authors use 0.1.
        noise: factors on the simulator's own noise.
        episodes: number of episodes per measurement and seed.
        restarts: adversaries of each kind per radius; the strongest counts.
        updates: number of batches a learned adversary trains on.

    Example:
        >>> from holdfast.experiments import DeepExperiment
        >>> [job.path for job in DeepExperiment(trust_regions=(0.01,)).jobs()][:2]
        ['point-gather/rcpo-0.01', 'point-gather/pcpo-0.01']
    """

    environments: tuple[str, ...] = ("point-gather",)
    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo")
    radii: tuple[float, ...] = (0.2,)
    references: tuple[str, ...] = ("trpo",)
    undisturbed: tuple[str, ...] = ("pcpo", "cpo", "trpo")
    trust_regions: tuple[float, ...] = (0.01, 0.001)
    cost_limit: float = 0.1
    iterations: int = 100
    batch_size: int = 50_000
    attacks: tuple[float, ...] = (0.1, 0.2, 0.4)
    action_noise: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    noise: tuple[float, ...] = (1.5, 2.0)
    episodes: int = 20_000
    restarts: int = 1
    updates: int = 200

    kind = "simulators"
    default_engine = "inline"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trust_regions", "radii"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one number")
        if self.seeds > MOST_SEEDS:
            raise ValueError(f"seeds: expected at most {MOST_SEEDS:,}, got {self.seeds:,}")

    @property
    def radius(self) -> float:
        """The first radius, which the claims refer to."""
        return self.radii[0]

    def jobs(self) -> list[TrainingJob]:
        """Return every training run: per simulator the disturbed runs by step size, then the others."""
        disturbed = (*self.algorithms, *self.references)
        return [
            TrainingJob(self, environment, algorithm, trust_region, radius, noise)
            for environment in self.environments
            for algorithms, noise in ((disturbed, True), (self.undisturbed, False))
            for trust_region in self.trust_regions
            for algorithm in algorithms
            for radius in self._radii(algorithm)
        ]

    def with_iterations(self, iterations: int) -> DeepExperiment:
        """Return a copy with another number of iterations."""
        return dataclasses.replace(self, iterations=iterations)

    def _radii(self, algorithm: str) -> tuple[float, ...]:
        robust = registry.SIMULATOR_ALGORITHMS.find(algorithm).robust
        return self.radii if robust else (0.0,)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that results depend on, without nesting."""
    ignored = ("kind", "settings", "name", "about", "environments")
    return {k: v for k, v in values.items() if k not in ignored} | values.get("settings", {})
