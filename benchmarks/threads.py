"""Evaluation and one RCPO iteration of a 521-state model, with one thread and with the default number.

    python benchmarks/threads.py

Each runs in its own process, once with OPENBLAS_NUM_THREADS=1 and once without. Prints CPU-seconds after
compilation and their ratio, beside the limit of 1.5. Run it on a busy machine: idle cores hide threads
that wait.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

_LIMIT = 1.5


def measured(states: int, actions: int) -> dict[str, float]:
    """Return the CPU-seconds of an evaluation, and of an iteration of RCPO."""
    import holdfast as hf

    rng = np.random.default_rng(0)
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(states), (states, actions)),
        reward=rng.random((states, actions)),
        constraints=[hf.at_most(rng.random((states, actions)), 60.0)],
        discount=0.99,
        uncertainty=hf.KL(0.05),
    )
    policy = np.full((states, actions), 1 / actions)
    seconds = {}
    for name, work in (
        ("evaluate", lambda: hf.evaluate(model, policy)),
        ("iteration", lambda: hf.solve(model, "rcpo", iterations=1, initial_policy=policy)),
    ):
        work()
        start = time.process_time()
        work()
        seconds[name] = time.process_time() - start
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=521)
    parser.add_argument("--actions", type=int, default=4)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.states, given.actions)))
        return
    rows = {}
    for title, threads in (("one thread", {"OPENBLAS_NUM_THREADS": "1"}), ("default", {})):
        free = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
        command = [sys.executable, __file__, *sys.argv[1:], "--one"]
        done = subprocess.run(
            command, env=free | threads, stdout=subprocess.PIPE, text=True, check=True
        )
        rows[title] = json.loads(done.stdout.splitlines()[-1])
    for name in rows["default"]:
        one, default = rows["one thread"][name], rows["default"][name]
        print(
            f"{name}: {one:.2f} CPU-s with one thread, {default:.2f} with the default; "
            f"ratio {default / one:.2f} (limit {_LIMIT})"
        )


if __name__ == "__main__":
    main()
