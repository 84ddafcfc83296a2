"""Bounded reachability on interval MDPs: Holdfast beside Storm, on the same models in the same run.

    python benchmarks/bounded_reachability.py [--states 1000 10000 100000] [--steps 50]

Both find Pmax and Pmin of reaching ten states within some steps, the best policy against the worst
kernel. Prints both answers, their CPU-seconds on one core without building the model and without
compilation, and Storm's time over Holdfast's. Exits with 1 if two answers differ by more than 1e-6.
Storm is `stormpy`, from the test group. Holdfast also evaluates the policy that it found, which
certifies its answer from below; `bound s` is its time without that.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from pathlib import Path

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for both

import jax
import jax.numpy as jnp

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation.backward import backward_induction, signal_task
from holdfast.tabular.evaluation.optimum import best_of
from storm_models import interval_model, storm_model, storm_value

GOAL = range(10, 20)


def seconds(function, repeat: int = 1):  # type: ignore[no-untyped-def]
    started = time.process_time()
    for _ in range(repeat):
        found = function()
    return found, (time.process_time() - started) / repeat


@float64
def ours(model: hf.RobustCMDP) -> tuple[float, float, float]:
    table = layout_of(model).table
    task = signal_task(table.only(1))
    guess = jnp.zeros((table.rows, model.actions))

    def bound() -> object:
        return jax.block_until_ready(backward_induction(table, task, guess))

    bound()
    best_of(table, 1)
    _, alone = seconds(bound)
    found, whole = seconds(lambda: best_of(table, 1))
    return abs(found.upper), whole, alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    wrong = 0
    print(f"{'states':>8} {'':5} {'Holdfast':>10} {'Storm':>10} {'s':>8} {'bound s':>8} "
          f"{'Storm s':>8} {'ratio':>6}")  # fmt: skip
    for states in options.states:
        model = interval_model(0, states, actions=2, width=4, horizon=options.steps)
        built = storm_model(model, GOAL)
        for name, sense in (("Pmax", "at_least"), ("Pmin", "at_most")):
            rule = hf.reach(GOAL, **{sense: 0.5})
            found, whole, alone = ours(model.replace(constraints=[rule]))
            question = f'{name}=? [F<={options.steps} "goal"]'
            peer, time_of_peer = seconds(functools.partial(storm_value, built, question))
            wrong += abs(found - peer) > 1e-6
            print(f"{states:8} {name:5} {found:10.6f} {peer:10.6f} {whole:8.3f} {alone:8.3f} "
                  f"{time_of_peer:8.3f} {time_of_peer / whole:6.2f}")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
