"""Share of the true worst case that learned adversaries find.

The worst case has a closed form on a linear system, and exact evaluation gives it on a table. Each line
is the share of that drop which an adversary reached against a frozen policy, on new episodes:

    python benchmarks/adversary_strength.py [--only linear|tables] [--updates 80]
"""

from __future__ import annotations

import argparse
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import holdfast as hf
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.certificates.attack import (
    FrozenPolicy,
    Targets,
    played_length,
    train_attackers,
    watch,
)
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.training.rollout import Signal
from holdfast.simulators.training.settings import AdversarySettings

JUDGED_ON = 20_000
LINEAR_RADII = (0.02, 0.1, 0.5)
LINEAR_BATCH = 6_000
TABLES = {
    "categorical": {"updates": 40, "batch_size": 15_000, "learning_rate": 0.03},
    "tilted": {"updates": 20, "batch_size": 8_000},
    "gaussian-mixture": {"updates": 40, "batch_size": 15_000, "learning_rate": 0.01},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=("linear", "tables"), default=None)
    parser.add_argument(
        "--updates", type=int, default=80, help="of adversaries of the linear system"
    )
    arguments = parser.parse_args()
    only = arguments.only
    print(
        f"{'environment':<16} {'kernel':<17} {'gradient':<9} {'signal':<8} radius  share of the drop"
    )
    if only != "tables":
        for kernel in ("mean-shift", "gaussian-mixture"):
            for gradient in ("score", "pathwise"):
                linear(kernel, gradient, arguments.updates)
    if only != "linear":
        for name in ("gambler", "n-chain"):
            for kernel in TABLES:
                table(name, kernel)


def linear(kernel: str, gradient: str, updates: int) -> None:
    env = LinearGaussian(horizon=120)
    policy = Policy.create(jax.random.PRNGKey(0), env.observation_size, (), env.action_space)
    weights = jnp.zeros_like(policy.network.weights[0])
    policy = eqx.tree_at(lambda p: p.network.weights, policy, (weights,))
    settings = AdversarySettings(kernel, gradient, updates=updates, batch_size=LINEAR_BATCH)
    found = attacked(env, policy, env.discount, settings, LINEAR_RADII, (64, 32), 2e-3)
    for i, signal in enumerate(("reward", "cost")):
        for radius, value in zip(LINEAR_RADII, found[i], strict=True):
            known = env.closed_form(radius=radius, signal=signal)
            value = value if signal == "reward" else -value
            share = (value - known.nominal) / (known.worst - known.nominal)
            show("linear-gaussian", kernel, gradient, signal, radius, share)


def table(name: str, kernel: str) -> None:
    model = hf.environments.MODELS[name]()
    policy_table = np.random.default_rng(0).dirichlet(np.ones(model.actions), model.states)
    exact = hf.evaluate(model, policy_table)
    kind = "gaussian" if kernel == "gaussian-mixture" else "outcome"
    env = TableSimulator(model, name=name, disturbance=kind)
    policy = Policy.create(jax.random.PRNGKey(0), model.states, (), env.action_space)
    logits = jnp.log(jnp.asarray(policy_table, jnp.float32))
    policy = eqx.tree_at(
        lambda p: (p.network.weights, p.network.biases),
        policy,
        ((logits,), (jnp.zeros(model.actions),)),
    )
    radius = float(np.max(model.uncertainty.radius))
    settings = AdversarySettings(kernel=kernel, **TABLES[kernel])
    found = attacked(env, policy, model.discount, settings, (radius,), (), 0.02)
    for i, worth in enumerate((exact.reward, *exact.constraints)):
        share = (found[i][0] - worth.nominal) / (worth.worst - worth.nominal)
        show(
            name,
            kernel,
            "-" if kernel == "tilted" else "score",
            ("reward", "utility")[i],
            radius,
            share,
        )


def attacked(
    env: Environment,
    policy: Policy,
    discount: float,
    settings: AdversarySettings,
    radii: tuple[float, ...],
    hidden: tuple[int, ...],
    critic_learning_rate: float,
) -> np.ndarray:
    """Return the value of each signal under the adversaries at each radius."""
    numbers = (jnp.full(2, each) for each in (discount, 0.95, discount))
    signals = Signal(jnp.arange(2), *numbers, bootstrap=True)
    length = played_length(env.horizon, (discount,), bootstrap=True)
    frozen = FrozenPolicy(env, policy, None, signals, length, hidden, critic_learning_rate)
    key = jax.random.PRNGKey(1)
    indices = jnp.repeat(jnp.arange(2), len(radii))
    _, values = train_attackers(
        frozen,
        watch(frozen, key),
        Targets(
            indices,
            jnp.tile(jnp.asarray(radii), 2),
            jnp.zeros(len(indices), bool),
            jax.random.split(key, len(indices)),
        ),
        settings,
        JUDGED_ON,
    )
    return np.asarray(values).reshape(2, len(radii))


def show(env: str, kernel: str, gradient: str, signal: str, radius: float, share: float) -> None:
    print(f"{env:<16} {kernel:<17} {gradient:<9} {signal:<8} {radius:<6g} {share:8.1%}", flush=True)


if __name__ == "__main__":
    start = time.perf_counter()
    main()
    print(f"{time.perf_counter() - start:.0f} s")
