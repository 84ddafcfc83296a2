"""Effect of the safeguard on RCPO: violations and reward, beside the update as published.

    python benchmarks/safeguard.py [--seeds 5] [--iterations 200]

Prints for each of the paper's models, with and without the safeguard, the number of infeasible iterates
from the first feasible one on and the largest violation among them, and the final reward with the
safeguard relative to the best *feasible* iterate without it.
"""

from __future__ import annotations

import argparse

import numpy as np

import holdfast as hf


def after_first_feasible(history: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the margins of the iterates from the first feasible one on, and which are feasible."""
    feasible = (history["margins"] - history["error"][:, None] >= 0).all(-1)
    first = int(feasible.argmax())
    return history["margins"][first:].min(-1), feasible[first:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=200)
    arguments = parser.parse_args()
    print("| model | safeguard | infeasible iterates | lowest, % of the threshold | reward ratio |")
    print("|---|---|---|---|---|")
    for name, make in hf.environments.MODELS.items():
        model = make()
        threshold = model.constraints[0].threshold
        ratios = []
        counts = {None: [0, 0, 0.0], "project": [0, 0, 0.0]}
        for seed in range(arguments.seeds):
            found = {}
            for safeguard, count in counts.items():
                history = hf.solve(
                    model, seed=seed, iterations=arguments.iterations, safeguard=safeguard
                ).history
                margins, feasible = after_first_feasible(history)
                count[0] += int((~feasible).sum())
                count[1] += feasible.size
                count[2] = min(count[2], float(margins.min()) / threshold)
                found[safeguard] = history["reward"][-feasible.size :][feasible]
            ratios.append(found["project"][-1] / found[None].max())
        for safeguard, (lost, total, lowest) in counts.items():
            ratio = f"{min(ratios):.4f} to {max(ratios):.4f}" if safeguard else ""
            print(
                f"| {name} | {safeguard or 'none'} | {lost} of {total} | {100 * lowest:.2f} | {ratio} |"
            )


if __name__ == "__main__":
    main()
