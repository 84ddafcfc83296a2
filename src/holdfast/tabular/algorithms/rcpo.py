"""RCPO: robust constrained policy optimisation (Sun, He, Miao, Zou, ICML 2024), Algorithm 1."""

from __future__ import annotations

import jax.numpy as jnp

from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.improve import improve
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.recover import recover
from holdfast.tabular.steps.safeguard import safeguard
from holdfast.tabular.steps.taylor import taylor_update
from holdfast.tabular.steps.tilted_policy import TiltedPolicies


def rcpo(run: Run) -> None:
    """Run Algorithm 1: robust policy improvement, then projection.

    Line numbers count the input of Algorithm 1 as line 1. Two steps are not in the paper: the recovery
    step, used if no policy meets the linearised constraints, and the safeguard, which keeps a feasible
    policy feasible.
    """
    delta = jnp.asarray(run.options.trust_region)
    for _ in range(run.options.iterations):
        # Lines 3 to 9: the worst-case kernels p_k^r of the reward and p_k^c of every constraint, by
        # default (10) and (15), and the advantages and occupancies of π_k under each. They were
        # computed when π_k was recorded.
        worst = run.worst_case(run.policy)
        tilts = TiltedPolicies.at(
            run.policy, worst, run.table.thresholds, run.table.step_share, run.options.step
        )
        if run.options.step == "taylor":
            update = taylor_update(tilts, delta)  # (26), the practical form of lines 10 and 11
        else:
            half = improve(tilts, delta)  # line 10: coefficients of π_{k+½}, (13)
            update = project(tilts, half)  # line 11: π_{k+1}, (16)
        recovered = not update.met
        if recovered:
            update = recover(tilts, delta)
        step = safeguard(run, run.worst_case, worst, update.policy, recovered=recovered)
        if run.is_current(step.policy):
            break
        run.record(
            step.policy,
            worst=step.values,
            recovered=step.recovered,
            trust_region=step.trust_region,
        )
    run.fill()


ALGORITHM = Algorithm("rcpo", rcpo, accepts=("trust_region", "step", "safeguard", "bounds"))
