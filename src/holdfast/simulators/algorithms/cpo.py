"""CPO: improvement within the constraints, under the nominal kernel (Achiam et al., 2017)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import improve_within, recover_unless
from holdfast.simulators.steps.trust_region import line_search, linearise
from holdfast.simulators.training.learner import Learner, Metrics, learn, measure, sample
from holdfast.simulators.training.settings import Plan


def cpo(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of CPO: the Taylor expansion of equation (8), solved exactly."""
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    local = linearise(plan, learner, samples)
    step = improve_within(local.model)
    step = recover_unless(step.met & local.recoverable, local.model, step)
    policy, update = line_search(learner.policy, local, step, plan.settings)
    return learn(plan, learner, samples, policy, step.recovered), metrics | update


ALGORITHM = Algorithm("cpo", cpo, robust=False)
