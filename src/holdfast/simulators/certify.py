"""The verb `certify` for simulators: what a policy does not exceed, with a stated confidence."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.simulators.certificates.attack_plan import Callback
from holdfast.simulators.certificates.parameter_box import check_box
from holdfast.simulators.certificates.proof_options import ProofOptions
from holdfast.simulators.certificates.proving import Certifying
from holdfast.simulators.certificates.simulator_certificate import (
    SimulatorCertificate,
)
from holdfast.simulators.environment import Environment
from holdfast.simulators.failures import host_failures
from holdfast.simulators.policy.agent import Agent
from holdfast.simulators.policy.foreign import agents_of, policy_failures
from holdfast.simulators.stress import check_measurement, common_environment, frozen_agent


def certify(
    environment: Environment,
    policy: Any,
    *,
    radius: float | None = None,
    cost_limit: float | Sequence[float] | None = None,
    confidence: float = 0.95,
    box: Mapping[str, tuple[float, float]] | None = None,
    cost_range: Any = None,
    most_cost: float | Sequence[float] | None = None,
    reward_range: tuple[float, float] | None = None,
    episodes: int | None = None,
    draws: int | None = None,
    updates: int | None = None,
    repeats: int | None = None,
    deterministic: bool = False,
    trust: bool = False,
    seed: int = 0,
    callback: Callback | None = None,
) -> SimulatorCertificate:
    """Return what a policy's costs do not exceed in a simulator, with a stated confidence.

    The statement holds for every kernel within the radius, not only for those that were tried. It rests
    on fresh nominal episodes and on the declared ranges of the signals.

    *Drawn once an episode* (such as masses and frictions): no function is learned.

    *At every step*: the functions U, ν and λ of the bound are learned first. The simulator must be able
    to step again from a saved state.

    *Over a box of parameters*, with `box`: a limit on the share of the box in which an episode costs
    more than its limit. It says nothing about the worst case.

    Arguments:
        environment: the simulator.
        policy: an agent, or a policy of another library, as in `as_agent`.
        radius: radius of the KL ball around the disturbance, of each step or of the episode's draw. With
            0 the statement is about the nominal kernel alone.
        cost_limit: limit of each cost; by default the agent's or the environment's own.
        confidence: probability with which all statements hold together.
        box: lowest and highest value of each parameter, in place of `radius`.
        cost_range: lowest and highest value of each cost in one step; one pair for all, or one for each.
            By default the range that the environment declares. Values outside are cut.
        most_cost: cap on the cost of an episode; larger costs are clipped.
        reward_range: lowest and highest reward of one step, for a bound on the reward.
        episodes: fresh episodes, or draws from the box; default 20,000, outside JAX 400.
        draws: fresh disturbances at each visited state; default 64, outside JAX 8.
        updates: gradient steps that learn the functions; default 300, outside JAX 20.
        repeats: episodes that share a draw, the first state and the first action, where nature draws
            once an episode; default 1. Their mean counts: the noise of actions widens the bound less.
        deterministic: take the most likely action instead of drawing actions as in training.
        trust: whether code that is stored in the file of a policy may run.
        seed: seed of everything that is drawn.
        callback: called with the number of steps done, their total, and the next step.

    Raises:
        ValueError: an argument cannot be used; the message names it, before any work.
        FloatingPointError: the simulator returned a number that is not finite.
        TrainingError: a simulator or a policy outside JAX failed.

    Example:
        >>> import holdfast as hf
        >>> def right(observation):
        ...     return 1
        >>> env = hf.environments.TableSimulator(hf.environments.n_chain(nodes=3), horizon=3)
        >>> proof = hf.certify(
        ...     env, right, radius=0.02, cost_limit=-1, confidence=0.9, episodes=500, draws=8, updates=10
        ... )
        >>> proof.method, proof.verdict
        ('every step', 'holds')
    """
    agents = agents_of(policy, environment, cost_limit=_own(policy, cost_limit), trust=trust)
    if len(agents) != 1:
        raise ValueError(f"policy: expected one, got {len(agents)}")
    agent = agents[0]
    if isinstance(policy, Agent) and cost_limit is not None:
        agent = dataclasses.replace(agent, limits=tuple(np.ravel(cost_limit).astype(float)))
    env = common_environment((agent,), environment)
    options = ProofOptions(
        cost_range, most_cost, reward_range, episodes, draws, updates, repeats, deterministic
    )
    check_measurement(options.settings(env).episodes, seed, confidence)
    if (radius is None) == (box is None):
        raise ValueError("radius: give either radius or box")
    work = certifying(agent, env, options, confidence, seed, callback)
    with contextlib.closing(env), host_failures(env), policy_failures((agent,)):
        if box is not None:
            check_box(env, box)
            return work.box(box)
        ranges = options.ranges(env, radius)
        assert radius is not None
        return work.bound(float(radius), ranges)


def certifying(
    agent: Agent,
    env: Environment,
    options: ProofOptions,
    confidence: float,
    seed: int,
    callback: Callback | None = None,
) -> Certifying:
    """Return the work of a certificate of an agent.

    Raises:
        ValueError: the policy has a memory.
    """
    frozen, limits = frozen_agent(agent, env)
    if frozen.memory:
        raise ValueError(
            f"policy: a policy that remembers {frozen.memory} steps cannot be certified; use memory=0"
        )
    if (options.repeats or 1) > 1 and getattr(agent.policy, "has_memory", False):
        raise ValueError(
            "repeats: a policy with a memory of its own remembers the first action that it chose, and "
            "cannot take another one"
        )
    # Static: one way to act, one program.
    frozen = dataclasses.replace(frozen, deterministic=options.deterministic)
    settings = options.settings(env)
    return Certifying(env, agent, frozen, limits, settings, confidence, seed, callback)


def _own(policy: Any, cost_limit: Any) -> Any:
    return None if isinstance(policy, Agent) else cost_limit
