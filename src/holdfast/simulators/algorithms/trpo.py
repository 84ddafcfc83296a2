"""TRPO: improvement alone, under the nominal kernel and without limits (Schulman et al., 2015)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import improve, project
from holdfast.simulators.steps.trust_region import line_search, linearise
from holdfast.simulators.training.learner import Learner, Metrics, learn, measure, sample
from holdfast.simulators.training.settings import Plan


def trpo(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """Perform one iteration of TRPO: a step of the reward's natural gradient in the trust region."""
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    # An unconstrained plan linearises the reward alone, and the projection changes nothing.
    local = linearise(plan, learner, samples)
    step = project(local.model, improve(local.model))
    policy, update = line_search(learner.policy, local, step, plan.settings)
    return learn(plan, learner, samples, policy, step.recovered), metrics | update


ALGORITHM = Algorithm("trpo", trpo, robust=False, constrained=False)
