"""Finds the runs in folders; what is damaged or too new is left out and named."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.experiments.description import TabularExperiment
from holdfast.report.page.content import Section, Skipped
from holdfast.report.page.experiment import experiment_sections
from holdfast.report.page.solution import SOLUTION, solution_section
from holdfast.report.page.training import TrainingRun, read_training
from holdfast.report.page.versions import check_not_newer
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.training import runs

EXPERIMENT, STRESS = "experiment.json", "stress.json"
# Of each kind of run, a file without which the others in the folder say nothing.
_REMAINS = {
    runs.METRICS: runs.DESCRIPTION,
    runs.CHECKPOINT: runs.DESCRIPTION,
    "certificate.json": SOLUTION,
    "history.csv": SOLUTION,
}

Made = TypeVar("Made")


class Kept:
    """What was made from files before, for as long as the files stay as they were."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Any]] = {}

    def get(self, key: str, files: Iterable[Path], make: Callable[[], Made]) -> Made:
        """What `make` gave for these files; it is asked again once one of them has changed."""
        stamp = [(str(path), *_stamp(path)) for path in sorted(files)]
        if key not in self._made or self._made[key][0] != stamp:
            self._made[key] = (stamp, make())
        return self._made[key][1]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


@dataclasses.dataclass
class Collection:
    """What is in folders.

    Attributes:
        sections: of solved models and of experiments, ready.
        trainings: runs that are still to be put side by side.
        stresses: results that lie in a folder of their own, with that folder.
        skipped: what could not be read.
    """

    sections: list[Section] = dataclasses.field(default_factory=list)
    trainings: list[TrainingRun] = dataclasses.field(default_factory=list)
    stresses: list[tuple[str, Stress]] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.sections or self.trainings or self.stresses)

    def attempt(self, path: Path, make: Callable[[], Made]) -> Made | None:
        """What `make` gives; where it cannot, the path is named with the reason."""
        try:
            return make()
        # A file that is not what it should be can raise nearly anything.
        except Exception as error:
            self.skipped.append(Skipped(str(path), _reason(path, error)))
            return None


def collect(paths: Sequence[Path], kept: Kept | None = None) -> Collection:
    """Every run in the folders and in what lies within them.

    Arguments:
        paths: folders of runs, or folders that hold such folders.
        kept: what an earlier call made, which is not made again.

    Raises:
        ValueError: a path is not a folder.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "run.json").write_text("{")
        ...     found = collect([pathlib.Path(folder)])
        >>> found.is_empty, "damaged" in found.skipped[0].reason
        (True, True)
    """
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path}: not a folder")
    kept = kept or Kept()
    found = Collection()
    for folder in _folders(paths):
        _collect_one(found, folder, kept)
    return found


def _collect_one(found: Collection, folder: Path, kept: Kept) -> None:
    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    files = [folder / name for name in names]
    if EXPERIMENT in names:
        inside = [path for path in folder.rglob("*") if path.is_file()]
        sections = found.attempt(
            folder,
            lambda: kept.get(f"{folder}/{EXPERIMENT}", inside, lambda: _read_experiment(folder)),
        )
        found.sections += sections or []
    if SOLUTION in names:
        section = found.attempt(
            folder,
            lambda: kept.get(f"{folder}/{SOLUTION}", files, lambda: solution_section(folder)),
        )
        found.sections += [] if section is None else [section]
    stress = found.attempt(folder / STRESS, lambda: _stress(folder)) if STRESS in names else None
    if runs.DESCRIPTION in names:
        training = found.attempt(folder, lambda: read_training(folder, stress))
        if training is not None:
            arena = found.attempt(
                folder,
                lambda: kept.get(
                    f"{folder}/episodes", training.agent_files(), training.played_episodes
                ),
            )
            found.trainings.append(dataclasses.replace(training, arena=arena))
    elif stress is not None:
        found.stresses.append((str(folder), stress))
    for remains, missing in _REMAINS.items():
        if remains in names and missing not in names:
            found.skipped.append(Skipped(str(folder), f"holds {remains} but no {missing}"))
            break


def _read_experiment(folder: Path) -> list[Section]:
    """None of its own for an experiment in simulators: its runs are found in their folders."""
    from holdfast.experiments.store import read_experiment, read_record

    version = str(json.loads((folder / EXPERIMENT).read_text()).get("version", ""))
    check_not_newer({"holdfast": version})
    experiment, _ = read_record(folder)
    if not isinstance(experiment, TabularExperiment):
        return []
    return experiment_sections(str(folder), read_experiment(folder), version)


def _stress(folder: Path) -> Stress:
    return Stress.load(folder / STRESS)


def _folders(paths: Sequence[Path]) -> Iterator[Path]:
    """The folders and all within them, each once, in a steady order."""
    seen = set()
    for path in paths:
        for place, inside, _ in os.walk(path):
            inside[:] = sorted(
                name for name in inside if not name.startswith(".") and name != runs.TENSORBOARD
            )
            if (real := Path(place).resolve()) not in seen:
                seen.add(real)
                yield Path(place)


def _reason(path: Path, error: Exception) -> str:
    """One sentence, without the path, which stands beside it."""
    text = " ".join(str(error).split())
    if not isinstance(error, (ValueError, OSError)):
        return f"damaged ({type(error).__name__}: {text})"
    for prefix in (f"{path}: ", f"{path}{os.sep}"):
        text = text.removeprefix(prefix)
    return text
