"""Bounded reachability on interval MDPs: Holdfast beside Storm, on the same models in the same run.

    python benchmarks/bounded_reachability.py [--states 1000 10000 100000] [--steps 50]

Both find Pmax and Pmin of reaching some states within some steps, the best policy against the worst
kernel: ten states, whose Pmin is zero, and a tenth of all. Prints both answers, their CPU-seconds on one
core without building the model and without compilation, and Storm's time over Holdfast's. Exits with 1
if two answers differ by more than 1e-6. Storm is `stormpy`, from the test group. Holdfast's answer is
certified from both sides, with all rounding errors. Where the answer is zero in most states, Storm finds
these on the graph and Holdfast does not.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import sys
import time
from pathlib import Path

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for both

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import holdfast as hf
from holdfast._support.precision import float64
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation.optimum import best_of
from storm_models import interval_model, storm_model, storm_value

# Every which state is to be reached, or None for ten states, and the question.
QUESTIONS = ((None, "Pmax"), (None, "Pmin"), (10, "Pmax"), (10, "Pmin"))


def seconds(function, repeat: int = 1):  # type: ignore[no-untyped-def]
    started = time.process_time()
    for _ in range(repeat):
        found = function()
    return found, (time.process_time() - started) / repeat


@float64
def ours(model: hf.RobustCMDP) -> tuple[float, float]:
    table = layout_of(model).table
    best_of(table, 1)
    found, took = seconds(lambda: best_of(table, 1), repeat=3)
    return abs(found.upper), took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    wrong = 0
    print(f"{'states':>8} {'goals':>6} {'':5} {'Holdfast':>10} {'Storm':>10} {'s':>8} {'Storm s':>8} "
          f"{'ratio':>6}")  # fmt: skip
    for states, (share, name) in itertools.product(options.states, QUESTIONS):
        goal = range(10, 20) if share is None else range(0, states, share)[1:]
        model = interval_model(0, states, actions=2, width=4, horizon=options.steps)
        built = storm_model(model, goal)
        sense = "at_least" if name == "Pmax" else "at_most"
        found, took = ours(model.replace(constraints=[hf.reach(goal, **{sense: 0.5})]))
        question = f'{name}=? [F<={options.steps} "goal"]'
        peer, time_of_peer = seconds(functools.partial(storm_value, built, question))
        wrong += abs(found - peer) > 1e-6
        print(f"{states:8} {len(goal):6} {name:5} {found:10.6f} {peer:10.6f} {took:8.3f} "
              f"{time_of_peer:8.3f} {time_of_peer / took:6.2f}")  # fmt: skip
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
