"""Certified gaps of random models, and an independent search for a policy above the bound.

    python benchmarks/random_gaps.py [--cases 300] [--processes 16] [--first 0] [--minutes 9] [--quick]

A case is one model with 2 to 8 states, 1 to 3 constraints and one of the six sets. Branch and bound has
30 seconds of processor time for each, with a target of 1 %. Prints the distribution of the gaps and of
the processor seconds, and how much a search from several starts gains over the certified policy. Exits
with 1 if the search finds a policy above the bound. With --quick all models have four states and two
actions, branch and bound has at most 60 nodes, and searches are shorter.
"""

from __future__ import annotations

import sys
import time

from _campaign import ProcessorClock, arguments, describe, results, use_tests


def gap(seed: int, quick: bool) -> tuple[bool, float, float, float, float, int]:
    """Return feasibility, reward, bound, what a search finds, seconds, and nodes of one model."""
    from tests.tabular.certificates.random_models import certified

    from holdfast.tabular.certificates import occupancy_tree

    occupancy_tree.time = ProcessorClock  # type: ignore[assignment]
    started = time.process_time()
    found, reward = certified(seed, quick)
    seconds = time.process_time() - started
    return found.feasible, found.reward, found.upper_bound, reward, seconds, found.regions


def main() -> int:
    options = arguments(__doc__, 300, "quick")
    use_tests()
    tasks = [(seed, options.quick) for seed in range(options.first, options.first + options.cases)]
    gaps, gains, times, nodes, wrong = [], [], [], [], 0
    for (seed, _), (feasible, reward, bound, searched, seconds, regions) in results(
        gap, tasks, options
    ):
        if not feasible:
            print(f"seed {seed}: the policy is not feasible", flush=True)
            continue
        gaps.append((bound - reward) / max(abs(bound), 1e-12))
        gains.append((searched - reward) / max(abs(searched), 1e-12))
        times.append(seconds)
        nodes.append(regions)
        if gaps[-1] > 0.0101:
            print(f"seed {seed}: gap {gaps[-1]:.2%} after {regions} nodes", flush=True)
        if not bound >= searched - 1e-8:
            wrong += 1
            print(f"seed {seed}: the bound {bound} is below {searched}", flush=True)
    describe("certified gap", gaps)
    describe("gain of a search over the certified policy", gains)
    describe("seconds, with compilation and search", times)
    describe("nodes", nodes)
    above = sum(each > 0.0101 for each in gaps)
    print(
        f"{len(gaps)} models, {above} gaps above 1 %, {wrong} bounds below a policy that was found"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
