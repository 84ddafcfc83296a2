"""Sampling speed of Point Gather: policy, kernel and step, for growing numbers of episodes.

    python benchmarks/point_gather_sampling.py [--most 524288] [--repeats 5]

Each number is the best of several calls of one compiled program: episodes of 15 steps under the nominal
kernel, then under a Gaussian-mixture adversary, a network that sees the state. The program returns only
sums of the signals, the observations and the disturbances, so every step has to be simulated but the
batch is not stored; features for critics are not computed under the nominal kernel. Steps after the end
of an episode count, since they are simulated.

Needs jax, equinox, optax and numpy only. On a CPU it stops at 16,384 episodes.
"""

from __future__ import annotations

import argparse
import time

import equinox as eqx
import jax

from holdfast._support.devices import row
from holdfast.environments.point_gather import PointGather
from holdfast.simulators.environment import Environment
from holdfast.simulators.training.learner import Learner, first_learners
from holdfast.simulators.training.rollout import rollout
from holdfast.simulators.training.settings import Plan, Settings, cost_limits


def sampler(env: Environment, learner: Learner, episodes: int):
    """Return a compiled function from a key to the sums of a batch."""
    nature = jax.tree.map(lambda leaf: leaf[0], learner.natures)

    @eqx.filter_jit
    def sums(env: Environment, learner: Learner, key: jax.Array) -> tuple[jax.Array, ...]:
        batch = rollout(learner.player(env), nature.kernel, key, episodes)
        drawn = (batch.signals, batch.observations, batch.disturbances)
        return tuple(leaf.sum((0, 1)) for leaf in drawn)

    return lambda key: jax.block_until_ready(sums(env, learner, key))


def rate(env: Environment, radius: float | None, episodes: int, repeats: int) -> tuple[float, ...]:
    """Return steps per second, seconds of compilation, and reward and cost per episode as a check."""
    settings = Settings(radius=radius or 0.0)
    plan = Plan.create(env, settings, robust=radius is not None, constrained=True)
    learner = row(first_learners(plan, env, settings, cost_limits(env, settings), [0]), 0)
    sample = sampler(env, learner, episodes)
    start = time.perf_counter()
    sample(jax.random.PRNGKey(1))
    first = time.perf_counter() - start
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        signals, *_ = sample(jax.random.PRNGKey(2 + i))
        times.append(time.perf_counter() - start)
    reward, cost = (float(x) / episodes for x in signals)
    return episodes * env.horizon / min(times), first - min(times), reward, -cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    on_cpu = jax.default_backend() == "cpu"
    parser.add_argument("--most", type=int, default=16_384 if on_cpu else 524_288)
    parser.add_argument("--radius", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    device = jax.devices()[0]
    print(f"{device.platform}: {device.device_kind}, jax {jax.__version__}")
    print(f"{'kernel':18}{'episodes':>10}{'steps/s':>16}{'compile s':>11}{'reward':>9}{'cost':>7}")
    env = PointGather()
    for name, radius in (("nominal", None), ("gaussian mixture", arguments.radius)):
        episodes = 1024
        while episodes <= arguments.most:
            steps, compiled, reward, cost = rate(env, radius, episodes, arguments.repeats)
            print(
                f"{name:18}{episodes:10,}{steps:16,.0f}{compiled:11.1f}{reward:9.2f}{cost:7.2f}",
                flush=True,
            )
            # Sixteen times as many each time, the most last.
            episodes = (
                episodes * 16
                if episodes * 16 <= arguments.most
                else (arguments.most if episodes < arguments.most else arguments.most + 1)
            )


if __name__ == "__main__":
    with jax.default_matmul_precision("float32"):
        main()
