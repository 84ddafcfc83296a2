"""Experiments on tables as plain records, free of JAX so that the command line can read them at once."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

from holdfast._support.arguments import check_whole_number
from holdfast.experiments._reading import check_keys, names, numbers, tables

_CHOICES = {
    "step": ("exact", "taylor"),
    "safeguard": ("project", "none"),
    "worst_case": ("dual", "projected-gradient", "tilted"),
}


@dataclasses.dataclass(frozen=True)
class SolveSettings:
    """What `solve` is called with, apart from the model, the algorithm and the seed.

    Arguments:
        iterations: of every run.
        trust_region: the KL step size δ.
        step: "exact" or "taylor".
        safeguard: "project", or "none" for the paper's plain update.
        worst_case: how the worst-case kernels are found.
        settings: the algorithm's own, where it has any.
    """

    iterations: int = 200
    trust_region: float = 0.01
    step: str = "exact"
    safeguard: str = "project"
    worst_case: str = "dual"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole_number("iterations", self.iterations, least=1)
        if not (isinstance(self.trust_region, int | float) and 0 < self.trust_region < math.inf):
            raise ValueError(f"trust_region: expected more than 0, got {self.trust_region!r}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}: expected {' or '.join(known)}, got {getattr(self, name)!r}"
                )
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings: expected a table, got {self.settings!r}")

    def changed(self, changes: Mapping[str, Any], where: str) -> SolveSettings:
        """These settings with some others.

        Raises:
            ValueError: a key is none of them; the message names it and where it stands.
        """
        check_keys(changes, [field.name for field in dataclasses.fields(self)], where)
        try:
            return dataclasses.replace(self, **changes)
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from error

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `solve`."""
        found = dataclasses.asdict(self)
        found["safeguard"] = None if self.safeguard == "none" else self.safeguard
        if not self.settings:
            del found["settings"]
        return found


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of one algorithm: all that decides what comes out, but for the model's content.

    Two jobs that are equal give the same result, so the number of seeds is no part of it.

    Arguments:
        environment: what the experiment calls the model.
        algorithm: as in `solve`.
        seed: draws the initial policy.
        settings: what else `solve` is called with.
        radius: of the uncertainty set; None for the model's own.
        variant: name of the variant of the settings, "" where there are none.
        searching: whether it only helps to choose the settings of others.
        certify: whether the policy is certified.
        nodes: regions that branch and bound may judge for the certificate.
    """

    environment: str
    algorithm: str
    seed: int
    settings: SolveSettings = dataclasses.field(default_factory=SolveSettings)
    radius: float | None = None
    variant: str = ""
    searching: bool = False
    certify: bool = False
    nodes: int = 0

    @property
    def label(self) -> str:
        """The algorithm, with the variant of its settings."""
        return f"{self.algorithm} {self.variant}".strip()

    @property
    def cell(self) -> str:
        """The model with its radius, as the name of a folder."""
        return cell_name(self.environment, self.radius)

    @property
    def path(self) -> str:
        """Where its file lies in the experiment's folder."""
        room = "search" if self.searching else "jobs"
        return f"{self.cell}/{room}/{self.label.replace(' ', '-')}-seed-{self.seed}.npz"

    def to_dict(self) -> dict[str, Any]:
        """The job as values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The inverse of `to_dict`."""
        return cls(**{**values, "settings": SolveSettings(**values["settings"])})

    def __str__(self) -> str:
        return f"{self.cell} {self.label} seed {self.seed}"


def cell_name(environment: str, radius: float | None) -> str:
    """A model with its radius, as the name of a folder.

    Example:
        >>> cell_name("gambler", None), cell_name("gambler", 0.1)
        ('gambler', 'gambler-radius-0.1')
    """
    return environment if radius is None else f"{environment}-radius-{radius!r}"


@dataclasses.dataclass(frozen=True)
class TabularExperiment:
    """Algorithms × models × radii × settings, each from several random initial policies.

    Arguments:
        environments: names of models in `holdfast.environments.MODELS` or in `environment`.
        algorithms: that are compared.
        radii: of the uncertainty sets; none means each model's own.
        seeds: number of runs of each; the seeds are 0, 1, …
        settings: of every run.
        variants: by name, changes to the settings; every algorithm is run with each.
        algorithm: by algorithm, changes to the settings for it alone.
        search: by algorithm, lists of values for its settings, all combinations of which are tried with
            one further seed on each model; the others are then run with the best.
        environment: by name, a `model` of `MODELS` and the arguments that it is made with, or a `file`
            that `RobustCMDP.save` wrote.
        certify: whether every last policy is certified, which gives its gap.
        nodes: regions that branch and bound may judge for a certificate.
        name: of the experiment.
        about: what it is for, in a sentence.

    Example:
        >>> from holdfast.experiments import TabularExperiment
        >>> experiment = TabularExperiment(environments=("gambler",), radii=(0.1, 0.2), seeds=2)
        >>> len(experiment.jobs()), str(experiment.jobs()[0])
        (16, 'gambler-radius-0.1 rcpo seed 0')
        >>> TabularExperiment.from_dict(experiment.to_dict()) == experiment
        True
    """

    environments: tuple[str, ...]
    algorithms: tuple[str, ...] = ("rcpo", "pcpo", "cpo", "rvi")
    radii: tuple[float, ...] = ()
    seeds: int = 5
    settings: SolveSettings = dataclasses.field(default_factory=SolveSettings)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    algorithm: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    search: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    certify: bool = False
    nodes: int = 0
    name: str = "experiment"
    about: str = ""

    def __post_init__(self) -> None:
        for field in ("environments", "algorithms"):
            if not names(field, getattr(self, field)):
                raise ValueError(f"{field}: expected at least one")
        for name in self.environments:
            if "/" in name or "\\" in name or name.startswith("."):
                raise ValueError(f"environments: {name!r} cannot be the name of a folder")
        numbers("radii", self.radii)
        check_whole_number("seeds", self.seeds, least=1)
        check_whole_number("nodes", self.nodes, least=0)
        if self.nodes and not self.certify:
            raise ValueError("nodes: regions are for certificates, which go with certify = true")
        check_keys(self.algorithm, self.algorithms, "algorithm")
        check_keys(self.environment, self.environments, "environment")
        check_keys(self.search, self.algorithms, "search")
        if self.search and self.variants:
            raise ValueError("search: settings are either searched or varied, not both")
        # Whatever is wrong with a variant or a candidate is said here.
        self.jobs()
        self.search_jobs()

    def jobs(self, chosen: Mapping[tuple[str, str], SolveSettings] | None = None) -> list[Job]:
        """Every run of the experiment: by model, radius, algorithm, variant and seed.

        Arguments:
            chosen: by cell and algorithm, the settings that a search found best.
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
        """The runs that choose settings, with a seed that no other run has."""
        return [
            Job(
                environment=environment,
                algorithm=algorithm,
                seed=self.seeds,
                settings=settings,
                radius=radius,
                variant=name,
                searching=True,
            )
            for environment, radius in self.cells()
            for algorithm in self.search
            for name, settings in self._candidates(algorithm).items()
        ]

    def _candidates(self, algorithm: str) -> dict[str, SolveSettings]:
        """Every combination of the values that are searched, by a name for it."""
        where = f"search.{algorithm}"
        usual = self._settings(algorithm, "")
        given = dict(self.search[algorithm])
        own = given.pop("settings", {})
        if not isinstance(own, Mapping):
            raise ValueError(f"{where}.settings: expected a table, got {own!r}")
        found = {}
        keys = [*given, *own]
        for values in itertools.product(
            *(_values(where, k, v) for k, v in [*given.items(), *own.items()])
        ):
            combined = dict(zip(keys, values, strict=True))
            changes: dict[str, Any] = {key: combined[key] for key in given}
            if own:
                changes["settings"] = {**usual.settings, **{key: combined[key] for key in own}}
            name = " ".join(f"{key}={value}" for key, value in combined.items())
            found[name] = usual.changed(changes, where)
        return found

    def cells(self) -> list[tuple[str, float | None]]:
        """Every model with every radius."""
        return [(name, radius) for name in self.environments for radius in self.radii or (None,)]

    def labels(self) -> list[str]:
        """Every algorithm with every variant, as the results have them."""
        return list(dict.fromkeys(job.label for job in self.jobs()))

    def _settings(self, algorithm: str, variant: str) -> SolveSettings:
        settings = self.settings.changed(
            self.algorithm.get(algorithm, {}), f"algorithm.{algorithm}"
        )
        return settings.changed(self.variants.get(variant, {}), f"variants.{variant}")

    def to_dict(self) -> dict[str, Any]:
        """The experiment as values that JSON can hold; `from_dict` reads it back."""
        found = dataclasses.asdict(self)
        for name in ("environments", "algorithms", "radii"):
            found[name] = list(found[name])
        return {"kind": "tables", **found}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TabularExperiment:
        """The inverse of `to_dict`, and what a TOML file holds.

        Raises:
            ValueError: a key is missing or is none, or its value cannot be; the message names it.
        """
        given = {key: value for key, value in values.items() if key != "kind"}
        check_keys(given, [field.name for field in dataclasses.fields(cls)])
        if "environments" not in given:
            raise ValueError("environments: an experiment needs at least one")
        for key in ("environments", "algorithms"):
            if key in given:
                given[key] = names(key, given[key])
        if "radii" in given:
            given["radii"] = numbers("radii", given["radii"])
        for key in ("variants", "algorithm", "search", "environment"):
            if key in given:
                given[key] = tables(key, given[key])
        if "settings" in given:
            if not isinstance(given["settings"], Mapping):
                raise ValueError(f"settings: expected a table, got {given['settings']!r}")
            given["settings"] = SolveSettings().changed(given["settings"], "settings")
        return cls(**given)

    def differences(self, other: TabularExperiment) -> dict[str, tuple[Any, Any]]:
        """What two experiments compare differently: name to (this one's, the other's)."""
        mine, theirs = _flat(self.to_dict()), _flat(other.to_dict())
        every = dict.fromkeys([*mine, *theirs])
        return {
            name: (mine.get(name), theirs.get(name))
            for name in every
            if mine.get(name) != theirs.get(name)
        }


def _values(where: str, key: str, given: Any) -> list[Any]:
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"{where}.{key}: expected a list of values to try, got {given!r}")
    return list(given)


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that runs depend on, each by its own name."""
    top = {
        k: v for k, v in values.items() if k not in ("settings", "name", "about", "environments")
    }
    return top | values["settings"]
