"""An upper bound on what any feasible policy can have, from Lagrange multipliers.

For every λ ≥ 0 a feasible π has V_r ≤ V_r + Σλ_i(V_i − d_i) ≤ min_p V_{r+Σλ_i c_i, p} − Σλ_i d_i, so

    B(λ) = max_π min_p V_{r+Σλ_i c_i, p} − Σλ_i d_i

is an upper bound, and robust value iteration computes it. Its smallest value is the smallest optimum of
a constrained problem under a single kernel of the set: under the kernel that nature takes at λ, a linear
program gives multipliers λ' with B(λ') ≤ B(λ), so the two are taken in turn until nothing moves. B is
not convex; the search starts from points spread over all λ that could help.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.linear_program import ConstrainedOptimum, constrained_optimum
from holdfast.tabular.evaluation.optimum import Optimum, robust_optimum
from holdfast.tabular.evaluation.values import kernel_of
from holdfast.tabular.evaluation.worst_case import Dual, worst_outlook

# Linear programs are used up to this many state–action pairs; beyond, λ is searched by itself.
_MOST_PAIRS = 20_000
_MAX_TURNS = 50
# Points along each axis of λ, as shares of the largest that could help, and random ones beside them.
_SHARES = (0.003, 0.01, 0.03, 0.06, 0.1, 0.17, 0.3, 0.5, 0.8)
_RANDOM_STARTS = 12
_REFINED = 3


class Bound(NamedTuple):
    """No policy that keeps the constraints has a worst-case reward over `value`.

    Attributes:
        value: −inf where it is proved that no policy keeps the constraints.
        multipliers: λ.
        optimum: of r + Σλ_i c_i.
        reach: how large each λ_i could be and still help, roughly; a unit to search in.
    """

    value: float
    multipliers: Float[np.ndarray, " m"]
    optimum: Optimum
    reach: Float[np.ndarray, " m"]


def lagrangian_bound(table: Table, actions: int) -> Bound:
    """The smallest B(λ) that was found.

    Arguments:
        table: the model.
        actions: how many of the table's actions are the model's own.
    """
    count = len(table.thresholds)
    first = _at(table, np.zeros(count))
    if count == 0:
        return first
    reach = _reach(table, first)
    if reach is None:
        return first._replace(value=-np.inf)
    bounds = [first]
    for multipliers in _starts(reach):
        nearest = min(bounds, key=lambda b: float(abs(b.multipliers - multipliers).sum()))
        bounds.append(_at(table, multipliers, nearest.optimum))
    bounds.sort(key=lambda bound: bound.value)
    by_program = table.states * actions <= _MOST_PAIRS
    refine = _in_turn if by_program else _by_golden_section
    refined = [refine(table, actions, bound, reach) for bound in bounds[:_REFINED]]
    return min(refined, key=lambda bound: bound.value)._replace(reach=reach)


def program_at(table: Table, actions: int, bound: Bound) -> ConstrainedOptimum:
    """The constrained optimum under the one kernel that nature takes for all signals at λ."""
    joint = table.with_signals(_combined(table, bound.multipliers)[None])
    return constrained_optimum(table, actions, kernel_of(joint, bound.optimum.outlook, 0))


def _combined(table: Table, multipliers: np.ndarray) -> Float[Array, "S A J"]:
    return jnp.tensordot(jnp.r_[1.0, multipliers], table.signals, axes=1)


def _at(table: Table, multipliers: np.ndarray, start: Optimum | None = None) -> Bound:
    optimum = robust_optimum(table, _combined(table, multipliers), start)
    value = optimum.upper - float(multipliers @ np.asarray(table.thresholds))
    return Bound(value, multipliers, optimum, np.ones_like(multipliers))


def _reach(table: Table, first: Bound) -> Float[np.ndarray, " m"] | None:
    """For each constraint alone, the λ beyond which B(λ) > B(0); None where one is out of reach.

    The policy that is best for the constraint has margin m and reward L, so B(λ) ≥ L + λm.
    """
    reach = []
    for i, threshold in enumerate(np.asarray(table.thresholds), start=1):
        best = robust_optimum(table, table.signals[i])
        if best.upper < threshold:
            return None
        alone = table.with_signals(table.signals[:1])
        reward = float(worst_outlook(alone, best.policy, Dual()).value[0])
        spare = max(best.lower - threshold, 1e-4 * max(1.0, abs(threshold)))
        reach.append(max(first.value - reward, 1e-6 * max(1.0, abs(first.value))) / spare)
    return np.array(reach)


def _starts(reach: Float[np.ndarray, " m"]) -> list[Float[np.ndarray, " m"]]:
    along = [share * reach * axis for axis, share in itertools.product(np.eye(len(reach)), _SHARES)]
    if len(reach) == 1:
        return along
    rng = np.random.default_rng(0)
    return along + [
        reach * rng.dirichlet(np.ones(len(reach))) * rng.choice(_SHARES)
        for _ in range(_RANDOM_STARTS)
    ]


def _in_turn(table: Table, actions: int, bound: Bound, reach: np.ndarray) -> Bound:
    """Nature's kernel at λ, then the multipliers of the linear program under it, and again."""
    for _ in range(_MAX_TURNS):
        program = program_at(table, actions, bound)
        if not program.feasible:
            return _along_a_proof(table, bound, program.multipliers, reach)
        following = _at(table, program.multipliers, bound.optimum)
        if following.value >= bound.value - 1e-12 * max(1.0, abs(bound.value)):
            return min(bound, following, key=lambda b: b.value)
        bound = following
    return bound


def _along_a_proof(table: Table, bound: Bound, weights: np.ndarray, reach: np.ndarray) -> Bound:
    """Under nature's kernel no policy meets the constraints: along the proof's weights B falls for ever.

    Once it is below any reward that there is, the model is proved infeasible.
    """
    lowest = float(table.signals[0].min() / (1 - table.discount))
    for power in range(1, 10):
        further = _at(table, bound.multipliers + 10.0**power * reach.max() * weights, bound.optimum)
        if further.value < lowest:
            return further._replace(value=-np.inf)
        bound = min(bound, further, key=lambda b: b.value)
    return bound


def _by_golden_section(table: Table, actions: int, bound: Bound, reach: np.ndarray) -> Bound:
    """One multiplier after the other, each between a third and three times what it was."""
    del actions
    ratio = (np.sqrt(5) - 1) / 2
    for i in range(len(reach)):
        start = bound.multipliers[i] or _SHARES[0] * reach[i]
        low, high = start / 3, start * 3

        for _ in range(8):
            span = high - low
            left, right = (
                _at(table, _with(bound.multipliers, i, value), bound.optimum)
                for value in (high - ratio * span, low + ratio * span)
            )
            bound = min(bound, left, right, key=lambda b: b.value)
            if left.value <= right.value:
                high = low + ratio * span
            else:
                low = high - ratio * span
    return bound


def _with(multipliers: np.ndarray, index: int, value: float) -> np.ndarray:
    return np.where(np.arange(len(multipliers)) == index, value, multipliers)
