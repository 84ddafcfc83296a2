"""The folder of a training run: what it is, what it measured, and where it can go on.

Every file but the two that grow by lines appears whole or not at all, and they are written in an order
in which a kill at any moment loses nothing: the description, the checkpoint of the start, then for every
few iterations their lines and after them the checkpoint, and at the end the agents. Whatever the lines
have more than the checkpoint is forgotten when the run goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast._support.files import write_text

Row = Mapping[str, Any]

DESCRIPTION, METRICS, TIMINGS = "run.json", "metrics.jsonl", "timings.jsonl"
CHECKPOINT = "checkpoint.safetensors"
TENSORBOARD = "tensorboard"
FORMAT = "holdfast-run-1"

# What may differ between two calls that are the same run: more iterations only carry it further.
_FREE = ("settings.iterations", "made_with")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from training into the folder, until the end or the death of this one.

    Raises:
        ValueError: another one is at it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{folder}: another process is training there") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def read_description(folder: Path) -> dict[str, Any] | None:
    """What the run is; None where the folder holds none.

    Raises:
        ValueError: the file is damaged or describes something else; the message has its path.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged, not the description of a run ({error})") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path}: not the description of a training run")
    return found


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Writes what the run is."""
    write_text(folder / DESCRIPTION, json.dumps(description, indent=2, sort_keys=True) + "\n")


def carried_on(
    found: Mapping[str, Any] | None, asked: Mapping[str, Any], iteration: int
) -> dict[str, Any]:
    """The description of a run that goes on at an iteration, maybe with something else than it began.

    What made the iterations before is kept in `made_with.before`, a record for each stretch: only
    within one are they bit for bit what the same call gives again.
    """
    was = dict((found or asked)["made_with"])
    before = was.pop("before", [])
    if was != asked["made_with"]:
        before = [*before, {"until_iteration": iteration, **was}]
    made_with = {**asked["made_with"], **({"before": before} if before else {})}
    return {**asked, "made_with": made_with}


def check_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """Refuses a folder that holds another run, or the remains of one; changes nothing.

    Raises:
        ValueError: the first difference, by name.
    """
    found = read_description(folder)
    if found is None:
        for name in (METRICS, TIMINGS, CHECKPOINT):
            if (folder / name).exists():
                raise ValueError(
                    f"{folder}: holds {name} but no {DESCRIPTION}; choose another folder"
                )
        return
    mine, theirs = dict(_flat(asked)), dict(_flat(found))
    for name in sorted(mine.keys() | theirs.keys()):
        if not name.startswith(_FREE) and mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{folder}: holds a run with {name} {_shown(theirs.get(name))}, "
                f"not {_shown(mine.get(name))}; choose another folder"
            )


def fingerprint(description: Mapping[str, Any]) -> str:
    """What two calls have in common that are the same run."""
    same = {k: v for k, v in sorted(_flat(description)) if not k.startswith(_FREE)}
    return hashlib.sha256(json.dumps(same).encode()).hexdigest()


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def forget_temporaries(folder: Path) -> None:
    """Removes the half-written files that a kill left."""
    for name in (DESCRIPTION, METRICS, TIMINGS, CHECKPOINT, "agent-*.safetensors"):
        for path in folder.glob(f".{name}.*"):
            path.unlink(missing_ok=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a last line that a kill cut short is left out.

    Raises:
        ValueError: a line cannot be read; the message has the path.
    """
    return [row for _, row in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            row = dict(json.loads(line))
            row["iteration"] = int(row["iteration"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}: damaged in line {number} ({error})") from error
        yield line.decode(), row


def keep_lines(path: Path, iterations: int, rows: int) -> None:
    """Forgets what was written after the checkpoint that the run goes on from.

    Arguments:
        path: of the file.
        iterations: of the checkpoint.
        rows: of each iteration.

    Raises:
        ValueError: what came before the checkpoint is not all there.
    """
    kept = [line for line, row in _lines(path) if row["iteration"] < iterations]
    if len(kept) != iterations * rows:
        raise ValueError(
            f"{path}: has {len(kept)} of the {iterations * rows} rows that belong to the checkpoint"
        )
    text = "".join(kept)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows and waits until they are on disk."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())


def agent_file(folder: Path, seed: int) -> Path:
    """Where the agent of a seed lies."""
    return folder / f"agent-{seed}.safetensors"


def agent_files(folder: Path) -> list[Path]:
    """The agents of a finished run, by seed.

    Raises:
        ValueError: the folder holds no run, or one that is not finished.
    """
    from holdfast.simulators.training import checkpoint

    description = read_description(folder)
    if description is None:
        raise ValueError(f"{folder}: holds no training run")
    asked = description["settings"]["iterations"]
    files = [agent_file(folder, seed) for seed in description["seeds"]]
    for file in files:
        # Agents of a shorter run lie there until the longer one is done.
        trained = file.is_file() and checkpoint.read_header(file, "agent")["settings"]["iterations"]
        if trained != asked:
            done = len({row["iteration"] for row in read_lines(folder / METRICS)})
            raise ValueError(
                f"{folder}: not finished, {done} of {asked} iterations; the same `train` goes on"
            )
    return files


def limits_of(description: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the cost names of a run with their limits."""
    return list(zip(description["costs"], description["limits"], strict=True))
