"""Robust evaluation of a stochastic policy: Holdfast beside a plain NumPy robust value iteration.

    python benchmarks/robust_evaluation.py [--states 1000] [--actions 10] [--discount 0.99]

Both evaluate the same policy over the same KL ball to the same error, in one run, in CPU-seconds on one
core; the ratio is NumPy's time over Holdfast's. The NumPy iteration starts at the nominal values, finds
each worst response by vectorised bisection of its dual variable, and stops when its contraction bound
γ‖V' − V‖/(1−γ) is below the error. Without `--whole`, three sweeps are timed and the rest extrapolated:
each sweep contracts by γ, so the number of sweeps is known.

On an accelerator (`--wall`) wall-clock seconds are used, and the NumPy iteration is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

if hasattr(os, "sched_setaffinity") and "--wall" not in sys.argv:
    # One core for both, so that idle threads of a pool do not count as work.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import numpy as np

import holdfast as hf


def random_model(states: int, actions: int, discount: float, radius: float) -> hf.RobustCMDP:
    rng = np.random.default_rng(0)
    return hf.RobustCMDP(
        transitions=rng.dirichlet(np.ones(states), (states, actions)),
        reward=rng.random((states, actions)),
        discount=discount,
        uncertainty=hf.KL(radius),
    )


def kl_sweep(p: np.ndarray, values: np.ndarray, radius: float, bisections: int) -> np.ndarray:
    """Return min q·V over every row's KL ball, by bisection of β in q ∝ p·exp(−βV)."""
    shifted = values - values.min()
    low, high = np.zeros(p.shape[:2]), np.full(p.shape[:2], 1e3 / max(shifted.max(), 1e-12))
    for _ in range(bisections):
        beta = 0.5 * (low + high)
        weight = p * np.exp(-beta[..., None] * shifted)
        mass = weight.sum(-1)
        mean = (weight @ shifted) / mass
        inside = -beta * mean - np.log(mass) <= radius
        low, high = np.where(inside, beta, low), np.where(inside, high, beta)
    return values.min() + mean


def numpy_evaluation(
    model: hf.RobustCMDP, policy: np.ndarray, error: float, sweeps: int | None
) -> tuple[float, float, int]:
    """Return the CPU-seconds of the whole iteration, the value reached, and the number of sweeps."""
    p, gamma = model.transitions, model.discount
    chain = np.einsum("sa,sat->st", policy, p)
    mean = (policy * model.reward).sum(-1)
    values = np.linalg.solve(np.eye(model.states) - gamma * chain, mean)
    start, done, change = time.process_time(), 0, np.inf
    while gamma * change / (1 - gamma) > error and (sweeps is None or done < sweeps):
        worst = kl_sweep(p, values, float(model.uncertainty.radius), bisections=40)
        new = (policy * (model.reward + gamma * worst)).sum(-1)
        change, values, done = np.abs(new - values).max(), new, done + 1
    seconds = time.process_time() - start
    left = max(0, np.ceil(np.log(error * (1 - gamma) / (gamma * change)) / np.log(gamma)))
    return seconds * (done + left) / done, float(model.initial @ values), int(done + left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--actions", type=int, default=10)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--error", type=float, default=1e-6)
    parser.add_argument(
        "--whole", action="store_true", help="run every sweep of the NumPy iteration"
    )
    parser.add_argument(
        "--wall", action="store_true", help="wall-clock seconds, no NumPy iteration"
    )
    arguments = parser.parse_args()
    clock = time.perf_counter if arguments.wall else time.process_time
    unit = "s" if arguments.wall else "CPU-s"
    model = random_model(arguments.states, arguments.actions, arguments.discount, arguments.radius)
    rng = np.random.default_rng(1)
    policy = rng.dirichlet(np.ones(model.actions), model.states)
    method = hf.Dual(tolerance=arguments.error / 1e2)

    start = clock()
    hf.evaluate(model, policy, worst_case=method)
    first = clock() - start
    times = []
    for _ in range(5):
        start = clock()
        found = hf.evaluate(model, policy, worst_case=method)
        times.append(clock() - start)
    ours = float(np.median(times))

    print(
        f"dense, {model.states} states, {model.actions} actions, discount {model.discount}, "
        f"KL radius {arguments.radius}, error asked for {arguments.error:g}"
    )
    print(
        f"Holdfast   {ours:8.2f} {unit}  worst {found.reward.worst:.6f}  certified error "
        f"{found.error:.1e}  (first call, compilation included: {first:.1f})"
    )
    if arguments.wall:
        return
    theirs, value, sweeps = numpy_evaluation(
        model, policy, arguments.error, None if arguments.whole else 3
    )
    reached = f"worst {value:.6f}" if arguments.whole else "reckoned from 3 sweeps"
    print(f"NumPy VI   {theirs:8.0f} {unit}  {sweeps} sweeps, {reached}")
    print(f"ratio      {theirs / ours:8.0f}")


if __name__ == "__main__":
    main()
