"""Five simulators whose worst case is known, and many independent bounds of each.

U, ν and λ are learned once. The repetitions repeat the choice of α and the fresh episodes, which are
independent parts of one large sample. `whole_certificates` repeats everything.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.simulators.certificates.known_simulators import (
    ClippedLinear,
    OnceDrawn,
    RareHeavy,
    worst_mean,
)

import holdfast as hf
from holdfast.environments import TableSimulator
from holdfast.simulators.certificates.attack import watch
from holdfast.simulators.certificates.bounded_mean import divergence_bound
from holdfast.simulators.certificates.bounded_signal import BoundedSignal, SignalRange
from holdfast.simulators.certificates.draw_bound import drawn_episodes, halves
from holdfast.simulators.certificates.proving import BoundSettings, learned_functions, step_limit
from holdfast.simulators.certificates.step_bound import Bounding, first_values, measured_excess
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.stress import frozen_agent
from holdfast.simulators.training.settings import Settings

RISK = 0.1
# Repetitions whose episodes are simulated side by side: 16 fresh draws of 100,000 episodes take 1 GB.
_AT_ONCE = 250


@dataclasses.dataclass(frozen=True)
class Case:
    """A simulator with a random policy that ignores the state, and its worst case."""

    env: Any
    radius: float
    truth: float

    @property
    def agent(self):
        key, space = jax.random.PRNGKey(0), self.env.action_space
        policy = Policy.create(key, self.env.observation_size, (), space)
        settings = Settings(hidden=(), cost_limit=(1.0,), discount=0.99)
        return Agent(policy, None, "random", settings, (1.0,), 0, self.env, self.env.description())

    @property
    def signal(self):
        given = SignalRange(*self.env.signal_ranges[1])
        return BoundedSignal.create(1, given, 1.0, self.env.horizon)


def case(name):
    """Return one of the five cases."""
    if name in ("gambler", "n-chain"):
        model = hf.environments.gambler() if name == "gambler" else hf.environments.n_chain(nodes=5)
        env = TableSimulator(model, name=name, horizon=4)
        return Case(env, 0.05, table_worst(env, np.asarray(model.initial), 0.05))
    env, radius = {
        "clipped-linear": (ClippedLinear(horizon=4), 0.05),
        "once-drawn": (OnceDrawn(), 0.1),
        "rare-heavy": (RareHeavy(horizon=2), 0.02),
    }[name]
    return Case(env, radius, env.worst(radius))


NAMES = ("gambler", "n-chain", "clipped-linear", "once-drawn", "rare-heavy")


def table_worst(env, initial, radius):
    """Return the worst cost of random actions on a table, by backward induction."""
    rows, cost = np.asarray(env.probabilities, float), np.asarray(env.costs[0], float)
    following = np.asarray(env.successors)
    ends, value = np.asarray(env.ends), np.zeros(len(rows))
    for _ in range(env.horizon):
        new = np.zeros(cost.shape)
        for place in np.ndindex(cost.shape):
            seen = rows[place] > 0
            y = cost[place] + np.where(ends, 0.0, value)[following[place][seen]]
            new[place] = worst_mean(y, rows[place][seen] / rows[place][seen].sum(), radius)
        value = np.where(ends, 0.0, new.mean(1))
    return float(initial @ value)


def bounds(case, repetitions, episodes):
    """Return one bound per repetition, each with risk 0.1."""
    frozen, _ = frozen_agent(case.agent, case.env)
    frozen = dataclasses.replace(frozen, deterministic=False)
    bound = _once if case.env.draws_once else _every_step
    return bound(case, frozen, repetitions, episodes)


def _parts(draw, repetitions, episodes, key):
    """Return the numbers of every repetition."""
    sizes = [
        len(each) for each in np.array_split(np.arange(repetitions), -(-repetitions // _AT_ONCE))
    ]
    found = [
        np.asarray(draw(key, max(sizes) * episodes), float)[: size * episodes]
        for size, key in zip(sizes, jax.random.split(key, len(sizes)), strict=True)
    ]
    return np.concatenate(found).reshape(repetitions, episodes)


def _once(case, frozen, repetitions, episodes):
    signal = case.signal
    highest = float(signal.total)

    def draw(key, count):
        drawn = drawn_episodes(frozen, signal, key, count)
        assert not bool(drawn.heard_later)
        return drawn.cost

    costs = _parts(draw, repetitions, episodes, jax.random.PRNGKey(0))
    return [
        divergence_bound(halves(c), highest, case.radius, RISK)[0] + signal.offset for c in costs
    ]


def _every_step(case, frozen, repetitions, episodes):
    signal = case.signal
    work = Bounding(frozen, signal, jnp.float32(case.radius), 4, 1)
    key = jax.random.PRNGKey(1)
    sizes = BoundSettings(episodes=episodes, updates=60)
    functions, _ = learned_functions(work, watch(frozen, key), sizes, RISK, key)
    fresh = work._replace(draws=16)

    def draws(key, count):
        return measured_excess(fresh, functions, key, count).w

    def starts(key, count):
        return first_values(fresh, functions, key, count)

    w = _parts(draws, repetitions, episodes, jax.random.PRNGKey(7))
    first = _parts(starts, repetitions, episodes, jax.random.PRNGKey(8))
    scale = float(signal.total), float(functions.highest(signal.total))
    assert w.max() <= scale[1]
    budget = case.radius * work.steps
    return [
        step_limit(each, start, scale, budget, RISK)[0] + signal.offset
        for each, start in zip(w, first, strict=True)
    ]


def whole_certificates(case, repetitions, episodes):
    """Return the bounds of whole calls of `certify`, with functions learned anew."""
    sizes = {"episodes": episodes, "draws": 16, "updates": 60}
    return [
        hf.certify(
            case.env, case.agent, radius=case.radius, confidence=1 - RISK, seed=seed, **sizes
        ).costs[0].upper
        for seed in range(repetitions)
    ]  # fmt: skip
