"""The bounds from above against worst cases that are known.

U, ν and λ are learned once. The repetitions repeat the choice of α and the fresh episodes, which are
independent parts of one large sample.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom
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
from holdfast.simulators.stress import frozen_agent

RISK = 0.1
FULL = os.environ.get("HOLDFAST_CAMPAIGN") == "1"
REPETITIONS, EPISODES = (1000, 400) if FULL else (50, 200)


def check_coverage(bounds, truth):
    """Fail if more bounds are below the truth than the risk allows; return their mean."""
    below = sum(bound < truth - 1e-6 for bound in bounds)
    assert below <= binom.ppf(0.999, len(bounds), RISK)
    return float(np.mean(bounds))


def parts(values):
    return np.split(np.asarray(values, float), REPETITIONS)


def step_bounds(env, policy, radius, signal, index=1):
    """Return one bound at every step per repetition."""
    agent = hf.as_agent(policy, env, cost_limit=1.0)
    frozen, _ = frozen_agent(agent, env, True)
    work = Bounding(frozen, signal, jnp.float32(radius), 4, 1)
    key = jax.random.PRNGKey(index)
    sight = watch(frozen, key)
    functions, _ = learned_functions(
        work, sight, BoundSettings(episodes=EPISODES, updates=60), RISK, key
    )
    fresh = work._replace(draws=16)
    count = REPETITIONS * EPISODES
    w = parts(measured_excess(fresh, functions, jax.random.PRNGKey(7), count).w)
    starts = parts(first_values(fresh, functions, jax.random.PRNGKey(8), count))
    scale = float(signal.total), float(functions.highest(signal.total))
    budget = radius * work.steps
    assert np.concatenate(w).max() <= scale[1]
    return [
        step_limit(each, start, scale, budget, RISK)[0] + signal.offset
        for each, start in zip(w, starts, strict=True)
    ]


@pytest.mark.campaign
def test_once_an_episode_with_a_nature_that_sees_the_first_state():
    env, radius = OnceDrawn(), 0.1
    frozen, _ = frozen_agent(hf.as_agent(lambda seen: 0, env, cost_limit=1.0), env, True)
    signal = BoundedSignal.create(1, SignalRange(0.0, 1.0, 1.0), 1.0, 2)
    drawn = drawn_episodes(frozen, signal, jax.random.PRNGKey(0), REPETITIONS * EPISODES)
    assert not bool(drawn.heard_later)
    bounds = [divergence_bound(halves(c), 1.0, radius, RISK)[0] for c in parts(drawn.cost)]
    mean = check_coverage(bounds, env.worst(radius))
    assert mean < 1.5 * env.worst(radius)


@pytest.mark.campaign
def test_at_every_step_with_rare_heavy_costs():
    env, radius = RareHeavy(horizon=2), 0.02
    signal = BoundedSignal.create(1, SignalRange(0.0, 5.0), 1.0, 2)
    check_coverage(step_bounds(env, lambda seen: 0, radius, signal), env.worst(radius))


@pytest.mark.long
@pytest.mark.parametrize("name", ["gambler", "n-chain"])
def test_at_every_step_on_tables(name):
    model = hf.environments.gambler() if name == "gambler" else hf.environments.n_chain(nodes=5)
    env, radius, horizon = TableSimulator(model, name=name, horizon=4), 0.05, 4
    env = TableSimulator(model, name=name, horizon=horizon)
    signal = BoundedSignal.create(1, SignalRange(*env.signal_ranges[1]), 1.0, horizon)
    bounds = step_bounds(env, lambda seen: 1, radius, signal)
    check_coverage(bounds, table_worst(env, model, 1, radius, horizon))


@pytest.mark.long
def test_at_every_step_on_a_clipped_linear_system():
    env, radius = ClippedLinear(horizon=4), 0.05
    truth, finer = env.worst(radius), env.worst(radius, grid=801)
    assert truth == pytest.approx(finer, abs=1e-3)
    signal = BoundedSignal.create(1, SignalRange(0.0, 1.0), 1.0, 4)
    check_coverage(step_bounds(env, lambda seen: 0, radius, signal), truth)


def table_worst(env, model, action, radius, horizon):
    """Return the worst cost of a constant action on a table, by backward induction."""
    rows, cost = np.asarray(env.probabilities, float)[:, action], np.asarray(env.costs[0], float)
    lists = env.successors is not None
    following = np.asarray(env.successors)[:, action] if lists else None
    ends, value = np.asarray(env.ends), np.zeros(len(rows))
    for _ in range(horizon):
        after = np.where(ends, 0.0, value)
        new = np.zeros(len(rows))
        for s, row in enumerate(rows):
            seen = row > 0
            there = following[s][seen] if lists else np.flatnonzero(seen)
            y = cost[s, action] + after[there]
            new[s] = worst_mean(y, row[seen] / row[seen].sum(), radius)
        value = np.where(ends, 0.0, new)
    return float(np.asarray(model.initial) @ value)
