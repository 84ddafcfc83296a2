"""Speed of the training loop on Point Gather (sampling, critics, update), beside plain NumPy.

    python benchmarks/deep_training.py [--iterations 5] [--batch-size 50000] [--check] [--devices N]

Prints steps per CPU-second over all threads of the process, and steps per second on two cores. Every
iteration is timed alone and the median is reported; compilation is listed separately. All simulated
steps count: the batch of PCPO, and for RCPO the batch under each signal's kernel, the batches of each
adversary, and the nominal batch that is measured. The ratio compares the two PCPO loops.

The NumPy loop (`_numpy_point_gather.py`) has one BLAS thread, with which it is fastest;
OPENBLAS_NUM_THREADS changes that. It has the same settings: networks, epochs of the critics, Fisher
products on a share of the batch, conjugate gradients, line search. `--check` compares its simulator,
advantages, gradients and Fisher products with Holdfast's on one batch, and the reward and cost after a
few iterations of both, without timing. `--devices N` times Holdfast on one device and with its episodes
divided over N (simulated devices on a CPU), and counts the data that the devices exchange.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time

# Products this small gain nothing from a second thread of OpenBLAS, which then waits in a busy loop.
# JAX has threads of its own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "--devices" in sys.argv:
    count = sys.argv[sys.argv.index("--devices") + 1]
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={count}"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import _numpy_point_gather as reference
from holdfast._support.devices import on_devices, over_devices, row, whole
from holdfast.environments.point_gather import PointGather, PointGatherState
from holdfast.registry import SIMULATOR_ALGORITHMS as ALGORITHMS
from holdfast.simulators.steps.trust_region import evidence, fisher_product, in_rows, surrogate
from holdfast.simulators.training.learner import first_learners, sample
from holdfast.simulators.training.settings import Plan, Settings, cost_limits

PUBLISHED = "1,457 to 1,513"


def timed(work, iterations: int) -> tuple[float, float]:
    """Return the median CPU-seconds and seconds of one iteration."""
    cpu, wall = [], []
    for _ in range(iterations):
        start = time.process_time(), time.perf_counter()
        work()
        cpu.append(time.process_time() - start[0])
        wall.append(time.perf_counter() - start[1])
    return float(np.median(cpu)), float(np.median(wall))


class Ours:
    """Holdfast's iteration of one policy, compiled as in `train`."""

    def __init__(self, algorithm: str, settings: Settings, devices: int = 1) -> None:
        self.env, self.settings, self.devices = PointGather(), settings, devices
        module = ALGORITHMS[algorithm]
        plan = self.plan = Plan.create(
            self.env,
            settings,
            robust=module.robust,
            constrained=module.constrained,
            devices=devices,
        )
        start = time.process_time(), time.perf_counter()
        self.restart(0)
        self.advance = eqx.filter_jit(
            lambda env, learner: whole(module.function(plan, env, learner))
        )
        self.iterate()
        self.first = time.process_time() - start[0], time.perf_counter() - start[1]

    def restart(self, seed: int) -> None:
        """Start from a new learner."""
        limits = cost_limits(self.env, self.settings)
        learners = first_learners(self.plan, self.env, self.settings, limits, [seed])
        self.learner = on_devices(row(learners, 0), self.devices)

    def iterate(self) -> tuple[float, float]:
        """Perform one iteration; return the reward and the cost that it measured."""
        with over_devices(self.devices):
            self.learner, metrics = self.advance(self.env, self.learner)
        metrics = jax.device_get(metrics)
        return float(metrics["reward"]), float(metrics["costs"][0])


def across_devices(iterations: int, batch_size: int, devices: int) -> None:
    """Compare one device with several."""
    print(f"Point Gather, batch {batch_size:,}, median of {iterations} iterations")
    for algorithm, radius in (("pcpo", 0.0), ("rcpo", 0.2)):
        for count in (1, devices):
            ours = Ours(algorithm, Settings(radius=radius, batch_size=batch_size), count)
            cpu, wall = timed(ours.iterate, iterations)
            steps = ours.plan.steps(ours.env)
            with over_devices(count):
                text = ours.advance.lower(ours.env, ours.learner).compile().compiled.as_text()
            told = {name: exchanged(text, name) for name in ("all-reduce", "all-gather")}
            print(
                f"{algorithm.upper()}, {count} device(s): {steps / wall:10,.0f} steps/s "
                f"{steps / cpu:10,.0f} steps/CPU-s; "
                + ", ".join(f"{n} {name}s of {size:,} bytes" for name, (n, size) in told.items())
            )
    print("Exchanges as the program has them: those in a loop happen at each of its turns.")


def exchanged(text: str, name: str) -> tuple[int, int]:
    """Return the number of exchanges of one kind in a compiled program, and their bytes."""
    count, size = 0, 0
    for shapes in re.findall(rf"= (.*?) {name}(?:-start)?\(", text):
        count += 1
        for width, sides in re.findall(r"[fsu](\d+)\[([\d,]*)\]", shapes):
            size += int(width) // 8 * int(np.prod([int(n) for n in sides.split(",") if n] or [1]))
    return count, size


def benchmark(iterations: int, batch_size: int) -> None:
    rows = []
    for algorithm, radius in (("pcpo", 0.0), ("rcpo", 0.2)):
        ours = Ours(algorithm, Settings(radius=radius, batch_size=batch_size))
        steps = ours.plan.steps(ours.env)
        cpu, wall = timed(ours.iterate, iterations)
        rows.append((f"Holdfast {algorithm.upper()}", steps, cpu, wall, ours.first))
    learner = reference.Learner(Settings(batch_size=batch_size), np.random.default_rng(0))
    steps = -(-batch_size // reference.HORIZON) * reference.HORIZON
    learner.iterate()
    rows.append(("NumPy PCPO", steps, *timed(learner.iterate, iterations), None))

    print(
        f"Point Gather, batch {batch_size:,}, median of {iterations} iterations, 2 cores, "
        "one BLAS thread for NumPy"
    )
    print(
        f"{'':15}{'steps':>9}{'steps/CPU-s':>13}{'steps/s':>10}   first iteration with compilation"
    )
    for name, steps, cpu, wall, first in rows:
        apart = f"{first[0]:8.1f} CPU-s {first[1]:6.1f} s" if first else "       –"
        print(f"{name:15}{steps:9,}{steps / cpu:13,.0f}{steps / wall:10,.0f}   {apart}")
    print("RCPO's steps are those under every kernel, adversaries' and measurements' included.")
    ours, theirs = rows[0], rows[2]
    print(
        f"ratio, PCPO: {theirs[2] / ours[2]:.2f} in CPU-seconds, {theirs[3] / ours[3]:.2f} in seconds"
    )
    print(
        f"not measured here: a public PyTorch safe-RL library, CPO and PCPO with 100 copies and a "
        f"batch of 50,000\non a 2-core machine, about {PUBLISHED} steps a second"
    )


def check(batch_size: int, seeds: int = 5, iterations: int = 16) -> None:
    """Check that the NumPy loop computes what Holdfast computes."""
    ours = Ours("pcpo", Settings(batch_size=batch_size))
    for _ in range(2):
        ours.iterate()
    env, plan, learner = ours.env, ours.plan, ours.learner
    _, samples = jax.jit(lambda learner: sample(plan, env, learner))(learner)
    batch = reference.Batch(
        *(
            np.asarray(getattr(samples.batches, name)[0])
            for name in ("observations", "actions", "features", "signals", "alive", "terminated")
        )
    )
    policy = reference.Policy(_network(learner.policy.network), np.asarray(learner.policy.log_std))
    sight = _normaliser(learner.sight.observations)
    of_critic = _normaliser(learner.sight.features)

    _check_simulator(env, batch_size)
    inputs = reference.critic_inputs(batch.features, of_critic)
    rows = batch.alive
    values = policy.network.layers(sight(batch.observations[rows]))
    vector = np.random.default_rng(0).standard_normal(ravel_pytree(learner.policy)[0].size)
    vector = vector.astype(np.float32)
    for i, name in enumerate(("reward", "cost")):
        critic = jax.tree.map(lambda leaf, i=i: leaf[i], learner.natures.critic)
        theirs = reference.Critic(_network(critic.network), 0.0)
        theirs.returns = _normaliser(critic.returns)
        worth = theirs(inputs.reshape(-1, 45)).reshape(inputs.shape[:2])
        found = reference.advantages(batch, worth, i, plan.discounts[i], plan.gaes[i])
        each = jax.tree.map(lambda leaf, i=i: leaf[i], samples.estimates)
        _agree(f"{name}: advantages", found, each.advantages)
        _agree(f"{name}: targets", (found + worth[:-1])[rows], np.asarray(each.targets)[rows])

        seen = learner.sight.of_policy(batch.observations)
        told = in_rows(seen), in_rows(batch.actions)
        held = evidence(learner.policy, *told, each.advantages, each.weights)
        flat, unravel = ravel_pytree(learner.policy)
        wanted = jax.grad(lambda v, u=unravel, h=held: surrogate(u(v), h))(flat)
        mine = reference.evidence(batch, found, plan.discounts[i])
        g = reference.gradient(policy, values, batch.actions[rows], mine)
        _agree(f"{name}: gradient", g, wanted)
        if i == 0:
            product = fisher_product(learner.policy, held.inputs, held.weights, 0.0)
            curved = reference.fisher_product(policy, values, mine.weights, vector)
            _agree("Fisher-vector product", curved, product(vector))

    found = []
    for seed in range(seeds):
        ours.restart(seed)
        theirs = reference.Learner(ours.settings, np.random.default_rng(seed))
        found.append([(*ours.iterate(), *theirs.iterate()) for _ in range(iterations)])
    found = np.array(found)
    print(f"means of {seeds} seeds:\niteration    reward ours  NumPy      cost ours  NumPy")
    for i in range(0, iterations, 3):
        reward, cost, their_reward, their_cost = found[:, i].mean(0)
        print(f"{i + 1:9}{reward:15.2f}{their_reward:7.2f}{cost:15.3f}{their_cost:7.3f}")
    # Each seed's mean over its last iterations; the spread over seeds says what difference is chance.
    last = found[:, -5:].mean(1)
    error = np.sqrt((last[:, :2].var(0, ddof=1) + last[:, 2:].var(0, ddof=1)) / seeds)
    apart = (last[:, :2] - last[:, 2:]).mean(0)
    for name, gap, e in zip(("reward", "cost"), apart, error, strict=True):
        print(f"last five iterations, {name}: {gap:+.3f} apart, standard error {e:.3f}")
        if abs(gap) > 4 * e:
            raise SystemExit(f"{name}: the two loops part")


def _check_simulator(env: PointGather, count: int) -> None:
    """Compare both simulators step by step on the same states, actions and disturbances."""
    rng = np.random.default_rng(0)
    state = reference.reset(rng, count)
    ours = PointGatherState(*map(jnp.asarray, state), None)
    step = jax.jit(jax.vmap(env.step))
    features = jax.jit(jax.vmap(env.features))
    worst = 0.0
    for _ in range(3):
        action = rng.standard_normal((count, 2), np.float32)
        noise = rng.standard_normal((count, 3), np.float32)
        there = step(ours, action, noise)
        state, reward, cost, over = reference.step(state, action, noise)
        # An object on the very edge may be caught by one and missed by the other; so may a sector.
        same = (there.state.present == state.present).all(1)
        same &= np.abs(there.observation - reference.observe(state)).max(1) < 1e-3
        if same.mean() < 0.999:
            raise SystemExit(f"simulator: {np.sum(~np.asarray(same))} of {count} rows differ")
        for mine, theirs in (
            (reward, there.reward),
            (cost, there.costs[:, 0]),
            (over, there.terminated),
            (reference.features(state), features(there.state)),
        ):
            gap = np.abs(np.asarray(mine, np.float32) - np.asarray(theirs, np.float32))
            worst = max(worst, float(gap[np.asarray(same)].max()))
        state = reference.State(*(np.asarray(x) for x in there.state[:4]))
        ours = there.state
    print(f"{'simulator':24} largest difference {worst:.1e}")
    # Two objects nearly equally far may change places.
    if worst > 1e-3:
        raise SystemExit("simulator: the two differ")


def _agree(name: str, mine: np.ndarray, theirs: object) -> None:
    theirs = np.asarray(theirs)
    gap = float(np.abs(mine - theirs).max() / np.abs(theirs).max())
    print(f"{name:24} largest difference {gap:.1e} of the largest entry")
    if not gap < 1e-4:
        raise SystemExit(f"{name}: the two differ")


def _network(network: object) -> reference.MLP:
    return reference.MLP(
        [np.array(w) for w in network.weights], [np.array(b) for b in network.biases]
    )


def _normaliser(ours: object) -> reference.Normaliser:
    result = reference.Normaliser(len(ours.mean))
    result.mean, result.square = np.asarray(ours.mean), np.asarray(ours.square)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--check", action="store_true", help="compare the two loops, time nothing")
    parser.add_argument("--devices", type=int, help="time one device beside so many")
    arguments = parser.parse_args()
    if arguments.devices:
        across_devices(arguments.iterations, arguments.batch_size, arguments.devices)
    elif arguments.check:
        check(min(arguments.batch_size, 15_000))
    else:
        benchmark(arguments.iterations, arguments.batch_size)


if __name__ == "__main__":
    main()
