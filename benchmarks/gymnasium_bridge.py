"""Cost of the bridge to Gymnasium: environment with policy, against the environment alone.

The same robot is stepped by MuJoCo's threads, in one process, and in worker processes. Each line shows
the environments alone with random actions (`mujoco.rollout` for threads, otherwise Gymnasium's vector
environment), then Holdfast with a policy of two layers that samples every action, nature's noise and all
recorded quantities, and the ratio of the two, measured alternately in one run. The last lines show the
whole training loop, beside Point Gather, whose simulator is written in JAX.

    python benchmarks/gymnasium_bridge.py
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import mujoco
import mujoco.rollout
import numpy as np

import holdfast as hf
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.rollout import Nominal, Player, Sight, rollout

ROBOT = "HalfCheetah-v5"
COPIES, STEPS = 64, 200


def bridged(env: Environment) -> Callable[[], None]:
    """Sample one batch of episodes with a policy, as training does."""
    key = jax.random.PRNGKey(0)
    policy = Policy.create(key, env.observation_size, (64, 32), env.action_space)
    sight = Sight(None, None, None, True)

    @jax.jit
    def sample(key: Any) -> Any:
        kernel = Nominal.create(env)
        return rollout(Player(env, policy, sight), kernel, key, COPIES).signals.sum()

    return lambda: sample(key).block_until_ready()


def bare_rollout() -> Callable[[], None]:
    """Step the same copies by MuJoCo's threads only."""
    env = gymnasium.make(ROBOT).unwrapped
    model, skip = env.model, env.frame_skip
    models = [copy.copy(model) for _ in range(COPIES)]
    threads = os.cpu_count() or 1
    data = [mujoco.MjData(model) for _ in range(threads)]
    pool = mujoco.rollout.Rollout(nthread=threads)
    start = np.zeros(
        (COPIES, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value))
    )
    start[:, 1 : 1 + model.nq] = env.init_qpos
    generator = np.random.default_rng(0)

    def run() -> None:
        states = start
        for _ in range(STEPS):
            actions = generator.uniform(-1, 1, (COPIES, 1, model.nu))
            found, _ = pool.rollout(models, data, states, np.repeat(actions, skip, axis=1))
            states = np.ascontiguousarray(found[:, -1])

    return run


def bare_vector(kind: type) -> Callable[[], None]:
    """Step Gymnasium's vector environment with random actions drawn beforehand."""
    envs = kind([lambda: gymnasium.make(ROBOT)] * COPIES)
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, COPIES, 6)).astype(np.float32)

    def run() -> None:
        envs.reset(seed=0)
        for each in actions:
            envs.step(each)

    return run


def compare(label: str, bare: Callable[[], None], ours: Callable[[], None], rounds: int) -> None:
    bare(), ours()
    times = np.array([[_seconds(bare), _seconds(ours)] for _ in range(rounds)])
    speeds = COPIES * STEPS / times.min(0)
    lost = 1 - speeds[1] / speeds[0]
    print(
        f"{label:32} bare {speeds[0]:9,.0f}   bridge and policy {speeds[1]:9,.0f} steps/s   "
        f"{'lost' if lost >= 0 else 'gained'} {abs(lost):4.0%}",
        flush=True,
    )


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def training(label: str, env: Environment, **settings: Any) -> None:
    """Return the simulator steps in policy updates per second, without compilation."""
    stamps = []
    hf.train(
        env, "pcpo", iterations=4, callback=lambda _: stamps.append(time.perf_counter()), **settings
    )
    seconds = (stamps[-1] - stamps[0]) / (len(stamps) - 1)
    print(
        f"{label:32} PCPO's whole loop {settings['batch_size'] / seconds:11,.0f} steps/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    channel, cost = hf.Parameters(mass=0.3, friction=0.3), hf.speed_limit(2.0)

    def env(**options: Any) -> Environment:
        return hf.disturb(ROBOT, channel, cost, horizon=STEPS, **options)

    print(f"{ROBOT}, {COPIES} copies, {os.cpu_count()} processors, JAX {jax.__version__}")
    compare("MuJoCo's threads", bare_rollout(), bridged(env()), given.rounds)
    sync, workers = gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv
    compare("one process", bare_vector(sync), bridged(env(backend="sync")), given.rounds)
    compare("worker processes", bare_vector(workers), bridged(env(backend="async")), given.rounds)
    training(f"{ROBOT}, MuJoCo's threads", env(), batch_size=COPIES * STEPS, cost_limit=10.0)
    training("Point Gather, JAX", hf.environments.SIMULATORS["point-gather"](), batch_size=50_000)


if __name__ == "__main__":
    main()
