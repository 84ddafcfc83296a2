"""A seeded fuzzer for every file that the library reads.

A damaged file is either read or refused with a `ValueError` that names the file or the entry. Anything
else is a finding: another exception, more than five seconds, a file outside the folder, a module that a
file chose.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import shutil
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.report.page.conftest import (
    compared,
    experiment_folder,
    prepared,
    solve_folder,
    stressed,
    train_folder,
)

import holdfast as hf
from holdfast.cli._shared import SetOptions
from holdfast.experiments import read_description
from holdfast.experiments.store import read_experiment
from holdfast.report.page import write_page
from holdfast.report.records import read_training
from holdfast.report.solution import read_policy
from holdfast.simulators.training import checkpoint, runs

# Values that have broken readers: other types, extremes, names that lead elsewhere, code.
NASTY = [
    *(None, True, -1, 0, 2**63, 10**400, -0.0, 1e308, 1e-320, "", "x", "nan", "12", [], {}, [[]]),
    *("../../x", "/tmp/x", "a\0b", "\ud800", "x" * 10_000, "sprung:Set", "os.path:join"),
    *([1, [2, [3]]], {"a": {"b": None}}, ["0.1"], [10**400], [None] * 3),
]
MOST_SECONDS = 5.0


@dataclasses.dataclass
class Target:
    """A kind of file: an undamaged one, and the function that reads it."""

    name: str
    file: Path
    read: Callable[[Path], object]


def targets(folder: Path) -> list[Target]:
    """Make an undamaged file of every kind. Nothing is trained."""
    model = hf.environments.frozen_lake()
    solved = solve_folder(folder / "solved", model, "frozen-lake")
    hf.certify(model, [0] * model.states, bound=False).save(solved / "proof.json")
    run = train_folder(folder / "run", prepared(seeds=1), 6, with_agents=True)
    # Without agents the page plays no episodes.
    shown = train_folder(folder / "shown", prepared(seeds=1), 6)
    stressed().save(shown / "stress.json")
    trial = experiment_folder(folder / "trial", compared(seeds=1))
    job = next(trial.glob("*/jobs/*.npz"))
    described = folder / "described.toml"
    described.write_text(
        'environments = ["gambler"]\nseeds = 2\nname = "mine"\nradii = [0.1]\n'
        "[settings]\niterations = 5\n[variants.slow]\ntrust_region = 0.001\n"
    )
    metric = folder / "metric.npy"
    np.save(metric, np.abs(np.subtract.outer(np.arange(16), np.arange(16))).astype(float))

    def page(path: Path) -> None:
        try:
            write_page([path.parent], path.parent / "report.html")
        finally:
            (path.parent / "report.html").unlink(missing_ok=True)

    def of_set(path: Path) -> None:
        SetOptions("wasserstein", 0.1, False, str(path)).apply(model)

    return [
        Target("model", solved / "model.npz", hf.RobustCMDP.load),
        Target("policy", solved / "policy.npz", read_policy),
        Target("proof", solved / "proof.json", lambda path: hf.check_proof(path, model)),
        Target("metric", metric, of_set),
        Target("experiment", described, read_description),
        Target("agent", run / "agent-0.safetensors", hf.load),
        Target("checkpoint", run / runs.CHECKPOINT, _checkpoint),
        Target("description", run / runs.DESCRIPTION, lambda path: read_training(path.parent)),
        Target("log", run / runs.METRICS, lambda path: read_training(path.parent)),
        Target("stress", shown / "stress.json", hf.Stress.load),
        Target("record", trial / "experiment.json", lambda path: read_experiment(path.parent)),
        Target("result", job, lambda path: read_experiment(path.parents[2])),
        Target("run on the page", shown / runs.DESCRIPTION, page),
        Target("log on the page", shown / runs.METRICS, page),
        Target("stress on the page", shown / "stress.json", page),
    ]


def _checkpoint(path: Path) -> None:
    checkpoint.read_header(path, "checkpoint")


def damaged(content: bytes, suffix: str, rng: random.Random) -> bytes:
    """Return a damaged copy: bytes changed, or values replaced where the format allows it."""
    if rng.random() < 0.6:
        with contextlib.suppress(ValueError, KeyError, zipfile.BadZipFile):
            if suffix == ".json":
                return _encode(_mutated(json.loads(content), rng))
            if suffix == ".jsonl":
                lines = content.splitlines()
                place = rng.randrange(len(lines))
                lines[place] = _encode(_mutated(json.loads(lines[place]), rng))
                return b"\n".join(lines) + b"\n"
            if suffix == ".npz":
                return _repacked(content, rng)
            if suffix == ".safetensors":
                return _resigned(content, rng)
    data = bytearray(content)
    kind = rng.choice(("flip", "flip", "cut", "insert", "repeat", "zero", "replace"))
    at = rng.randrange(max(1, len(data)))
    if kind == "flip":
        for _ in range(rng.choice((1, 1, 4, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "insert":
        data[at:at] = rng.randbytes(rng.choice((1, 16, 4096)))
    elif kind == "repeat":
        data[at:at] = data[: rng.randrange(len(data))]
    elif kind == "zero":
        data[at : at + 64] = bytes(64)
    else:
        data = bytearray(rng.choice((b"", b"[" * 100_000, b"\x80\x04.", rng.randbytes(999))))
    return bytes(data)


def _mutated(value: object, rng: random.Random) -> object:
    """Return JSON with one entry removed or replaced."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], _mutated(value[at], rng), *value[at + 1 :]]
    return rng.choice(NASTY)


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def _repacked(content: bytes, rng: random.Random) -> bytes:
    """Return an archive with one array or the header changed, sometimes packed in another way."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    name = rng.choice(sorted(arrays))
    if name == "header":
        arrays[name] = np.array(json.dumps(_mutated(json.loads(str(arrays[name])), rng)))
    else:
        array = arrays[name]
        arrays[name] = rng.choice(
            [
                *(array.ravel()[:0], array.ravel(), array * np.nan, array * -1.0),
                array.astype("<U9"),
                *(np.zeros(()), array.astype(complex), np.broadcast_to(array, (2, *array.shape))),
            ]
        )
    file = io.BytesIO()
    packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(file, "w", packing) as archive:
        for key, array in arrays.items():
            part = io.BytesIO()
            np.save(part, array)
            archive.writestr(f"{key}.npy", part.getvalue())
    return file.getvalue()


def _resigned(content: bytes, rng: random.Random) -> bytes:
    """Return a file with another header and a digest that fits it, as an attacker would write."""
    from safetensors.numpy import load, save

    size = int.from_bytes(content[:8], "little")
    stored = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["holdfast"])
    header, arrays = _mutated(stored["header"], rng), load(content)
    if not isinstance(header, dict):
        raise ValueError("no header")
    digest = checkpoint._digest(header, arrays)
    text = json.dumps({"header": header, "digest": digest}, sort_keys=True)
    return save(arrays, metadata={"holdfast": text})


def attack(folder: Path, count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """Damage files and read them; return the outcomes by target, and the findings."""
    inside = folder / "inside"
    (folder / "sprung.py").write_text("raise SystemExit('a module of the file was imported')")
    sys.path.insert(0, str(folder))
    every = targets(inside)
    before = sorted(folder.iterdir())
    outcomes: Counter[str] = Counter()
    findings = []
    try:
        for i in range(count):
            rng = random.Random(f"{seed} {i}")
            target = every[i % len(every)]
            whole = target.file.read_bytes()
            target.file.write_bytes(damaged(whole, target.file.suffix, rng))
            began = time.monotonic()
            try:
                target.read(target.file)
                outcomes[f"{target.name}: read"] += 1
            except (ValueError, FileNotFoundError):
                outcomes[f"{target.name}: refused"] += 1
            except (Exception, SystemExit) as error:
                outcomes[f"{target.name}: FOUND"] += 1
                findings.append(f"{target.name} {seed} {i}: {type(error).__name__}: {error}"[:300])
            finally:
                target.file.write_bytes(whole)
            outcomes[f"{target.name}: milliseconds"] += round(1000 * (time.monotonic() - began))
            if (seconds := time.monotonic() - began) > MOST_SECONDS:
                findings.append(f"{target.name} {seed} {i}: took {seconds:.1f} s")
    finally:
        sys.path.remove(str(folder))
    if sorted(folder.iterdir()) != before:
        findings.append(f"files outside the folder: {sorted(folder.iterdir())}")
    shutil.rmtree(inside)
    return outcomes, findings
