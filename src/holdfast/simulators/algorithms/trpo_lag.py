"""TRPO-Lagrangian: trust-region steps on the Lagrangian, whose multipliers follow the limits."""

from __future__ import annotations

import dataclasses

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.policy.networks import Policy
from holdfast.simulators.steps.local_model import improve_along
from holdfast.simulators.steps.multipliers import Multipliers, MultiplierSettings
from holdfast.simulators.steps.trust_region import line_search, linearise
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


class TRPOLag(MultiplierSettings):
    """Settings of `trpo-lag`: those of the multipliers.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.simulators.algorithms.trpo_lag import TRPOLag
        >>> faster = TRPOLag(multiplier_learning_rate=0.1)
        >>> model = hf.environments.n_chain(nodes=5)
        >>> settings = {"limit_on": "discounted", "iterations": 1, "batch_size": 300}
        >>> hf.train(model, "trpo-lag", algorithm_settings=faster, **settings).algorithm
        'trpo-lag'
    """


def trpo_lag(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of TRPO-Lagrangian; with a radius, each signal under its own adversary.

    The step is the natural gradient of V_r + Σλ_i·V_i in the trust region, scaled to its boundary
    (Ray, Achiam and Amodei, Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019).
    """
    settings: TRPOLag = plan.algorithm_settings
    if plan.robust:
        learner = worst_case_kernels(plan, env, learner)
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    local = linearise(plan, learner, samples)
    above = excess(plan, learner, samples)
    multipliers = learner.own.after(above, local.evidence[0], settings)
    shares = multipliers.shares(local.evidence)
    step = improve_along(local.model, shares)
    policy, update = line_search(
        learner.policy, local, step, plan.settings, lambda gains: shares @ gains > 0
    )
    learner = dataclasses.replace(learner, own=multipliers)
    metrics |= {"multipliers": multipliers.values}
    return learn(plan, learner, samples, policy, keep_limits=True), metrics | update


def first_state(plan: Plan, policy: Policy) -> Multipliers:
    """Return the initial multipliers."""
    del policy
    return Multipliers.create(len(plan.discounts) - 1, plan.algorithm_settings)


ALGORITHM = Algorithm(
    "trpo-lag", trpo_lag, settings=TRPOLag, first_state=first_state, nominal_at_zero=True
)
