"""RCPO, Algorithm 1 of the paper, with function approximation."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import improve, is_recoverable, project, recover_unless
from holdfast.simulators.steps.trust_region import line_search, linearise
from holdfast.simulators.training.learner import (
    Learner,
    Metrics,
    learn,
    measure,
    sample,
    worst_case_kernels,
)
from holdfast.simulators.training.settings import Plan


def rcpo(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of RCPO and return the next state with the metrics of the current policy."""
    # The worst-case kernels p_k^r and p_k^c of the reward and of every constraint.
    learner = worst_case_kernels(plan, env, learner)
    # A batch under each kernel: values V, advantages A and visitation weights d.
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    # g, h, H and b of (20) and (21).
    local = linearise(plan, learner, samples)
    # The Taylor update (26): improve (13), then project (16).
    improved = improve(local.model)
    step = project(local.model, improved)
    # Recovery, if no step in the trust region is feasible.
    step = recover_unless(is_recoverable(local.model), local.model, step)
    landing = line_search(learner.policy, local, step, plan.settings)
    learner = learn(plan, learner, samples, landing.policy, step.recovered)
    return learner, metrics | landing.metrics(step)


ALGORITHM = Algorithm("rcpo", rcpo)
