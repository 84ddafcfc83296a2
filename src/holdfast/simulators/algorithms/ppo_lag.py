"""PPO-Lagrangian: clipped steps on the Lagrangian, whose multipliers follow the limits."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import optax

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.steps.clipped import ClippedSettings, clipped_ascent, first_optimiser
from holdfast.simulators.steps.multipliers import Multipliers, MultiplierSettings
from holdfast.simulators.steps.trust_region import gather_evidence
from holdfast.simulators.training.learner import (
    Learner,
    Metrics,
    excess,
    learn,
    measure,
    sample,
    worst_case_kernels,
)
from holdfast.simulators.training.settings import Plan


@dataclasses.dataclass(frozen=True)
class PPOLag(ClippedSettings, MultiplierSettings):
    """Settings of `ppo-lag`: those of the clipped ascent and of the multipliers.

    `trust_region` and the line search are not used: `target_kl` and `clip` bound the update.

    Arguments:
        multiplier: initial multiplier of every cost, in standard deviations of the reward's advantages
            per unit of the cost.
        multiplier_learning_rate: Adam learning rate of the multipliers.
        clip: largest relative change of an action's density that the surrogate rewards.
        learning_rate: Adam learning rate of the policy.
        epochs: largest number of passes over the batch.
        minibatches: parts of a pass.
        target_kl: KL divergence after which no further pass begins.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.simulators.algorithms.ppo_lag import PPOLag
        >>> settings = PPOLag(epochs=2, minibatches=4)
        >>> settings.clip, settings.multiplier
        (0.2, 0.001)
        >>> model = hf.environments.n_chain(nodes=5)
        >>> small = {"limit_on": "discounted", "iterations": 1, "batch_size": 300}
        >>> hf.train(model, "ppo-lag", algorithm_settings=settings, **small).algorithm
        'ppo-lag'
    """

    def __post_init__(self) -> None:
        ClippedSettings.__post_init__(self)
        MultiplierSettings.__post_init__(self)


class PPOLagState(NamedTuple):
    """The multipliers, and the state of the policy's optimiser."""

    multipliers: Multipliers
    optimiser: optax.OptState


def ppo_lag(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of PPO-Lagrangian; with a radius, each signal under its own adversary.

    The surrogate of V_r + Σλ_i·V_i is clipped signal by signal, since each has its own batch (Ray,
    Achiam and Amodei, Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019).
    """
    settings: PPOLag = plan.algorithm_settings
    if plan.robust:
        learner = worst_case_kernels(plan, env, learner)
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    evidence = gather_evidence(plan, learner, samples)
    above = excess(plan, learner, samples)
    multipliers = learner.own.multipliers.after(above, evidence[0], settings)
    start, shares = (learner.policy, learner.own.optimiser), multipliers.shares(evidence)
    policy, optimiser, update = clipped_ascent(start, evidence, shares, settings)
    learner = dataclasses.replace(learner, own=PPOLagState(multipliers, optimiser))
    metrics |= {"multipliers": multipliers.values}
    return learn(plan, learner, samples, policy, keep_limits=True), metrics | update


def first_state(plan: Plan, policy: Policy) -> PPOLagState:
    """Return the initial multipliers and the optimiser of the policy."""
    settings: PPOLag = plan.algorithm_settings
    multipliers = Multipliers.create(len(plan.discounts) - 1, settings)
    return PPOLagState(multipliers, first_optimiser(policy, settings))


ALGORITHM = Algorithm(
    "ppo-lag", ppo_lag, settings=PPOLag, first_state=first_state, nominal_at_zero=True
)
