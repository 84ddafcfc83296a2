"""The folder of a training run: description, metrics, timings, checkpoint and agents.

Files appear complete or not at all, except for the two that grow by lines. They are written in an order
in which a kill at any moment loses nothing: the description, the initial checkpoint, then for every few
iterations their lines and after them the checkpoint, and at the end the agents. A run that resumes drops
the lines that are newer than its checkpoint. This module does not import JAX.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast._support.files import read_json, sync_folder, write_bytes, write_text, writing

if TYPE_CHECKING:
    from holdfast.simulators.policy.agent import Agent

Row = Mapping[str, Any]

DESCRIPTION, METRICS, TIMINGS = "run.json", "metrics.jsonl", "timings.jsonl"
CHECKPOINT = "checkpoint.safetensors"
TENSORBOARD = "tensorboard"
FORMAT = "holdfast-run-1"

# Entries that may differ between two calls for the same run: more iterations continue it.
_FREE = ("settings.iterations", "made_with")
# Values of entries that runs of version 0.1.0 do not have.
_OLDER = {"settings.weighting": "discounted", "settings.initial_std": 1.0}


def read_description(folder: Path) -> dict[str, Any] | None:
    """Return the description of the run in a folder, or None if there is none.

    Raises:
        ValueError: the file is damaged or describes something else; the message names it.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    found = read_json(path, "the description of a run")
    if found.get("format") != FORMAT:
        raise ValueError(f"{path}: not the description of a training run")
    for name, kind in (("settings", dict), ("seeds", list), ("made_with", dict)):
        if not isinstance(found.get(name), kind):
            raise ValueError(f"{path}: damaged, {name} is {_shown(found.get(name))}")
    # Seeds are part of file names, and a text could lead out of the folder.
    if not found["seeds"] or not all(type(seed) is int for seed in found["seeds"]):
        raise ValueError(f"{path}: damaged, seeds is {_shown(found['seeds'])}")
    return found


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write the description of a run."""
    write_text(folder / DESCRIPTION, json.dumps(description, indent=2, sort_keys=True) + "\n")


def _continued(
    found: Mapping[str, Any], asked: Mapping[str, Any], iteration: int
) -> dict[str, Any]:
    """Return the description of a run that continues at an iteration.

    `made_with.before` lists the versions and devices of earlier iterations, if they differ: results
    are bit for bit reproducible only within one entry.
    """
    was = dict(found["made_with"])
    before = was.pop("before", [])
    if was != asked["made_with"]:
        before = [*before, {"until_iteration": iteration, **was}]
    made_with = {**asked["made_with"], **({"before": before} if before else {})}
    return {**asked, "made_with": made_with}


def check_same(folder: Path, asked: Mapping[str, Any]) -> None:
    """Raise a ValueError if the folder contains another run, or parts of one; change nothing.

    The message names the first difference.
    """
    found = read_description(folder)
    if found is None:
        for name in (METRICS, TIMINGS, CHECKPOINT):
            if (folder / name).exists():
                raise ValueError(
                    f"{folder}: contains {name} but no {DESCRIPTION}; choose another folder"
                )
        return
    mine, theirs = dict(_flat(asked)), {**_OLDER, **dict(_flat(found))}
    for name in sorted(mine.keys() | theirs.keys()):
        if not name.startswith(_FREE) and mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{folder}: contains a run with {name} {_shown(theirs.get(name))}, "
                f"not {_shown(mine.get(name))}; choose another folder"
            )


def fingerprint(description: Mapping[str, Any]) -> str:
    """Return a digest that is equal for all calls of the same run."""
    flat = sorted(_flat(description))
    same = {k: v for k, v in flat if not k.startswith(_FREE) and (k, v) not in _OLDER.items()}
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file, without an incomplete last line.

    Raises:
        ValueError: a line cannot be read; the message names file and line.
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
            if type(row["iteration"]) is not int:
                raise ValueError(f"iteration {row['iteration']!r}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{path}: damaged in line {number} ({error})") from error
        yield line.decode(), row


def truncate(folder: Path, iterations: int, description: Mapping[str, Any]) -> None:
    """Drop all rows after a checkpoint and update the description.

    Arguments:
        folder: folder of the run.
        iterations: iterations of the checkpoint.
        description: description of the run that continues.

    Raises:
        ValueError: rows before the checkpoint are missing.
    """
    for name, each in ((METRICS, len(description["seeds"])), (TIMINGS, 1)):
        path, rows = folder / name, iterations * each
        kept = [line for line, row in _lines(path) if row["iteration"] < iterations]
        if len(kept) != rows:
            raise ValueError(f"{path}: has {len(kept)} of the {rows} rows before the checkpoint")
        text = "".join(kept)
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text(path, text)
    found = read_description(folder) or description
    continued = _continued(found, description, iterations)
    if found != continued:
        write_description(folder, continued)


def append_rows(folder: Path, rows: Sequence[Row], seconds: float) -> None:
    """Add the rows of some iterations, and the seconds that each iteration took."""
    done = sorted({row["iteration"] for row in rows})
    append_lines(folder / TIMINGS, [{"iteration": i, "seconds": seconds} for i in done])
    append_lines(folder / METRICS, rows)


def append_lines(path: Path, rows: Iterable[Row]) -> None:
    """Append rows to a JSONL file and wait until they are on disk."""
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    with writing(path):
        is_new = not path.exists()
        with path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)


def agent_file(folder: Path, seed: int) -> Path:
    """Return the file of a seed's agent."""
    return folder / f"agent-{seed}.safetensors"


def write_agents(folder: Path, agents: Iterable[Agent]) -> None:
    """Write the agents whose files are missing or differ."""
    for agent in agents:
        path, data = agent_file(folder, agent.seed), agent.to_bytes()
        if not path.is_file() or path.read_bytes() != data:
            write_bytes(path, data)


def agent_files(folder: Path) -> list[Path]:
    """Return the files of a finished run's agents, in the order of the seeds.

    Raises:
        ValueError: the folder contains no run, or one that is not finished.
    """
    from holdfast.simulators.training import checkpoint

    description = read_description(folder)
    if description is None:
        raise ValueError(f"{folder}: contains no training run")
    asked = description["settings"].get("iterations")
    files = [agent_file(folder, seed) for seed in description["seeds"]]
    for file in files:
        # Agents of a shorter run stay until the longer one is finished.
        header = checkpoint.read_header(file, "agent") if file.is_file() else {}
        trained = header.get("settings", {}).get("iterations")
        if trained != asked:
            done = len({row["iteration"] for row in read_lines(folder / METRICS)})
            raise ValueError(
                f"{folder}: not finished, {done} of {asked} iterations; repeat `train` to continue"
            )
    return files


def limits_of(description: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the cost names of a run with their limits."""
    return list(zip(description["costs"], description["limits"], strict=True))
