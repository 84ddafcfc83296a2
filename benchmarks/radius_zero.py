"""Distance of the algorithms from the optimum at radius 0, where a linear program gives it.

    python benchmarks/radius_zero.py [--iterations 2000] [--algorithms …] [--models …] [--seed 0]

Each model has radius 0 and a threshold halfway between the value of the unconstrained optimum and the
best attainable value, so that the constraint binds. A cell shows the reward of the returned policy
relative to the optimum, its margin in per cent of the range of the constraint over policies, and the
reward of the best feasible iterate relative to the optimum. Ratios of negative rewards are inverted, so
that less than 1 is always worse. RCPO, PCPO and CPO run a tenth of the iterations.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import holdfast as hf
from holdfast.tabular.algorithms import ALGORITHMS

MODELS = ("gambler", "river-swim", "inventory", "machine-replacement", "safe-navigation")
TRUST_REGION = ("rcpo", "pcpo", "cpo")


def at_radius_zero(name: str) -> tuple[hf.RobustCMDP, float]:
    """Return the model without uncertainty and with a binding threshold, and its constraint's range."""
    model = hf.environments.MODELS[name](radius=0.0)
    (constraint,) = model.constraints

    def best(signal: np.ndarray) -> float:
        alone = model.replace(reward=signal, constraints=[])
        return hf.solve(alone, "rvi", iterations=1).evaluation.reward.worst

    most, least = best(constraint.utility), -best(-constraint.utility)
    unconstrained = hf.solve(model, "rvi", iterations=1).evaluation.constraints[0].worst
    shown = 0.5 * (constraint.shown(most) + unconstrained)
    made = hf.at_least if constraint.sense == "at_least" else hf.at_most
    return model.replace(constraints=[made(constraint.signal, shown)]), most - least


def ratio(reward: float, optimum: float) -> float:
    return 1 + (reward - optimum) / abs(optimum)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = [name for name in ALGORITHMS if name not in ("rvi", "lp")]
    parser.add_argument("--algorithms", nargs="+", default=known, choices=known)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    models = {name: at_radius_zero(name) for name in arguments.models}
    optima = {name: hf.solve(m, "lp").evaluation.reward.worst for name, (m, _) in models.items()}
    print(f"| algorithm | {' | '.join(models)} | CPU-seconds |")
    print("|---" * (len(models) + 2) + "|")
    for algorithm in arguments.algorithms:
        cells, start = [], time.process_time()
        for name, (model, range_) in models.items():
            share = 10 if algorithm in TRUST_REGION else 1
            found = hf.solve(
                model, algorithm, iterations=arguments.iterations // share, seed=arguments.seed
            )
            history = found.history
            feasible = (history["margins"] >= -history["error"][:, None]).all(-1)
            best = history["reward"][feasible].max() if feasible.any() else -np.inf
            cells.append(
                f"{ratio(found.evaluation.reward.worst, optima[name]):.4f} "
                f"({100 * found.evaluation.margins[0] / range_:+.2f} %), "
                f"{ratio(best, optima[name]):.4f}"
            )
        spent = time.process_time() - start
        print(f"| {algorithm} | {' | '.join(cells)} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
