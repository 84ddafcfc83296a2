"""RCPO (Algorithm 1 of the paper) with function approximation."""

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
    worst_case,
)
from holdfast.simulators.environment import Environment
from holdfast.simulators.steps.local_model import rcpo_step
from holdfast.simulators.training.learner import Learner, Plan


def iterate(plan: Plan, env: Environment, learner: Learner) -> tuple[Learner, Metrics]:
    """One iteration: nature first, then improvement and projection against what it found."""
    # The worst-case kernel of the reward, and that of every constraint.
    learner = worst_case(plan, env, learner)
    learner, samples = sample(plan, env, learner)
    learner, metrics = measure(plan, env, learner, samples)
    # Improve (13), project (16), by Taylor expansion (26); recover where the limits are out of reach.
    outlook = linearise(plan, learner, samples)
    step = rcpo_step(outlook.model)
    landing = land(plan, learner, outlook, step)
    learner = learn(plan, learner, samples, landing.policy, step)
    return learner, metrics | summarise(landing, step)


ALGORITHM = Algorithm("rcpo", iterate)
