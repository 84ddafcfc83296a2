"""Certified optimality gaps of RCPO's policies on the paper's models, from random starts.

    python benchmarks/certified_gap.py [--starts 5] [--nodes 8000] [--iterations 300]

Each line is one start: the worst-case reward of its policy, the Lagrangian bound and its gap, the bound
after branch and bound and its gap, the number of regions, and the seconds of both bounds. The first line
of a model includes compilation.
"""

from __future__ import annotations

import argparse
import time

import holdfast as hf

# What the documentation promises of each: the gap in per cent.
PROMISED = {"n-chain": 0.5, "frozen-lake": 1.0, "gambler": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=8000)
    parser.add_argument("--iterations", type=int, default=300)
    arguments = parser.parse_args()
    print(
        f"{'model':<12} start    reward  λ bound     gap  seconds  divided     gap  regions  seconds"
    )
    for name, promised in PROMISED.items():
        model = hf.environments.MODELS[name]()
        gaps = []
        for seed in range(arguments.starts):
            policy = hf.solve(model, "rcpo", iterations=arguments.iterations, seed=seed).policy
            plain, seconds = timed(model, policy, nodes=0)
            divided, longer = timed(model, policy, nodes=arguments.nodes)
            gaps.append(divided.gap)
            print(
                f"{name:<12} {seed:5d} {plain.reward:9.5f} {plain.upper_bound:8.4f} "
                f"{plain.gap:7.3%} {seconds:8.1f} {divided.upper_bound:8.4f} {divided.gap:7.3%} "
                f"{divided.regions:8,d} {longer:8.1f}",
                flush=True,
            )
        print(f"{name:<12} largest gap {max(gaps):.3%}, promised {promised} %")


def timed(model: hf.RobustCMDP, policy: object, nodes: int) -> tuple[hf.Certificate, float]:
    start = time.perf_counter()
    certificate = hf.certify(model, policy, nodes=nodes, target=1e-4)
    return certificate, time.perf_counter() - start


if __name__ == "__main__":
    main()
