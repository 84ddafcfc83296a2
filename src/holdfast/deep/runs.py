"""The folder of a training run: what it is, what it measured, and where it can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast._files import write_text

DESCRIPTION, METRICS, TIMINGS = "run.json", "metrics.jsonl", "timings.jsonl"
CHECKPOINT = "checkpoint.safetensors"


def read_description(folder: Path) -> dict[str, Any] | None:
    """What the run is; None where the folder holds none.

    Raises:
        ValueError: the file cannot be read as JSON; the message has its path.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: damaged, not the description of a run ({error})") from error


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Writes what the run is."""
    write_text(folder / DESCRIPTION, json.dumps(description, indent=2, sort_keys=True) + "\n")


def check_same(folder: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuses to go on with a run that was begun with other settings.

    Raises:
        ValueError: the first difference, by name.
    """
    mine, theirs = dict(_flat(asked)), dict(_flat(found))
    for name in sorted(mine.keys() | theirs.keys()):
        # More iterations only carry the run further.
        if name in ("settings.iterations", "version"):
            continue
        if mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{folder}: holds a run with {name} {theirs.get(name)!r}, not {mine.get(name)!r}; "
                "choose another folder"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, list(value) if isinstance(value, tuple) else value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file; one that a kill cut short at the end is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        rows.append(dict(json.loads(line)))
    return rows


def keep_lines(path: Path, iterations: int) -> None:
    """Forgets what was written after the checkpoint that the run goes on from."""
    if path.is_file():
        rows = [row for row in read_lines(path) if row["iteration"] < iterations]
        write_text(path, "".join(_line(row) for row in rows))


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows and waits until they are on disk."""
    with path.open("a") as file:
        file.write("".join(_line(row) for row in rows))
        file.flush()
        os.fsync(file.fileno())


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def agent_file(folder: Path, seed: int) -> Path:
    """Where the agent of a seed lies."""
    return folder / f"agent-{seed}.safetensors"


def agent_files(folder: Path) -> list[Path]:
    """The agents of a finished run, by seed.

    Raises:
        ValueError: the folder holds no run, or one that is not finished.
    """
    description = read_description(folder)
    if description is None:
        raise ValueError(f"{folder}: holds no training run")
    files = [agent_file(folder, seed) for seed in description["seeds"]]
    if not all(file.is_file() for file in files):
        done = len({row["iteration"] for row in read_lines(folder / METRICS)})
        asked = description["settings"]["iterations"]
        raise ValueError(
            f"{folder}: not finished, {done} of {asked} iterations; the same `train` goes on"
        )
    return files
