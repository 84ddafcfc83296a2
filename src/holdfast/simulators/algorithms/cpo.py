"""CPO: improvement and constraints in one step, under the nominal kernel (Achiam et al., 2017)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.algorithms._iteration import (
    Metrics,
    land,
    learn,
    linearise,
    measure,
    sample,
    summarise,
)
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import cpo_step
from holdfast.simulators.training.learner import Learner, Plan


def iterate(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """One iteration: equation (8) by Taylor expansion, from its own dual."""
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    outlook = linearise(plan, learner, samples)
    step = cpo_step(outlook.model)
    landing = land(plan, learner, outlook, step)
    learner = learn(plan, learner, samples, landing.policy, step)
    return learner, metrics | summarise(landing, step)


ALGORITHM = Algorithm("cpo", iterate, robust=False)
