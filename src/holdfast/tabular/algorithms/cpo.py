"""CPO: constrained policy optimisation (Achiam, Held, Tamar, Abbeel 2017), under the nominal kernel.

Improvement and constraints are one problem within the trust region, the nominal form of (8). If no
policy of the trust region meets the constraints, a recovery step restores them.
"""

from __future__ import annotations

import jax.numpy as jnp

from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.improve import improve_within
from holdfast.tabular.steps.recover import recover
from holdfast.tabular.steps.safeguard import safeguard
from holdfast.tabular.steps.tilted_policy import TiltedPolicies


def cpo(run: Run) -> None:
    """Improve the policy within the trust region and the linearised constraints at once."""
    delta = jnp.asarray(run.options.trust_region)
    for _ in range(run.options.iterations):
        nominal = run.nominal_case(run.policy)
        tilts = TiltedPolicies.at(
            run.policy, nominal, run.table.thresholds, run.table.step_share, run.options.step
        )
        update = improve_within(tilts, delta)
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
    "cpo", cpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
