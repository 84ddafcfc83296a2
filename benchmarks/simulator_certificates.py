"""Tightness of the bounds in simulators: what is proved against what an attack finds.

Prints, for each radius, sample size and training effort, the nominal cost, what the attack found, the
bound, bound/found, and (bound − found)/max(found − nominal, 1 % of the limit). The last column is what
samples alone cannot exclude, H·R·D/log N (docs/explanation/simulator-bounds.md).

It needs JAX and this package only, no Gymnasium:

    PYTHONPATH=src python benchmarks/simulator_certificates.py --iterations 100
    PYTHONPATH=src python benchmarks/simulator_certificates.py --quick
    PYTHONPATH=src python benchmarks/simulator_certificates.py --validity 1000 --whole 20

The last command repeats bounds at 90 % confidence on five simulators whose worst case is known, and
prints how many are below it, with an exact binomial interval of that share. U, ν and λ are learned once;
with --whole they are learned anew in each of this many whole certificates.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hf
from _campaign import use_tests
from holdfast.environments.point_gather import PointGather
from holdfast.environments.table_simulator import TableSimulator


def row(name: str, proof: hf.SimulatorCertificate, seconds: float) -> dict[str, float | str]:
    cost = proof.costs[0]
    settings = proof.setup
    signal = settings["signals"][cost.name]
    floor = signal["budget"] * signal["total"] / math.log(settings["episodes"])
    effect = max(cost.found - cost.nominal, 0.01 * abs(cost.limit))
    return {
        "what": name,
        "radius": proof.radius,
        "episodes": settings["episodes"],
        "draws": settings["draws"],
        "updates": settings["updates"],
        "nominal": cost.nominal,
        "found": cost.found,
        "upper": cost.upper,
        "ratio": cost.upper / cost.found if cost.found > 0 else math.nan,
        "tightness": (cost.upper - cost.found) / effect,
        "floor": floor,
        "seconds": seconds,
    }


def show(found: dict[str, float | str]) -> None:
    cells = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in found.values()]
    print(" | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=100, help="training of the policy")
    parser.add_argument("--quick", action="store_true", help="small samples and a fixed policy")
    parser.add_argument("--out", default="", help="file for the rows as JSON")
    parser.add_argument(
        "--validity", type=int, default=0, help="repetitions of bounds; no tightness"
    )
    parser.add_argument("--whole", type=int, default=0, help="whole certificates, with --validity")
    given = parser.parse_args()
    if given.validity:
        validity(given.validity, given.whole)
        return
    sizes = [(20_000, 64, 300), (200_000, 256, 1000), (1_000_000, 256, 3000)]
    if given.quick:
        sizes = [(1000, 8, 30)]
    rows: list[dict[str, float | str]] = []

    def measure(
        name: str, env: Any, policy: Any, size: tuple[int, int, int], **options: Any
    ) -> None:
        episodes, draws, updates = size
        start = time.monotonic()
        proof = hf.certify(
            env, policy, confidence=0.95, episodes=episodes, draws=draws, updates=updates, **options
        )
        rows.append(row(name, proof, time.monotonic() - start))
        if len(rows) == 1:
            print(" | ".join(rows[0]), flush=True)
        show(rows[-1])
        if given.out:
            Path(given.out).write_text(json.dumps(rows, indent=2))

    chain = TableSimulator(hf.environments.n_chain(nodes=5), name="chain", horizon=8)
    for size in sizes[:2]:
        measure("chain", chain, towards_middle, size, radius=0.02, cost_limit=-4)
    env: Any = PointGather()
    policy: Any = straight
    if not given.quick:
        limits = {"radius": 0.2, "cost_limit": 0.1}
        policy = hf.train(env, "rcpo", iterations=given.iterations, seed=0, **limits)
    for radius in (0.05, 0.2):
        for i, size in enumerate(sizes):
            for most in (1.0, 8.0)[: 2 if i == 0 else 1]:
                name = f"point-gather, cost cut at {most:g}"
                measure(name, env, policy, size, radius=radius, most_cost=most)


def validity(repetitions: int, whole: int) -> None:
    """Print the share of bounds that are below the truth."""
    from scipy.stats import binomtest

    use_tests()
    from tests.simulators.certificates.validity_cases import (
        NAMES,
        bounds,
        case,
        whole_certificates,
    )

    print("| simulator | worst case | mean bound | below | share, 95 % interval |")
    print("|---|---|---|---|---|", flush=True)
    for name in NAMES:
        known = case(name)
        for what, make, count in (
            ("", bounds, repetitions),
            (", whole", whole_certificates, whole),
        ):
            if not count:
                continue
            found = np.array(make(known, count, 400))
            below = int((found < known.truth - 1e-6).sum())
            interval = binomtest(below, count).proportion_ci(0.95)
            print(
                f"| {name}{what} | {known.truth:.4g} | {found.mean():.4g} | {below} of {count} | "
                f"{100 * interval.low:.2g} to {100 * interval.high:.2g} % |",
                flush=True,
            )


def towards_middle(observations: np.ndarray) -> np.ndarray:
    """Return the action that leads towards the middle of a chain with five nodes."""
    return (np.argmax(observations, -1) < 2).astype(int)


def straight(observations: np.ndarray) -> np.ndarray:
    """Return half a step straight ahead."""
    return np.broadcast_to([0.5, 0.0], (*np.shape(observations)[:-1], 2))


if __name__ == "__main__":
    main()
