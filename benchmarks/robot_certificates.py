"""Tightness of bounds where mass and friction are drawn once per episode, on robots.

Certifies policies that benchmarks/real_physics.py has trained, with drawn or with most likely actions:

    python benchmarks/real_physics.py half-cheetah hopper --out runs/real-physics
    python benchmarks/robot_certificates.py runs/real-physics --methods rcpo-0 pcpo-0

Mass and friction have a scale of 0.1 each. Within a radius of R nature may move their mean by √(2R)
standard deviations: with 0.02 by 2 %, with 0.5 by 10 %. Prints the nominal cost of an episode, what an
attack found, what is proved with 95 % confidence, and (proved − found)/max(found − nominal, 1 % of the
limit).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import holdfast as hf
from real_physics import SCALE, SETUPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="what real_physics.py wrote")
    parser.add_argument("--tasks", nargs="+", default=list(SETUPS), choices=list(SETUPS))
    parser.add_argument("--methods", nargs="+", default=["rcpo-0", "pcpo-0"])
    parser.add_argument("--radii", nargs="+", type=float, default=[0.02, 0.5])
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=1, help="episodes of each draw")
    parser.add_argument("--most-likely", action="store_true", help="actions, instead of drawn ones")
    given = parser.parse_args()
    agents = {
        # The last part of a job's name is its seed, and so is that of the agent's file.
        (task, method): given.folder / task / method / f"agent-{method.split('-')[-1]}.safetensors"
        for task in given.tasks
        for method in given.methods
    }
    for path in agents.values():
        if not path.is_file():
            parser.error(f"{path}: train it with benchmarks/real_physics.py first")
    print("| policy | radius | nominal | found ≥ | proved ≤ | limit | tightness | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for (task, method), path in agents.items():
        for radius in given.radii:
            print(row(task, method, path, radius, given), flush=True)


def row(task: str, method: str, path: Path, radius: float, given: argparse.Namespace) -> str:
    """Return the table's row of one certificate."""
    start, setup = time.monotonic(), SETUPS[task]
    env = setup.environment(SCALE)
    proof = hf.certify(
        env,
        hf.load(path, environment=env),
        radius=radius,
        cost_limit=setup.limit,
        cost_range=(0, 1),
        episodes=given.draws,
        repeats=given.repeats,
        deterministic=given.most_likely,
    )
    cost = proof.costs[0]
    effect = max(cost.found - cost.nominal, 0.01 * setup.limit)
    numbers = (radius, cost.nominal, cost.found, cost.upper, setup.limit)
    cells = [f"{task}, {method}", *(f"{number:.3g}" for number in numbers)]
    cells += [f"{(cost.upper - cost.found) / effect:.2f}", f"{time.monotonic() - start:.0f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
