"""The arguments of `train` that are not settings: seeds, algorithm, callback and start."""

from __future__ import annotations

import hashlib
import inspect
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from holdfast._support.arguments import check_whole_number
from holdfast.registry import SIMULATOR_ALGORITHMS, Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.networks import layers
from holdfast.simulators.training.learner import Learner
from holdfast.simulators.training.settings import MOST_SEEDS, Settings

AnyAlgorithm = str | Algorithm | Callable[..., Any]
# A callback is called with rows, or with rows and agents, and stops the run by returning True.
# `list.extend` is a valid callback: it returns None.
Callback = Callable[..., object]


def read_seeds(seed: int, seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the seeds of a run.

    Raises:
        ValueError: a seed is not a whole number under 2**32, or seeds repeat.
    """
    if seeds is not None and seed != 0:
        raise ValueError("seed: give either seed or seeds, not both")
    if isinstance(seeds, numbers.Integral):
        check_whole_number("seeds", seeds, least=1)
        if seeds > MOST_SEEDS:
            raise ValueError(f"seeds: expected at most {MOST_SEEDS:,}, got {seeds:,}")
        return tuple(range(int(seeds)))
    if seeds is None:
        seeds = (seed,)
    elif isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise ValueError(f"seeds: expected a whole number or a list of them, got {seeds!r}")
    chosen = tuple(seeds)
    for each in chosen:
        check_whole_number("seed", each, least=0)
        if each >= 2**32:  # keys are made of 32 bits
            raise ValueError(f"seed: expected a whole number under 2**32, got {each}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"seeds: expected at least one, all different, got {list(chosen)}")
    return tuple(int(each) for each in chosen)


def find_algorithm(given: AnyAlgorithm) -> Algorithm:
    """Return the algorithm with this name, or made of this function.

    Raises:
        ValueError: there is none.
    """
    if isinstance(given, str):
        given = SIMULATOR_ALGORITHMS.find(given)
    if isinstance(given, Algorithm):
        return given
    if not callable(given):
        raise ValueError(f"algorithm: expected a name, an Algorithm or a function, got {given!r}")
    return Algorithm(getattr(given, "__name__", type(given).__name__), given)


def takes_agents(callback: Callback) -> bool:
    """Return whether a callback has two arguments without default values."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(callback).parameters.values()
    except ValueError:  # some functions written in C have no signature
        return False
    return sum(each.kind in kinds and each.default is each.empty for each in parameters) == 2


def read_start(
    start: Agent | Sequence[Agent] | None, env: Environment, settings: Settings, seeds: int
) -> tuple[Agent, ...]:
    """Return the agent from which each seed starts, or nothing.

    Raises:
        ValueError: an agent has other spaces, layers or inputs than the run; the message says which.
    """
    if start is None:
        return ()
    agents = (start,) * seeds if isinstance(start, Agent) else tuple(start)
    if len(agents) != seeds:
        raise ValueError(
            f"start: expected one agent or one for each of {seeds} seeds, got {agents}"
        )
    for agent in agents:
        if not isinstance(agent, Agent):
            raise ValueError(f"start: expected an Agent, got {agent!r}")
        try:
            agent.check_fits(env, agent.label)
        except ValueError as error:
            raise ValueError(f"start: {str(error).removeprefix('environment: ')}") from error
        had = tuple(len(bias) for bias in agent.policy.network.biases[:-1])
        if had != layers(env, settings.hidden):
            raise ValueError(f"start: {agent.label} has hidden layers {had}, got {settings.hidden}")
        normalises = settings.normalise and not env.is_one_hot
        if (agent.observations is not None) != normalises:
            raise ValueError(f"start: {agent.label} was trained with normalise={not normalises}")
    return agents


def inherited(start: Agent | Sequence[Agent] | None) -> dict[str, Any]:
    """Return the settings that a run takes over from the agent it starts from, unless they are given."""
    agents = [start] if isinstance(start, Agent) else list(start or ())
    if not agents or not isinstance(agents[0], Agent):
        return {}
    return {name: getattr(agents[0].settings, name) for name in ("hidden", "normalise")}


def start_from(learners: Learner, agents: Sequence[Agent]) -> Learner:
    """Return the states with the agents' policies and normalisers of observations, seed by seed."""
    given = [(agent.policy, agent.observations) for agent in agents]
    policies, observations = jax.tree.map(lambda *leaves: jnp.stack(leaves), *given)
    learners = eqx.tree_at(lambda each: each.policy, learners, policies)
    if observations is None:
        return learners
    return eqx.tree_at(lambda each: each.sight.observations, learners, observations)


def fingerprints(agents: Sequence[Agent]) -> list[str]:
    """Return a digest of each agent, by which a run that continues recognises its start."""
    return [hashlib.sha256(agent.to_bytes()).hexdigest() for agent in agents]
