"""Certified optimality gaps of RCPO's policies on the built-in models: three bounds beside each other.

    python benchmarks/certified_gap.py [NAMES…] [--target 0.01] [--seconds 60] [--iterations 200]

Each line is one model: the worst-case reward of the policy that `solve(certify=True)` finds, the gap of
the Lagrangian bound, the gap of the tree of occupancies (its boxes and its processor seconds), the gap
of the bound by separated copies in the same time (its regions and seconds), and the smallest gap.
Seconds are those of one process's processor time, so that a busy machine does not change them.
"""

from __future__ import annotations

import argparse
import time

import jax

import holdfast as hf
from holdfast.model.table import layout_of, unpadded_table
from holdfast.tabular.certificates import branch_and_bound as copies
from holdfast.tabular.certificates import occupancy_tree as occupancies
from holdfast.tabular.certificates.member_kernels import first_kernels, further_kernels
from holdfast.tabular.certificates.upper_bound import lagrangian_bound


class Clock:
    """The processor time of this process, in place of the wall clock."""

    perf_counter = staticmethod(time.process_time)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(hf.environments.MODELS))
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--iterations", type=int, default=200)
    arguments = parser.parse_args()
    occupancies.time = copies.time = Clock  # type: ignore[assignment]
    print(
        f"{'model':<20} {'reward':>9} {'λ gap':>8} {'tree gap':>9} {'boxes':>6} {'CPU-s':>6} "
        f"{'copies':>8} {'regions':>8} {'CPU-s':>6} {'best':>8}"
    )
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

    started = time.process_time()
    tree = occupancies.occupancy_tree(
        model,
        first_kernels(layout, evaluation, bound),
        cutoff,
        occupancies.TreeLimits(None, arguments.seconds),
        lambda other: further_kernels(model, other, cutoff),
    )
    tree_seconds, started = time.process_time() - started, time.process_time()
    regions = copies.branch_and_bound(
        unpadded_table(model),
        bound,
        reward - evaluation.reward.error,
        cutoff,
        float("inf"),
        arguments.seconds,
    )
    seconds = time.process_time() - started

    def gap(upper: float) -> float:
        return (upper - reward) / abs(upper)

    best = min(bound.value, tree.value, regions.value)
    return (
        f"{name:<20} {reward:9.4f} {gap(bound.value):8.3%} {gap(tree.value):9.3%} {tree.nodes:6d} "
        f"{tree_seconds:6.1f} {gap(regions.value):8.3%} {regions.judged:8d} {seconds:6.1f} "
        f"{gap(best):8.3%}"
    )


if __name__ == "__main__":
    main()
