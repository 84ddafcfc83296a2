"""Misbehaving environments in every host: each is refused in a sentence, or trained correctly."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import holdfast as hf

QUICK: dict[str, Any] = {"iterations": 1, "batch_size": 40, "hidden": (4,)}
TIMEOUT = 3.0


class Animal(gymnasium.Env):
    """A counter with one kind of misbehaviour, which begins at its third step."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, kind: str) -> None:
        self.kind, self.steps, self.same = kind, 0, np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.kind == "raises in reset" and self.steps > 5:
            raise OSError("no reset")
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.time += 1
        found = [np.full(3, self.time, np.float32), float(action), False, False, {}]
        if self.steps >= 3:
            self.misbehave(found)
        return tuple(found) if self.kind != "four values" or self.steps < 3 else tuple(found[:4])

    def misbehave(self, found):
        """Change what a step returns, or do something else."""
        kind = self.kind
        if kind == "writes into its last observation":
            self.same[:] = self.time
            found[0] = self.same
        elif kind in CHANGES:
            place, value = CHANGES[kind]
            found[place] = value
        elif kind == "raises":
            raise OSError("the motor is on fire")
        elif kind == "hangs":
            time.sleep(1000)
        elif kind == "exits":
            os._exit(3)
        elif kind == "asks to exit":
            sys.exit("enough")
        elif kind == "prints":
            print("an environment may print")
        elif kind == "starts threads":
            threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()
        elif kind == "closes standard input":
            sys.stdin.close()


CHANGES = {
    "short observation": (0, np.zeros(1, np.float32)),
    "scalar observation": (0, 0.5),
    "long observation": (0, np.zeros(4, np.float32)),
    "text observation": (0, np.array(["1", "2", "3"])),
    "no observation": (0, None),
    "NaN observation": (0, np.full(3, np.nan, np.float32)),
    "text reward": (1, "12"),
    "no reward": (1, None),
    "infinite reward": (1, np.inf),
    "two rewards": (1, np.ones(2)),
    "text terminated": (2, "False"),
    "no info": (4, None),
    "list observation": (0, [0.0, 0.0, 0.0]),
    "double observation": (0, np.zeros(3)),
    "array reward": (1, np.array([1.0])),
}
# Whatever is not listed here has to be refused.
HARMLESS = {
    *("none", "writes into its last observation", "prints", "starts threads", "list observation"),
    *("double observation", "array reward", "closes standard input"),
}
OTHERS = {"raises", "raises in reset", "hangs", "exits", "asks to exit", "four values"}
KINDS = sorted({*CHANGES, *HARMLESS, *OTHERS})
COSTS = {
    "none": lambda step: 0.0,
    "text cost": lambda step: "12",
    "no cost": lambda step: None,
    "two costs": lambda step: np.ones(2),
    "NaN cost": lambda step: np.nan,
    "cost raises": lambda step: 1 / 0,
    "cost hangs": lambda step: time.sleep(1000),
}


def outcome(kind: str, backend: str) -> str:
    """Train in one host; return "trained" or the first line of the refusal."""
    try:
        if backend == "threads":
            env = hf.disturb(
                "Swimmer-v5", cost=COSTS[kind], horizon=10, backend=backend, step_timeout=TIMEOUT
            )
        else:
            env = hf.disturb(
                lambda: Animal(kind),
                cost={},
                horizon=10,
                copies=2,
                backend=backend,
                workers=1,
                step_timeout=TIMEOUT,
            )
        limits = [1.0] * len(env.cost_names)
        hf.train(env, "trpo", cost_limit=limits, **QUICK)
    except (ValueError, hf.TrainingError) as error:
        return f"refused: {str(error).splitlines()[-1]}"
    return "trained"


def attack(backends: tuple[str, ...], kinds: list[str] | None = None) -> list[tuple[str, str, str]]:
    """Return (host, kind, finding) of every member of the zoo that is neither refused nor harmless."""
    findings = []
    for backend in backends:
        for kind in kinds or (list(COSTS) if backend == "threads" else KINDS):
            # In this process an environment that exits takes the process with it, as any code would.
            if backend == "sync" and kind == "exits":
                continue
            found = outcome(kind, backend)
            if (found == "trained") != (kind in HARMLESS):
                findings.append((backend, kind, found))
    return findings
