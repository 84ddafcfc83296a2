"""PCPO: projection-based constrained policy optimisation (Yang, Rosca, Narasimhan, Ramadge 2020).

The steps of RCPO under the nominal kernel. The history still contains worst-case margins, which PCPO
does not use.
"""

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


def pcpo(run: Run) -> None:
    """Improve the policy within a trust region, then project it, both under the nominal kernel."""
    delta = jnp.asarray(run.options.trust_region)
    for _ in range(run.options.iterations):
        nominal = run.nominal_case(run.policy)
        tilts = TiltedPolicies.at(
            run.policy, nominal, run.table.thresholds, run.table.step_share, run.options.step
        )
        if run.options.step == "taylor":
            update = taylor_update(tilts, delta)
        else:
            half = improve(tilts, delta)
            update = project(tilts, half)
        recovered = not update.met
        if recovered:
            update = recover(tilts, delta)
        step = safeguard(run, run.nominal_case, nominal, update.policy, recovered=recovered)
        if run.is_current(step.policy):
            break
        run.record(
            step.policy,
            nominal=step.values,
            recovered=step.recovered,
            trust_region=step.trust_region,
        )
    run.fill()


ALGORITHM = Algorithm(
    "pcpo", pcpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
