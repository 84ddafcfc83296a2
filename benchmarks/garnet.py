"""RCPO with a certificate and EpiRC-PGS on a Garnet of the size in the public code of EpiRC-PGS.

    python benchmarks/garnet.py [--seeds 2] [--iterations 1000]

The model has five states, three actions, four costs and γ = 0.99; each limit is a random policy's
worst-case cost. A line shows the CPU-seconds (the first line of an algorithm includes compilation), the
worst-case reward, the smallest margin, the certified upper bound on the reward of feasible policies, and
the gap. The public code of EpiRC-PGS takes 126 seconds for 10 outer steps on two such models.
"""

from __future__ import annotations

import argparse
import time

import holdfast as hf


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=1000, help="of EpiRC-PGS")
    arguments = parser.parse_args()
    print("| seed | algorithm | CPU-seconds | worst-case reward | smallest margin | bound | gap |")
    print("|---|---|---|---|---|---|---|")
    for seed in range(arguments.seeds):
        model = hf.environments.garnet(seed=seed)
        start = time.process_time()
        rcpo = hf.solve(model, "rcpo", seed=seed, certify=True)
        line(seed, "rcpo, certified", time.process_time() - start, rcpo, rcpo.certificate)
        start = time.process_time()
        epigraph = hf.solve(model, "epirc-pgs", seed=seed, iterations=arguments.iterations)
        spent = time.process_time() - start
        line(seed, "epirc-pgs", spent, epigraph, hf.certify(model, epigraph.policy))


def line(
    seed: int, name: str, spent: float, found: hf.Solution, certificate: hf.Certificate | None
) -> None:
    assert certificate is not None
    print(
        f"| {seed} | {name} | {spent:.1f} | {found.evaluation.reward.worst:.4f} "
        f"| {found.evaluation.margins.min():.2g} | {certificate.upper_bound:.4f} "
        f"| {certificate.gap:.3%} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
