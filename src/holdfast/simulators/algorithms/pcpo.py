"""PCPO: improvement, then projection, under the nominal kernel (Yang et al., 2020)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import improve, project, recover_unless
from holdfast.simulators.steps.trust_region import line_search, linearise
from holdfast.simulators.training.learner import Learner, Metrics, learn, measure, sample
from holdfast.simulators.training.settings import Plan


def pcpo(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of PCPO: RCPO's iteration without worst-case kernels."""
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    local = linearise(plan, learner, samples)
    step = project(local.model, improve(local.model))
    step = recover_unless(local.recoverable, local.model, step)
    policy, update = line_search(learner.policy, local, step, plan.settings)
    return learn(plan, learner, samples, policy, step.recovered), metrics | update


ALGORITHM = Algorithm("pcpo", pcpo, robust=False)
