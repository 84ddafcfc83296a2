"""Many shapes in one process, memory against iterations, and equal results under other conditions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.stats
from tests.attack.kills import BENCH, COMMANDS, content, finish

import holdfast as hf
from holdfast._support.mappings import mappings


def resident() -> float:
    """Return the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def random_model(states: int, actions: int, kind: str, seed: int) -> hf.RobustCMDP:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(states, 0.3), (states, actions))
    line = np.abs(np.subtract.outer(np.arange(states), np.arange(states))).astype(float)
    sets = {
        "kl": lambda: hf.KL(0.1),
        "chi-square": lambda: hf.ChiSquare(0.1),
        "total-variation": lambda: hf.TotalVariation(0.1),
        "contamination": lambda: hf.Contamination(0.1),
        "wasserstein": lambda: hf.Wasserstein(0.3, metric=line),
        "interval": lambda: hf.Interval(np.maximum(p - 0.05, 0), np.minimum(p + 0.05, 1)),
    }
    return hf.RobustCMDP(
        transitions=p,
        reward=rng.normal(size=(states, actions)),
        constraints=[hf.at_least(rng.random((states, actions)), 0.5)],
        initial=np.full(states, 1 / states),
        discount=0.9,
        uncertainty=sets[kind](),
    )


SETS = ("kl", "chi-square", "total-variation", "contamination", "wasserstein", "interval")


class Growth(NamedTuple):
    """Mappings and MiB at the end, and the findings."""

    mappings: int
    memory: float
    findings: list[str]


def shapes(count: int, seed: int = 0, sets: tuple[str, ...] = SETS) -> Growth:
    """Solve models of different sizes and sets in this process."""
    rng, findings = np.random.default_rng(seed), []
    for i in range(count):
        states, actions = int(rng.integers(3, 150)), int(rng.integers(2, 7))
        model = random_model(states, actions, sets[i % len(sets)], i)
        found = hf.solve(model, iterations=1).evaluation
        if not found.reward.worst <= found.reward.nominal + found.error:
            findings.append(f"{model}: the worst case is above the nominal one")
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if mappings() > 0.6 * limit:
        findings.append(f"{mappings():,} of {limit:,} mappings are in use")
    return Growth(mappings(), resident(), findings)


class Leak(NamedTuple):
    """Growth of the memory, with a 95 % interval, in KiB an iteration, and extrapolated to a day."""

    slope: float
    low: float
    high: float
    day: float

    def __str__(self) -> str:
        return (
            f"{self.slope:+.2f} KiB an iteration [{self.low:+.2f}, {self.high:+.2f}], "
            f"{self.day:+.0f} MiB a day at this speed"
        )


def leak(iterations: int) -> Leak:
    """Measure the resident memory while a policy is trained; the first half warms up."""
    # Laid out before, since lists of numbers would grow with the iterations.
    memory, moments = np.zeros(iterations), np.zeros(iterations)
    done = iter(range(iterations))

    def note(_: object) -> None:
        i = next(done)
        memory[i], moments[i] = 1024 * resident(), time.monotonic()

    model = hf.environments.n_chain(nodes=5)
    settings = {"limit_on": "discounted", "batch_size": 300, "hidden": (4,)}
    hf.train(model, "pcpo", iterations=iterations, callback=note, **settings)
    half = len(memory) // 2
    late = memory[half:]
    fit = scipy.stats.linregress(np.arange(len(late)), late)
    # A constant has no standard error.
    spread = np.nan_to_num(scipy.stats.t.ppf(0.975, len(late) - 2) * fit.stderr)
    speed = (len(late) - 1) / (moments[-1] - moments[half])
    return Leak(fit.slope, fit.slope - spread, fit.slope + spread, fit.slope * speed * 86400 / 1024)


def determinism(folder: Path) -> list[str]:
    """Run the same training with other threads, under load, elsewhere; compare two engines."""
    findings, text = [], COMMANDS["train pcpo"]
    finish(text, folder / "one", folder)
    expected = content(folder / "one")
    (folder / "elsewhere" / "deep").mkdir(parents=True)
    cases = {
        "in another folder": ({}, folder / "elsewhere" / "deep"),
        "with one thread": ({"NPROC": "1", "OMP_NUM_THREADS": "1"}, folder),
        "with two threads": ({"NPROC": "2", "OMP_NUM_THREADS": "2"}, folder),
        "under load": ({}, folder),
    }
    for name, (variables, where) in cases.items():
        out = where / name.replace(" ", "-")
        busy = [sys.executable, "-c", "while True: pass"]
        load = [subprocess.Popen(busy) for _ in range(2 * (name == "under load"))]
        before = {key: os.environ.get(key) for key in variables}
        os.environ.update(variables)
        try:
            wrong = finish(text, out, where)
        finally:
            for each in load:
                each.kill()
                each.wait()
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        if wrong or content(out) != expected:
            findings.append(f"train {name}: {wrong or 'the result differs'}")
    (folder / "mine.toml").write_text(BENCH)
    found = []
    for name in ("bench in processes", "bench inline"):
        out = folder / name.replace(" ", "-")
        if wrong := finish(COMMANDS[name], out, folder):
            findings.append(f"{name}: {wrong}")
        found.append(content(out))
    if found[0] != found[1]:
        findings.append("bench: the engines give different results")
    return findings
