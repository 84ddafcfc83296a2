"""The safeguard: every iterate after the first feasible one is feasible and loses no reward.

The projection (16) is onto linearised constraints, so its policy may violate the true ones. The exact
margin of a table is cheap to compute. The safeguard uses it to accept, in this order:

1. The proposed step. If it is not feasible, it is linearised at the new policy and projected again.
2. A step of equation (8), which can move along an active constraint, with smaller and smaller trust
   regions. Worst-case values have kinks where the worst-case kernel changes, so kernels that refuted
   a step are added to the linearisation as cuts.
3. The current policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.compilation import compiled
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import values_under, worst_kernels
from holdfast.tabular.run import Run
from holdfast.tabular.steps.improve import improve_within
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.tilted_policy import TiltedPolicies

# Largest number of repeated projections. Like Newton's method they converge quadratically or not at all.
_REPROJECTIONS = 6
# A refused step is tried again with this share of its trust region. A KL of δ/4 is a step of half the
# length.
_SHRINK = 0.25
# Trust region at which the search ends: a step of length √δ ≈ 3e-6 gains less than `_LEAST_GAIN`.
_LEAST_TRUST_REGION = 1e-11
# Least gain of a step of (8), relative to max(1, |reward|): ten times the error of an evaluation.
_LEAST_GAIN = 1e-9
# Number of refused policies whose worst-case kernels are kept as cuts. Each adds m + 1 constraints
# to (8).
_CUTS = 3
# Cuts whose advantages agree to this share of the largest are the same: kernels are accurate to 1e-9.
_SAME_CUT = 1e-9
# Relative accuracy of the KL of a step of (8), which need not use all of its trust region.
_KL_ACCURACY = 0.1
# Projections aim inside the constraints by four times the evaluation's error and this, relative to
# 1 + |threshold|. Otherwise the last one ends just outside.
_INSIDE = 1e-10

Evaluate = Callable[[Array, PolicyValues | None], PolicyValues]


class AcceptedStep(NamedTuple):
    """The result of the safeguard.

    Attributes:
        policy: the next policy; the current one if no better step was found.
        values: its values.
        recovered: whether it is a recovery step.
        trust_region: the trust region that was used.
    """

    policy: Float[Array, "S A"]
    values: PolicyValues
    recovered: bool
    trust_region: float


def safeguard(
    run: Run,
    evaluate: Evaluate,
    values: PolicyValues,
    proposed: Float[Array, "S A"],
    *,
    recovered: bool,
) -> AcceptedStep:
    """Return the proposed step, or the step that replaces it.

    With `solve(..., safeguard=None)` the proposed step is returned unchanged.

    Arguments:
        run: the run, whose current policy is π_k.
        evaluate: `run.worst_case`, or `run.nominal_case` for algorithms that use the nominal kernel.
        values: values of π_k.
        proposed: the algorithm's own π_{k+1}, (S, A).
        recovered: whether it is a recovery step.
    """
    seen = evaluate(proposed, values)
    plain = AcceptedStep(proposed, seen, recovered, run.options.trust_region)
    if run.options.safeguard is None:
        return plain
    moved, seen = _project_until_feasible(run, evaluate, proposed, seen)
    plain = plain._replace(policy=moved, values=seen)
    if not run.is_feasible(values):
        return plain
    now, error = _reward(values), float(np.asarray(values.error)[0])
    if run.is_feasible(seen) and _reward(seen) >= now - error:
        return plain
    return _replacement(run, evaluate, values, seen)


def _replacement(
    run: Run, evaluate: Evaluate, values: PolicyValues, seen: PolicyValues
) -> AcceptedStep:
    """Return a step of (8) that is feasible and gains reward, or the current policy."""
    now, error = _reward(values), float(np.asarray(values.error)[0])
    worthwhile = now + max(error, _LEAST_GAIN * max(1.0, abs(now)))
    bundle = CutBundle.at(values, run.table.thresholds)
    delta = _first_trust_region(run)
    while delta >= _LEAST_TRUST_REGION:
        for _ in range(_CUTS):
            added = jnp.array(False)
            if seen.multipliers is not None:  # a worst case: its kernel depends on the policy
                kernels = worst_kernels(run.table, seen)
                bundle, added = bundle.cut(values_under(run.table, run.policy, kernels, seen))
            tilts = TiltedPolicies.at(
                run.policy, bundle.values, bundle.thresholds, run.table.step_share, run.options.step
            )
            moved = improve_within(tilts, jnp.asarray(delta), _KL_ACCURACY).policy
            moved, seen = _project_until_feasible(run, evaluate, moved, evaluate(moved, values))
            if run.is_feasible(seen) and _reward(seen) >= worthwhile:
                return AcceptedStep(moved, seen, False, delta)
            if not added:
                break
        delta *= _SHRINK
    return AcceptedStep(run.policy, values, False, delta)


def _first_trust_region(run: Run) -> float:
    """Return the trust region to start from: one shrink above that of the last replaced step."""
    largest = run.options.trust_region
    replaced = [t for t in (row["trust_region"] for row in run.rows) if 0 < t < largest]
    return min(largest, replaced[-1] / _SHRINK) if replaced else largest


def _project_until_feasible(
    run: Run, evaluate: Evaluate, policy: Array, values: PolicyValues
) -> tuple[Array, PolicyValues]:
    """Return the policy after repeated projections, each linearised at the policy before it."""
    best = policy, values
    for _ in range(_REPROJECTIONS):
        if run.is_feasible(values):
            break
        error = np.asarray(values.error)[1:]
        inside = np.where(np.isfinite(error), 4 * error, 0.0) + _INSIDE * (
            1 + np.abs(run.thresholds)
        )
        thresholds = jnp.asarray(run.thresholds + inside)
        tilts = TiltedPolicies.at(policy, values, thresholds, run.table.step_share, "exact")
        policy = project(tilts, jnp.zeros(len(tilts.features))).policy
        values = evaluate(policy, values)
        if run.margins(values).min() > run.margins(best[1]).min():
            best = policy, values
    return best


def _reward(values: PolicyValues) -> float:
    return float(np.asarray(values.value)[0])


class CutBundle(eqx.Module):
    """The worst-case values of a policy, and its values under kernels that refuted a step, the cuts.

    Under each of these kernels the constraints must hold and the reward must not fall. The number of
    cuts is fixed, so that all bundles share one compiled program; an empty cut has thresholds of −inf.

    Attributes:
        values: signals of the policy, then those of every cut.
        thresholds: thresholds of all signals but the first.
        next_cut: number of cuts made.
    """

    values: PolicyValues
    thresholds: Float[Array, " rows"]
    next_cut: Int[Array, ""]

    @classmethod
    @compiled
    def at(cls, values: PolicyValues, thresholds: Float[Array, " m"]) -> CutBundle:
        """Return the bundle of a policy without cuts."""
        values = _without_kernel(values)
        empty = jax.tree.map(jnp.zeros_like, values)
        rows = jax.tree.map(lambda *parts: jnp.concatenate(parts), values, *[empty] * _CUTS)
        asked = jnp.full(_CUTS * (len(thresholds) + 1), -jnp.inf)
        return cls(rows, jnp.concatenate([thresholds, asked]), jnp.array(0))

    @compiled
    def cut(self, crossed: PolicyValues) -> tuple[CutBundle, Bool[Array, ""]]:
        """Return the bundle with one more cut, and whether it is new.

        The cut replaces the oldest one of a full bundle. Signals that are already in the bundle are
        left out: equal constraints only slow the step down.
        """
        crossed = _without_kernel(crossed)
        own = len(crossed.value)
        start = own * (1 + self.next_cut % _CUTS)
        known = self.values.advantages.reshape(1 + _CUTS, own, *crossed.advantages.shape[1:])
        size = jnp.abs(crossed.advantages).max((-2, -1))
        apart = jnp.abs(known - crossed.advantages).max((-2, -1)).min(0)
        new = apart > _SAME_CUT * size

        def put(rows: Array, cut: Array, start: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(rows, cut, start, axis=0)

        rows = jax.tree.map(lambda a, b: put(a, b, start), self.values, crossed)
        asked = jnp.concatenate([self.values.value[:1], self.thresholds[: own - 1]])
        asked = jnp.where(new, asked, -jnp.inf)
        bundle = CutBundle(rows, put(self.thresholds, asked, start - 1), self.next_cut + 1)
        return bundle, new.any()


def _without_kernel(values: PolicyValues) -> PolicyValues:
    return dataclasses.replace(values, kernel=None, multipliers=None)
