"""SIGKILLs at random moments of every long command: nothing lost, nothing different, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from holdfast.experiments.store import read

BENCH = """
environments = ["gambler"]
algorithms = ["rcpo", "rvi"]
seeds = 2
[settings]
iterations = 3
[environment]
gambler = { goal = 6 }
"""
_ROOT = str(Path(__file__).parents[2])  # the audited policy is imported from here
_TRAIN = "train n-chain --batch-size 300 --iterations 4 --limit-on discounted --hidden 4"
_ALGORITHMS = ("rcpo", "pcpo", "cpo", "trpo", "ppo-lag", "trpo-lag")
_AUDIT = "audit tests.attack.kills:first_action --env n-chain --radius 0.02 --cost-limit 2"
COMMANDS = {
    **{f"train {a}": f"{_TRAIN} --algorithm {a} --out OUT" for a in _ALGORITHMS},
    "bench in processes": "bench mine.toml --engine processes --workers 2 --out OUT",
    "bench inline": "bench mine.toml --engine inline --out OUT",
    "solve": "solve gambler --iterations 5 --out OUT",
    "report": "report runs -o OUT/report.html",
    "fit": "fit log.csv --state s --action a --next t --signal r=r --out OUT/model.npz",
    "certify": "certify gambler runs/solved --no-bound --proof OUT/proof.json",
    "audit": f"{_AUDIT} --episodes 200 --updates 1 --most-cost 1 --out OUT",
}


def first_action(observation):
    """The policy that is audited."""
    return 0


def write_log(path: Path) -> None:
    """Write a log of a thousand random steps."""
    rng, state = random.Random(0), "new"
    lines = ["s,a,t,r"]
    for _ in range(1000):
        after = rng.choice(("new", "worn"))
        lines.append(f"{state},{rng.choice(('run', 'service'))},{after},{rng.random()}")
        state = after
    path.write_text("\n".join(lines) + "\n")


def command(text: str, out: Path) -> list[str]:
    words = text.replace("OUT", str(out)).split()
    radius = ["--radius", "0.1"] if "rcpo" in words and words[0] == "train" else []
    return [sys.executable, "-m", "holdfast", *words, *radius]


def start(text: str, out: Path, folder: Path) -> subprocess.Popen:
    return subprocess.Popen(
        command(text, out),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *sys.path])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(text: str, out: Path, folder: Path) -> str:
    """Run a command to its end; return what went wrong."""
    process = start(text, out, folder)
    _, errors = process.communicate(timeout=600)
    told = errors.decode()
    return "" if process.returncode in (0, 3) and "Traceback" not in told else told[-500:]


def content(out: Path) -> dict[str, object]:
    """Return everything that has to be equal after a kill: all but times."""
    found: dict[str, object] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        if path.name == "metrics.jsonl" or path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.name in ("policy.npz", "model.npz"):
            with np.load(path) as arrays:
                found[name] = {key: arrays[key].tobytes() for key in arrays.files}
        elif path.suffix == ".npz":
            mark, result = read(path) or ("damaged", None)
            same = {} if result is None else dict(result.history)
            same.pop("seconds", None)
            found[name] = mark, {key: value.tobytes() for key, value in same.items()}
        elif path.name in ("proof.json", "audit.json", "stress.json"):
            found[name] = without_times(json.loads(path.read_text()))
        elif path.suffix == ".html":
            found[name] = path.read_text().endswith("</html>\n")
    return found


def without_times(value: object) -> object:
    """Return JSON without the entries that measure time."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if "seconds" not in k}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def descendants(session: int) -> list[int]:
    """Return the processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            rest = stat.read_text().rpartition(")")[2].split()
            if int(rest[3]) == session and rest[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def kill(process: subprocess.Popen, whom: str, rng: random.Random) -> None:
    """Kill the parent, one of its workers, or the whole group."""
    others = [each for each in descendants(process.pid) if each != process.pid]
    with contextlib.suppress(ProcessLookupError):
        if whom == "group":
            os.killpg(process.pid, signal.SIGKILL)
        elif whom == "worker" and others:
            os.kill(rng.choice(others), signal.SIGKILL)
        else:
            process.kill()


def attack(folder: Path, count: int, seed: int = 0, names: tuple[str, ...] = ()) -> list[str]:
    """Kill commands at random moments and finish them; return the findings."""
    (folder / "mine.toml").write_text(BENCH)
    write_log(folder / "log.csv")
    chosen = names or tuple(COMMANDS)
    findings, expected, lasts = [], {}, {}
    if {"report", "certify"} & set(chosen):
        finish(COMMANDS["solve"], folder / "runs" / "solved", folder)
    for name in chosen:
        began = time.monotonic()
        out = folder / f"{name} undisturbed".replace(" ", "-")
        if wrong := finish(COMMANDS[name], out, folder):
            findings.append(f"{name}, undisturbed: {wrong}")
        expected[name], lasts[name] = content(out), time.monotonic() - began
    for i in range(count):
        rng = random.Random(f"{seed} {i}")
        name, whom = chosen[i % len(chosen)], rng.choice(("parent", "worker", "group"))
        out = folder / f"{name} {i}".replace(" ", "-")
        process = start(COMMANDS[name], out, folder)
        time.sleep(rng.random() * lasts[name])
        kill(process, whom, rng)
        process.communicate(timeout=600)
        end = time.monotonic() + 5
        while (left := descendants(process.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        if left:
            findings.append(f"{name}, {whom} killed, {seed} {i}: processes {left} are left")
        if wrong := finish(COMMANDS[name], out, folder):
            findings.append(f"{name}, {whom} killed, {seed} {i}: {wrong}")
        elif content(out) != expected[name]:
            findings.append(f"{name}, {whom} killed, {seed} {i}: the result differs")
        if remains := list(out.rglob("*.unfinished")):
            findings.append(f"{name}, {whom} killed, {seed} {i}: {remains} are left")
    return findings
