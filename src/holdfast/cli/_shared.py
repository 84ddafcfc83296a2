"""What the subcommands share: exit codes, refusals, the console."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from tyro.conf import arg

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from holdfast.model import RobustCMDP

FEASIBLE, FAILED, BAD_INPUT, NOT_FEASIBLE, INTERRUPTED = 0, 1, 2, 3, 130


class BadInputError(Exception):
    """What the user gave cannot be used; the message is one sentence that names it."""


class FailedError(Exception):
    """The work itself cannot go on; the message is one sentence that says why."""


class Command(Protocol):
    """A subcommand: a frozen record of its arguments that can be run."""

    about: ClassVar[str]

    def run(self) -> int:
        """Does the work and gives the exit code."""


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Input that the library does not take becomes one sentence and exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise BadInputError(" ".join(str(error).split())) from error


@dataclasses.dataclass(frozen=True)
class SetOptions:
    """The uncertainty set of a model, where it is not to be the model's own."""

    set: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: the model's own)")] = ""
    """One of kl, total-variation, chi-square, contamination, wasserstein."""
    radius: Annotated[
        float | None, arg(metavar="R", help_behavior_hint="(default: the model's own)")
    ] = None
    """Of the set, for all states and actions alike."""
    within_support: bool = False
    """For total-variation and contamination: only states that the nominal kernel leads to."""
    metric: Annotated[str, arg(metavar="FILE", help_behavior_hint="(default: none)")] = ""
    """For wasserstein: a .npy file with the (S, S) distances between states."""

    def to_dict(self) -> dict[str, Any]:
        """What was asked for, for the record."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in ("", None, False)}

    def apply(self, model: RobustCMDP) -> RobustCMDP:
        """The model with the set that was asked for."""
        from holdfast.uncertainty import SETS

        if not self.set:
            for name in ("within_support", "metric"):
                if getattr(self, name):
                    raise ValueError(f"{name}: it goes with --set and --radius")
            if self.radius is None:
                return model
            assert model.uncertainty is not None
            return model.replace(uncertainty=model.uncertainty.with_radius(self.radius))
        if self.set not in SETS or self.set == "interval":
            known = ", ".join(name for name in SETS if name != "interval")
            hint = "; bounds of intervals belong into the model file" if self.set in SETS else ""
            raise ValueError(f"set: expected one of {known}, got {self.set!r}{hint}")
        if self.radius is None:
            raise ValueError(f"radius: a set {self.set} needs one")
        options: dict[str, Any] = {}
        if self.within_support:
            if self.set not in ("total-variation", "contamination"):
                raise ValueError(f"within_support: a set {self.set} has no such option")
            options["within_support"] = True
        if self.metric and self.set != "wasserstein":
            raise ValueError(f"metric: a set {self.set} has none")
        if self.set == "wasserstein":
            options["metric"] = _metric(self.metric)
        return model.replace(uncertainty=SETS[self.set](self.radius, **options))


def _metric(path: str) -> np.ndarray:
    import numpy as np

    if not path:
        raise ValueError("metric: a set wasserstein needs the distances between states")
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"metric: {path} is no .npy file of distances: {error}") from error


def check_writable(folder: Path) -> None:
    """Refuses a folder that could not be made or written to, without making it."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{folder}: cannot be written to, since {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: cannot be written to, permission denied")


def console() -> Console:
    from rich.console import Console

    # A pipe or a file has no width of its own, and rich's 80 columns would fold every cell.
    return Console() if sys.stdout.isatty() else Console(width=120)
