"""RCPO, Algorithm 1 of the paper, with function approximation."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import improve, project, recover_unless
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
    """Perform one iteration of RCPO and return the next state with the metrics of the current policy.

    `training.learner.iterations` calls it K times.
    Line numbers count the input of Algorithm 1 as line 1. Three parts are not in the paper: the recovery
    step, used if no step in the trust region meets the linearised constraints; the line search; and the
    inner limits, which `learn` moves such that the measured costs settle below the limits.
    """
    # Lines 3 to 8: the worst-case kernels p_k^r of the reward and p_k^c of every constraint, by (22)
    # and (24).
    learner = worst_case_kernels(plan, env, learner)
    # Line 9: a batch under each kernel gives values, advantages and occupancies.
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    # Lines 10 and 11 in their practical form (26), from g and h of (20), H of (21)
    # and b = d − V_c.
    local = linearise(plan, learner, samples)
    half = improve(local.model)  # coefficients of π_{k+½}: (13) by Taylor expansion, (23)
    step = project(local.model, half)  # π_{k+1}: (16) by Taylor expansion, (25)
    step = recover_unless(local.recoverable, local.model, step)
    policy, update = line_search(learner.policy, local, step, plan.settings)
    return learn(plan, learner, samples, policy, step.recovered), metrics | update


ALGORITHM = Algorithm("rcpo", rcpo)
