"""Finds the runs in folders, and names those that are damaged or too new."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast._support.files import read_json
from holdfast.report.page.audits import audit_section
from holdfast.report.page.content import Arena, Section, Skipped, json_for_script, to_plain
from holdfast.report.page.models import comparison_section, solution_sections
from holdfast.report.page.simulators import stress_section, training_sections
from holdfast.report.records import TrainingRecord, check_not_newer, read_training
from holdfast.report.solution import CERTIFICATE_FILE, SOLUTION_FILE
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate
from holdfast.simulators.certificates.stress_result import Stress
from holdfast.simulators.training import runs

EXPERIMENT, STRESS, AUDIT = "experiment.json", "stress.json", "audit.json"
# Certificates of an audit: of drawn actions or of the only way to act, and of most likely ones.
PROOFS = ("proof.json", "proof-most-likely.json")
# Files of a run, each with the file without which it cannot be read.
_REMAINS = {
    runs.METRICS: runs.DESCRIPTION,
    runs.CHECKPOINT: runs.DESCRIPTION,
    CERTIFICATE_FILE: SOLUTION_FILE,
    "history.csv": SOLUTION_FILE,
}

Made = TypeVar("Made")


class Kept:
    """Objects made from files, kept until one of the files changes."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Any]] = {}

    def get(self, key: str, files: Iterable[Path], make: Callable[[], Made]) -> Made:
        """Return the object under `key`; call `make` if there is none, or a file has changed."""
        stamp = [(str(path), _stamp(path)) for path in sorted(files)]
        if key not in self._made or self._made[key][0] != stamp:
            self._made[key] = (stamp, make())
        return self._made[key][1]


def _stamp(path: Path) -> tuple[int, int] | None:
    found = path.stat() if path.exists() else None
    return found and (found.st_mtime_ns, found.st_size)


@dataclasses.dataclass
class Collection:
    """The runs in folders.

    Attributes:
        sections: sections of the page.
        trainings: training runs that are on the page.
        stresses: stress results in folders of their own, with the folder, that are on the page.
        skipped: folders and files that cannot be read.
    """

    sections: list[Section] = dataclasses.field(default_factory=list)
    trainings: list[TrainingRecord] = dataclasses.field(default_factory=list)
    stresses: list[tuple[str, Stress]] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.sections

    def attempt(self, path: Path, make: Callable[[], Made]) -> Made | None:
        """Return the result of `make`; on an error, add the path to `skipped` and return None."""
        try:
            return make()
        # A damaged file can raise nearly any error.
        except Exception as error:
            # Unpaired surrogates, in file names or contents, cannot be printed.
            texts = (
                text.encode(errors="replace").decode() for text in (str(path), _reason(path, error))
            )
            self.skipped.append(Skipped(*texts))
            return None

    def show(self, path: Path, make: Callable[[], Sequence[Section]]) -> bool:
        """Add the sections that `make` returns if the page can contain them, or skip the path."""
        made = self.attempt(path, lambda: _showable(make()))
        self.sections += made or []
        return made is not None


def collect(paths: Sequence[Path], kept: Kept | None = None) -> Collection:
    """Return every run in the folders and in their subfolders.

    Arguments:
        paths: folders of runs, or folders that contain such folders.
        kept: objects from an earlier call, which are not made again.

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
    found = Collection()
    kept = kept or Kept()
    for folder in _folders(paths):
        found.attempt(folder, partial(_collect_one, found, folder, kept))
    every = partial(training_sections, found.trainings)
    if found.trainings and not found.show(Path(os.path.commonpath(paths)), every):
        found.trainings.clear()
    found.sections += [stress_section(folder, stress) for folder, stress in found.stresses]
    return found


def _showable(sections: Sequence[Section]) -> Sequence[Section]:
    """Return the sections, if they can be written into the page.

    A record may pass all checks and still not be text or JSON, such as a name with an unpaired
    surrogate.
    """
    json_for_script(to_plain(sections)).encode()
    return sections


def _collect_one(found: Collection, folder: Path, kept: Kept) -> None:
    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    for name, read in ((EXPERIMENT, _experiment_sections), (SOLUTION_FILE, solution_sections)):
        if name in names:
            files = [path for path in folder.rglob("*") if path.is_file()]
            found.show(folder, partial(kept.get, f"{folder}/{name}", files, partial(read, folder)))
    if AUDIT in names:
        found.show(folder, partial(_audit_sections, folder, names))
    if EXPERIMENT in names:
        results = sorted(folder.glob("*/jobs/*.npz"))
        for path in kept.get(f"{folder}/unreadable", results, partial(_unreadable, results)):
            found.skipped.append(Skipped(str(path), "damaged, not the result of a job"))
    path = folder / STRESS
    stress = found.attempt(path, lambda: _stress(path)) if STRESS in names else None
    if runs.DESCRIPTION in names:
        training = found.attempt(folder, lambda: read_training(folder, stress))
        if training is not None:
            play = partial(_arena, training)
            keep = partial(kept.get, f"{folder}/episodes", training.agent_files(), play)
            arena = found.attempt(folder, keep)
            training = dataclasses.replace(training, arena=arena)
            # Runs of one simulator share a section. One damaged run must not remove the whole section.
            if found.attempt(folder, lambda: _showable(training_sections([training]))):
                found.trainings.append(training)
    elif stress is not None:
        found.stresses.append((str(folder), stress))
    for remains, missing in _REMAINS.items():
        if remains in names and missing not in names:
            found.skipped.append(Skipped(str(folder), f"holds {remains} but no {missing}"))
            break


def _audit_sections(folder: Path, names: set[str]) -> list[Section]:
    proofs = [SimulatorCertificate.load(folder / name) for name in PROOFS if name in names]
    return [audit_section(str(folder), read_json(folder / AUDIT, "an audit"), proofs)]


def _stress(path: Path) -> Stress:
    """Return a stress result that can be shown."""
    stress = Stress.load(path)
    _showable([stress_section(str(path.parent), stress)])
    return stress


def _arena(training: TrainingRecord) -> Arena | None:
    if not training.agent_files():
        return None
    from holdfast.report.page.arena import arena_block

    return arena_block(training.folder, training.description)


def _experiment_sections(folder: Path) -> list[Section]:
    """Return one section per model; the runs of an experiment in simulators are found in subfolders."""
    from holdfast.experiments.store import read_experiment

    version = str(read_json(folder / EXPERIMENT, "an experiment").get("version", ""))
    check_not_newer({"holdfast": version})
    return [comparison_section(str(folder), each, version) for each in read_experiment(folder)]


def _unreadable(results: Sequence[Path]) -> list[Path]:
    from holdfast.experiments.store import read

    return [path for path in results if read(path) is None]


def _folders(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the folders and their subfolders, each once, in a fixed order."""
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
    """Return the error in one sentence, without the path, which is shown beside it."""
    text = " ".join(str(error).split())
    if not isinstance(error, (ValueError, OSError)):
        return f"damaged ({type(error).__name__}: {text})"
    for prefix in (f"{path}: ", f"{path}{os.sep}"):
        text = text.removeprefix(prefix)
    return text
