"""Certified optimality gaps of RCPO's policies on the built-in models, by two bounds beside each other.

    python benchmarks/certified_gap.py [NAMES…] [--target 0.01] [--seconds 60] [--iterations 200]

Each line is one model: the worst-case reward of the policy that `solve(certify=True)` finds, the gap of
the Lagrangian bound, the gap of the tree of occupancies, its kernels, boxes and processor seconds.
Seconds are those of one process's processor time, so that a busy machine does not change them.
"""

from __future__ import annotations

import argparse
import time

import jax

import holdfast as hf
from _campaign import ProcessorClock
from holdfast.model.table import layout_of
from holdfast.tabular.certificates import occupancy_tree as occupancies
from holdfast.tabular.certificates.member_kernels import first_kernels, further_kernels
from holdfast.tabular.certificates.occupancy_model import occupancy_model
from holdfast.tabular.certificates.upper_bound import lagrangian_bound


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(hf.environments.MODELS))
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--iterations", type=int, default=200)
    arguments = parser.parse_args()
    occupancies.time = ProcessorClock  # type: ignore[assignment]
    columns = f"{'tree gap':>9} {'kernels':>8} {'boxes':>6} {'CPU-s':>6}"
    print(f"{'model':<20} {'reward':>9} {'λ gap':>8} {columns}")
    for name in arguments.names:
        with jax.enable_x64(True):
            print(line(name, arguments), flush=True)


def line(name: str, arguments: argparse.Namespace) -> str:
    model = hf.environments.MODELS[name]()
    policy = hf.solve(model, iterations=arguments.iterations, certify=True).policy
    evaluation, layout = hf.evaluate(model, policy), layout_of(model)
    reward, target = evaluation.reward.worst, arguments.target
    bound = lagrangian_bound(layout.table, model.actions)
    cutoff = reward / (1 - target) if reward > 0 else reward / (1 + target)

    def gap(upper: float) -> float:
        return (upper - reward) / abs(upper)

    shown = f"{name:<20} {reward:9.4f} {gap(bound.value):8.3%}"
    if bound.value <= cutoff:
        return f"{shown} {'–':>9}"
    started = time.process_time()
    tree = occupancies.occupancy_tree(
        occupancy_model(model),
        first_kernels(layout, evaluation, bound),
        cutoff,
        occupancies.TreeLimits(None, arguments.seconds),
        lambda other: further_kernels(model, other, cutoff),
    )
    seconds = time.process_time() - started
    kernels = len(tree.proof.kernels)
    return f"{shown} {gap(tree.value):9.3%} {kernels:8d} {tree.nodes:6d} {seconds:6.1f}"


if __name__ == "__main__":
    main()
