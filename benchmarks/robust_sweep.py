"""One robust sweep beside the memory bandwidth, and the parts of an evaluation, on any device.

    python benchmarks/robust_sweep.py [--states 1000000] [--sets kl total-variation chi-square interval]

Random lists as in `large_models.py` are made on the device, so that only its memory limits the size. The
first lines have the seconds of the parts of one signal's evaluation, and the peak memory in bytes a
state. The others have the seconds of one sweep, and its traffic as a share of that of a triad
x ← b + c·x in the same run: of the sweep that `evaluate` uses, of other block sizes and numbers of
passes, and of the certified response. Successors, probabilities, signal, policy and V are counted once,
and the new V.
On a CPU the seconds are those of the process, on all cores together, since other work may share it.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import random

import holdfast as hf
from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation import columns, fused, sparse
from holdfast.tabular.evaluation.certified import error_of
from holdfast.tabular.evaluation.values import worst_response

_WINDOW, _FAR = 50, 0.1
_TRIAD = 1 << 25
# States in one block of the lists; the number of states is rounded up to whole blocks.
_BLOCK = 1 << 18


def random_set(name: str, p: Any) -> Any:
    """Return a set with arrays in the layout of the lists."""
    radius = jnp.array(0.05)
    sets = {
        "kl": lambda: hf.KL(0.05),
        "total-variation": lambda: hf.TotalVariation(0.05, within_support=True),
        "chi-square": lambda: hf.ChiSquare(0.05),
        "contamination": lambda: hf.Contamination(0.05, within_support=True),
        "interval": lambda: hf.Interval(0.0, 1.0),
    }
    found = eqx.tree_at(lambda s: s.radius, sets[name](), radius)
    if name == "interval":
        bounds = jnp.maximum(p - 0.05, 0.0), jnp.minimum(p + 0.05, 1.0)
        found = eqx.tree_at(lambda s: (s.lower, s.upper, s.radius), found, (*bounds, radius * 20))
    return found


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def random_arrays(states: int, actions: int, width: int) -> Any:
    """Return successors, probabilities, a signal and a policy, made block by block."""
    block = min(states, _BLOCK)

    def make(i: Any) -> Any:
        shape = block, actions, width
        keys = iter(random.split(random.fold_in(random.key(0), i), 6))
        own = (i * block + jnp.arange(block, dtype=jnp.int32))[:, None, None]
        near = (own + random.randint(next(keys), shape, -_WINDOW, _WINDOW + 1, jnp.int32)) % states
        far = random.randint(next(keys), shape, 0, states, jnp.int32)
        lists = jnp.where(random.uniform(next(keys), shape, jnp.float32) < _FAR, far, near)
        p, pi = random.exponential(next(keys), shape), random.exponential(next(keys), shape[:2])
        signal = random.uniform(next(keys), shape[:2])
        return lists, p / p.sum(-1, keepdims=True), signal, pi / pi.sum(-1, keepdims=True)

    made = jax.lax.map(make, jnp.arange(states // block, dtype=jnp.int32))
    lists, p, signal, policy = (a.reshape(states, *a.shape[2:]) for a in made)
    return lists, p, signal[None, ..., None], policy


def seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """Return the seconds per call of a compiled function, compilation left out."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    jax.block_until_ready(function())
    start = clock()
    for _ in range(repeats):
        found = function()
    jax.block_until_ready(found)
    return (clock() - start) / repeats


def peak(states: int) -> str:
    """Return the peak memory of the device in bytes a state, if it is known."""
    statistics = jax.devices()[0].memory_stats() or {}
    used = statistics.get("peak_bytes_in_use")
    return "unknown" if used is None else f"{used / states:.0f} B a state"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=1_000_000)
    parser.add_argument("--actions", type=int, default=4)
    parser.add_argument("--successors", type=int, default=4)
    parser.add_argument("--discount", type=float, default=0.99)
    parser.add_argument("--error", type=float, default=1e-4)
    parser.add_argument("--sets", nargs="+", default=["kl"])
    parser.add_argument("--parts", default="sweeps evaluation", help="which tables to print")
    parser.add_argument("--variants", action="store_true", help="other blocks and passes, too")
    given = parser.parse_args()
    unit = _BLOCK if given.states > _BLOCK else 128
    states = -(-given.states // unit) * unit
    with jax.enable_x64(True):
        ones = jnp.ones(_TRIAD)
        triad = jax.jit(lambda b, x: jax.lax.fori_loop(0, 10, lambda _, x: b + 0.5 * x, x))
        bandwidth = 240 * _TRIAD / seconds(lambda: triad(ones, ones)) / 1e9
        print(f"{jax.devices()[0].device_kind}, {states:,} states; triad {bandwidth:.1f} GB/s")
        lists, p, signal, policy = random_arrays(states, given.actions, given.successors)
        traffic = sum(a.nbytes for a in (lists, p, signal, policy)) + 16 * states
        print(f"traffic of a sweep, arrays counted once: {traffic / states:.0f} B a state")
        for name in given.sets:
            table = Table(
                probabilities=p,
                successors=lists,
                signals=signal,
                thresholds=jnp.zeros(0),
                initial=jnp.full(states, 1 / states),
                discount=jnp.array(given.discount),
                uncertainty=random_set(name, p),
                step_share=jnp.array(1 - given.discount),
            )
            if "evaluation" in given.parts:
                parts(name, table, policy, given.error * (1 - given.discount))
            if "sweeps" in given.parts:
                sweeps(name, table, policy, traffic, bandwidth, given.variants)


def parts(name: str, table: Any, policy: Any, tolerance: float) -> None:
    """Print the seconds of the parts of one signal's evaluation."""
    quick = compiled(columns.quick_values)
    nominal = quick(table, policy, sparse.TOLERANCE, robust=False)
    nominal = nominal._replace(multipliers=None)
    worst = quick(table, policy, tolerance, nominal.values)
    after_search = peak(table.states)
    found = worst.values, worst.multipliers
    error = error_of(table, policy, *found)
    times = {
        "nominal": seconds(lambda: quick(table, policy, sparse.TOLERANCE, robust=False), 2),
        "worst": seconds(lambda: quick(table, policy, tolerance, nominal.values), 2),
        "certificate": seconds(lambda: error_of(table, policy, *found), 2),
    }
    shown = ", ".join(f"{part} {time:.4f}" for part, time in times.items())
    print(f"\n{name}: seconds: {shown}; together {sum(times.values()):.4f}")
    print(
        f"  certified error {float(error):.2e}; nominal {int(nominal.rounds)} rounds and "
        f"{int(nominal.sweeps)} sweeps, worst {int(worst.rounds)} and {int(worst.sweeps)}; "
        f"peak {after_search} in the search, {peak(table.states)} with the certificate"
    )


def sweeps(
    name: str, table: Any, policy: Any, traffic: int, bandwidth: float, variants: bool
) -> None:
    """Print the seconds and the share of the bandwidth of one sweep, by each variant."""
    quick = compiled(columns.quick_values)
    found = quick(table, policy, 1e-6)
    lists = compiled(columns.Lists.of)(table, policy)
    # Another V, so that there is something to find: as far off as a round's V is from the next one's.
    values, guess = found.values * (1 + 1e-3), found.multipliers
    guess = guess.T if lists.in_columns else guess

    def timed(title: str, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            time = seconds(functools.partial(compiled(function), *arguments))
        except Exception as error:  # a variant that this device does not support
            print(f"  {title:34s} failed: {str(error)[:300]}")
            return
        rate = traffic / time / 1e9
        print(f"  {title:34s} {time:.5f} s {rate:8.1f} GB/s {rate / bandwidth:7.1%} of the triad")

    print(f"\n{name}: one sweep")
    timed("as evaluate does it", columns.sweep, lists, values, guess)
    timed("by the compiler, at once", columns.swept, lists, values, guess)
    if not lists.in_columns:
        other = compiled(columns.Lists.of)(table, policy, in_columns=True)
        timed("by the compiler, in columns", columns.swept, other, values, guess.T)
        del other
    flow = compiled(columns.sweep)(lists, values, guess).flow
    short = values.astype(jnp.float32)
    timed("fixed kernel, single precision", columns.fixed_sweep, lists, flow, short)
    timed("fixed kernel, double precision", columns.fixed_sweep, lists, flow.astype(float), values)
    timed(
        "certified response",
        lambda t, pi, v, m: error_of(t, pi, v, m),
        *(table, policy, values, found.multipliers),
    )
    timed(
        "response of policy iteration",
        lambda t, pi, v, m: worst_response(t, t.signals[0], pi, v, m),
        *(table, policy, values, found.multipliers),
    )
    if not variants or name != "kl" or jax.default_backend() != "gpu":
        return
    for block in (64, 128, 256):
        for warps in (2, 4, 8):
            option = functools.partial(fused.sweep, block=block, warps=warps)
            timed(f"kernel, blocks of {block}, {warps} warps", option, lists, values, guess)


if __name__ == "__main__":
    main()
