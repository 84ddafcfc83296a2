"""Large models: certified robust evaluation and RCPO on successor lists, from 10³ to 10⁶ states.

    python benchmarks/large_models.py [--sizes 1000 10000 100000 1000000] [--error 1e-4] [--iterations 3]

Random lists: most successors lie within a window around their state, a tenth of them anywhere; Dirichlet
probabilities, a reward and one cost in [0, 1], a KL ball. Each size runs in its own process, to measure
its peak memory: of the accelerator if there is one, otherwise of the process. Evaluations are timed
after compilation. Exponents are fitted to seconds and memory against the states.

The same run measures the memory traffic per second of one robust sweep (nature's response in every row,
from nearly correct multipliers) and of one sweep under a fixed kernel, relative to that of a triad
x ← b + c·x in JAX on the same machine. Of the robust sweep successors, probabilities, signal, policy and
V are counted, each once; `robust_sweep.py` compares its variants.

The same command runs on a CPU and on a GPU. Up to 1,024 states the library uses dense factors.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_WINDOW, _FAR = 50, 0.1
_TRIAD = 1 << 25


def random_lists(states: int, actions: int, successors: int, discount: float, radius: float) -> Any:
    """Return a model with successor lists whose cost limit is slightly above a uniform policy's cost."""
    import holdfast as hf

    rng = np.random.default_rng(0)
    shape = (states, actions, successors)
    near = np.arange(states)[:, None, None] + rng.integers(-_WINDOW, _WINDOW + 1, shape)
    far = rng.random(shape) < _FAR
    weights = rng.standard_exponential(shape)
    return hf.RobustCMDP(
        transitions=hf.Kernel(
            successors=np.where(far, rng.integers(0, states, shape), near % states),
            probabilities=weights / weights.sum(-1, keepdims=True),
        ),
        reward=rng.random((states, actions)),
        constraints=[hf.at_most(rng.random((states, actions)), 0.55 / (1 - discount))],
        discount=discount,
        uncertainty=hf.KL(radius),
    )


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return the result of a call with its wall-clock and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = function()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def per_call(function: Callable[[], Any], repeats: int) -> float:
    """Return the wall-clock seconds per call of a compiled function."""
    import jax

    jax.block_until_ready(function())
    _, wall, _ = timed(lambda: jax.block_until_ready([function() for _ in range(repeats)]))
    return wall / repeats


def peak_memory() -> float:
    """Return the peak memory in GiB, of the accelerator if there is one, otherwise of the process."""
    import jax

    statistics = jax.devices()[0].memory_stats() or {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if jax.default_backend() != "cpu":
        peak = statistics.get("peak_bytes_in_use", peak)
    return float(peak / 2**30)


def one_size(states: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements at one size."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import holdfast as hf
    from holdfast.model.table import layout_of

    model, build, _ = timed(
        lambda: random_lists(
            states, arguments.actions, arguments.successors, arguments.discount, arguments.radius
        )
    )
    table, lay_out, _ = timed(lambda: layout_of(model).table)
    policy = np.random.default_rng(1).dirichlet(np.ones(model.actions), states)
    # The tolerance is relative to the largest |V|, which is at most 1/(1−γ).
    method = hf.Dual(tolerance=arguments.error * (1 - arguments.discount))
    _, first, _ = timed(lambda: hf.evaluate(model, policy, worst_case=method))
    found, wall, cpu = timed(lambda: hf.evaluate(model, policy, worst_case=method))
    measured = {
        "states": states,
        "build": build + lay_out,
        "first": first,
        "wall": wall,
        "cpu": cpu,
        "error": found.error,
        "memory": peak_memory(),
    }
    if arguments.iterations:
        solution = hf.solve(
            model,
            "rcpo",
            iterations=arguments.iterations,
            initial_policy=policy,
            worst_case=method,
        )
        measured["iteration"] = float(np.median(np.diff(solution.history["seconds"])))
        measured["status"] = solution.status
        measured["rewards"] = solution.history["reward"].tolist()
        measured["solve_memory"] = peak_memory()
    return measured | sweeps(table, found, policy)


def sweeps(table: Any, found: Any, policy: np.ndarray) -> dict[str, float]:
    """Return the bytes per second of a robust sweep, of a sweep under one kernel, and of a triad."""
    import jax
    import jax.numpy as jnp

    from holdfast._support.compilation import compiled
    from holdfast.tabular.evaluation import columns

    padded = jnp.full(table.probabilities.shape[:2], 1 / policy.shape[1])
    values = jnp.zeros(table.states).at[: len(policy)].set(found.reward.values)
    robust, plain = compiled(columns.sweep), compiled(columns.fixed_sweep)
    lists = compiled(columns.Lists.of)(table.only(0), padded)
    answer = robust(lists, values, jnp.zeros(lists.policy.shape, jnp.float32))
    # Another V, so that there is something to find: as far off as a round's V is from the next one's.
    moved = values * (1 + 1e-3)
    robust_seconds = per_call(lambda: robust(lists, moved, answer.multipliers), 3)
    short = values.astype(jnp.float32)
    plain_seconds = per_call(lambda: plain(lists, answer.flow, short), 10)

    def size(*arrays: Any) -> int:
        return sum(leaf.nbytes for array in arrays for leaf in jax.tree.leaves(array))

    inputs = size(lists.probabilities, lists.successors, lists.signal, lists.policy, values)
    triad = jax.jit(lambda b, x: jax.lax.fori_loop(0, 10, lambda _, x: b + 0.5 * x, x))
    ones = jnp.ones(_TRIAD)
    return {
        "robust_seconds": robust_seconds,
        "robust_rate": (inputs + values.nbytes) / robust_seconds / 1e9,
        "plain_seconds": plain_seconds,
        "plain_rate": size(lists.successors, answer.flow, short, short) / plain_seconds / 1e9,
        "triad_rate": 10 * 3 * ones.nbytes / per_call(lambda: triad(ones, ones), 3) / 1e9,
    }


def exponent(sizes: list[int], amounts: list[float]) -> str:
    """Return the slope of log(amount) against log(states), over all sizes and over the two largest."""
    logs, rows = np.log(sizes), np.log(amounts)
    return f"{np.polyfit(logs, rows, 1)[0]:.2f} (last two {np.polyfit(logs[-2:], rows[-2:], 1)[0]:.2f})"


def show(rows: list[dict[str, Any]], device: str) -> None:
    """Print the tables."""
    print(f"\n{device}\n")
    print("  states   build   first call   evaluate: wall    CPU   certified error   peak GiB")
    for r in rows:
        print(
            f"{r['states']:8d} {r['build']:7.1f} {r['first']:12.1f} {r['wall']:16.2f} {r['cpu']:6.1f} "
            f"{r['error']:17.1e} {r['memory']:10.2f}"
        )
    print("\n  states   robust sweep s    GB/s  of triad   fixed-kernel sweep s    GB/s  of triad")
    for r in rows:
        print(
            f"{r['states']:8d} {r['robust_seconds']:16.4f} {r['robust_rate']:7.2f} "
            f"{r['robust_rate'] / r['triad_rate']:9.1%} {r['plain_seconds']:22.5f} "
            f"{r['plain_rate']:7.2f} {r['plain_rate'] / r['triad_rate']:9.1%}"
        )
    print(f"triad: {rows[-1]['triad_rate']:.1f} GB/s")
    if "iteration" in rows[0]:
        print("\n  states   RCPO iteration s   peak GiB   status     worst-case reward")
        for r in rows:
            print(
                f"{r['states']:8d} {r['iteration']:18.2f} {r['solve_memory']:10.2f}   {r['status']:9s}"
                f"  {r['rewards'][0]:.4f} → {r['rewards'][-1]:.4f}"
            )
    if len(rows) > 1:
        sizes = [r["states"] for r in rows]
        names = {"wall": "wall seconds", "cpu": "CPU seconds", "memory": "memory"}
        names |= {"iteration": "RCPO iteration"} if "iteration" in rows[0] else {}
        print("\nexponents against the number of states")
        for name, title in names.items():
            print(f"  {title:15s} {exponent(sizes, [r[name] for r in rows])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--actions", type=int, default=4)
    parser.add_argument("--successors", type=int, default=4)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--radius", type=float, default=0.05)
    parser.add_argument("--error", type=float, default=1e-4, help="the certified error to reach")
    parser.add_argument("--iterations", type=int, default=3, help="of RCPO; 0 leaves it out")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(one_size(arguments.one, arguments)))
        return
    rows = []
    for states in arguments.sizes:
        print(f"{states} states …", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(states)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    import jax

    device = jax.devices()[0]
    show(rows, f"{device.device_kind} ({jax.default_backend()}), {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
