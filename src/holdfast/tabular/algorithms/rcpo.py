"""RCPO: robust constrained policy optimisation (Sun, He, Miao, Zou, ICML 2024), Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.improve import improve
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.recover import recover
from holdfast.tabular.steps.safeguard import safeguard
from holdfast.tabular.steps.taylor import taylor_update
from holdfast.tabular.steps.tilted_policy import PolicyUpdate, TiltedPolicies


def rcpo(run: Run) -> None:
    """Run Algorithm 1: robust policy improvement, then projection.

    The numbers of lines count the input of Algorithm 1 as line 1. Two things are not in the paper: the
    recovery step, where no policy meets the linearised constraints, and the safeguard, which keeps a
    feasible policy feasible.
    """
    iterate(run, improve_and_project, robust=True)


def improve_and_project(tilts: TiltedPolicies, delta: Float[Array, ""]) -> PolicyUpdate:
    """Return π_{k+1} of lines 10 and 11: improvement within the trust region, then projection."""
    if tilts.step == "taylor":
        return taylor_update(tilts, delta)  # (26), the practical form of both lines
    half = improve(tilts, delta)  # line 10: π_{k+½}, equation (13)
    return project(tilts, half)  # line 11: π_{k+1}, equation (16)


def iterate(
    run: Run,
    update: Callable[[TiltedPolicies, Float[Array, ""]], PolicyUpdate],
    *,
    robust: bool,
) -> None:
    """Repeat a trust-region update with recovery and safeguard until the policy stops changing.

    Arguments:
        run: the run.
        update: function of the tilts of π_k and δ that returns the proposed policy.
        robust: whether the update uses worst-case values, or nominal ones.
    """
    delta = jnp.asarray(run.options.trust_region)
    name, evaluate = ("worst", run.worst_case) if robust else ("nominal", run.nominal_case)
    for _ in range(run.options.iterations):
        # Lines 3 to 9: the worst-case kernels p_k^r of the reward and p_k^c of every constraint, (10)
        # and (15), and the advantages and occupancies of π_k under each.
        values = evaluate(run.policy)
        tilts = TiltedPolicies.at(
            run.policy, values, run.table.thresholds, run.table.discount, run.options.step
        )
        proposal = update(tilts, delta)
        recovered = not proposal.met
        if recovered:
            proposal = recover(tilts, delta)
        step = safeguard(run, evaluate, values, proposal.policy, recovered=recovered)
        if run.is_current(step.policy):
            break
        run.record(
            step.policy,
            recovered=step.recovered,
            trust_region=step.trust_region,
            **{name: step.values},
        )
    run.fill()


ALGORITHM = Algorithm("rcpo", rcpo, accepts=("trust_region", "step", "safeguard", "bounds"))
