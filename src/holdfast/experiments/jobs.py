"""Jobs of an experiment: the arguments of one call of `solve` or `train`. Imports no JAX."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast._support.arguments import check_whole_number
from holdfast.experiments.engines import File
from holdfast.experiments.fields import check_keys

if TYPE_CHECKING:
    from holdfast.experiments.description import DeepExperiment

_CHOICES = {
    "step": ("exact", "taylor"),
    "safeguard": ("project", "none"),
    "worst_case": ("dual", "projected-gradient", "tilted"),
}


@dataclasses.dataclass(frozen=True)
class SolveSettings:
    """Arguments of `solve` apart from the model, the algorithm and the seed.

    Arguments:
        iterations: number of policy updates.
        trust_region: KL step size δ.
        step: "exact" or "taylor".
        safeguard: "project", or "none" for the paper's plain update.
        worst_case: method that finds the worst-case kernels: "dual", "projected-gradient" or "tilted".
        settings: the algorithm's own hyper-parameters by name.

    Example:
        >>> SolveSettings(iterations=50).arguments()["trust_region"]
        0.01
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
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"{name}: expected {' or '.join(known)}, got {given!r}")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings: expected a table, got {self.settings!r}")

    def changed(self, changes: Mapping[str, Any], where: str) -> SolveSettings:
        """Return a copy with some fields replaced.

        Arguments:
            changes: new values by field name.
            where: name of the table that holds the changes, for error messages.

        Raises:
            ValueError: a field does not exist, or its value is not allowed.
        """
        if not isinstance(changes, Mapping):
            raise ValueError(f"{where}: expected a table, got {changes!r}")
        check_keys(changes, [field.name for field in dataclasses.fields(self)], where)
        try:
            return dataclasses.replace(self, **changes)
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from error

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `solve`."""
        found = dataclasses.asdict(self)
        found["safeguard"] = None if self.safeguard == "none" else self.safeguard
        if not self.settings:
            del found["settings"]
        return found


@dataclasses.dataclass(frozen=True)
class Job:
    """One solve of one table: everything that decides its result, except the content of the model.

    Equal jobs have equal results. The number of seeds is therefore not part of a job.

    Arguments:
        environment: name of the model in the experiment.
        algorithm: as in `solve`.
        seed: seed of the initial policy.
        settings: the other arguments of `solve`.
        radius: radius of the uncertainty set; None keeps the model's own.
        variant: name of the variant of the settings, "" without variants.
        searching: whether the job belongs to the search for settings.
        certify: whether to certify the last policy.
        nodes: largest number of regions that branch and bound examines for the certificate.

    Example:
        >>> Job("gambler", "rcpo", seed=2, radius=0.1).path
        'gambler-radius-0.1/jobs/rcpo-seed-2.npz'
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
        """The algorithm with the variant of its settings."""
        return f"{self.algorithm} {self.variant}".strip()

    @property
    def cell(self) -> str:
        """Folder name of the model with its radius."""
        return cell_name(self.environment, self.radius)

    @property
    def path(self) -> str:
        """Path of the result file in the experiment's folder."""
        room = "search" if self.searching else "jobs"
        return f"{self.cell}/{room}/{self.label.replace(' ', '-')}-seed-{self.seed}.npz"

    def to_dict(self) -> dict[str, Any]:
        """Return the job as values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """Return the job that `to_dict` described."""
        return cls(**{**values, "settings": SolveSettings(**values["settings"])})

    def __str__(self) -> str:
        return f"{self.cell} {self.label} seed {self.seed}"


def cell_name(environment: str, radius: float | None) -> str:
    """Return the folder name of a model with its radius.

    Example:
        >>> cell_name("gambler", None), cell_name("gambler", 0.1)
        ('gambler', 'gambler-radius-0.1')
    """
    return environment if radius is None else f"{environment}-radius-{radius!r}"


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """One training run on a simulator, for all seeds, and its stress test; also its work item.

    Arguments:
        experiment: the experiment, with the settings that all its jobs share.
        environment: name of the simulator.
        algorithm: as in `train`.
        trust_region: as in `train`.
        radius: as in `train`; 0 for algorithms without an adversary.
        noise: whether the simulator is disturbed.

    Example:
        >>> from holdfast.experiments import DeepExperiment
        >>> job = DeepExperiment().jobs()[0]
        >>> job.path, job.train_arguments()["radius"]
        ('point-gather/rcpo-0.01', 0.2)
    """

    experiment: DeepExperiment
    environment: str
    algorithm: str
    trust_region: float
    radius: float
    noise: bool

    @property
    def path(self) -> str:
        """Path of the run's folder in the experiment's folder."""
        several = self.radius and len(self.experiment.radii) > 1
        radius = f"-radius-{self.radius:g}" if several else ""
        quiet = "" if self.noise else "-undisturbed"
        return f"{self.environment}/{self.algorithm}-{self.trust_region:g}{radius}{quiet}"

    @property
    def stress(self) -> dict[str, Any] | None:
        """Arguments of `stress`; None skips the stress test."""
        asked = self.experiment
        if not self.noise or self.algorithm not in asked.algorithms:
            return None
        tests = {"radii": asked.attacks, "noise": asked.noise, "action_noise": asked.action_noise}
        counts = {name: getattr(asked, name) for name in ("episodes", "restarts", "updates")}
        return {name: levels or None for name, levels in tests.items()} | counts

    def train_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `train`."""
        shared = ("cost_limit", "seeds", "iterations", "batch_size")
        own = {"trust_region": self.trust_region, "radius": self.radius}
        return own | {name: getattr(self.experiment, name) for name in shared}

    @property
    def kin(self) -> str:
        """The simulator: its training runs share compiled programs."""
        return self.environment

    def run(self, folder: Path | None) -> Iterator[File]:
        """Train and stress in the experiment's folder, where a run resumes from its checkpoint.

        Without a folder, train elsewhere and yield every file at the end.
        """
        from holdfast.experiments.simulators import train_job

        if folder is not None:
            train_job(self, folder)
            return
        with tempfile.TemporaryDirectory() as scratch:
            train_job(self, Path(scratch))
            for file in sorted(path for path in Path(scratch).rglob("*") if path.is_file()):
                yield File(file.relative_to(scratch).as_posix(), file.read_bytes())

    def __str__(self) -> str:
        quiet = "" if self.noise else ", undisturbed"
        return f"{self.environment} {self.algorithm}, step {self.trust_region:g}{quiet}"
