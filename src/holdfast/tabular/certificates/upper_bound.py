"""The Lagrangian upper bound on the worst-case reward of every feasible policy.

For every λ ≥ 0 a feasible π has V_r ≤ V_r + Σλ_i(V_i − d_i) ≤ min_p V_{r+Σλ_i c_i, p} − Σλ_i d_i,
so that

    B(λ) = max_π min_p V_{r+Σλ_i c_i, p} − Σλ_i d_i

is an upper bound. Robust value iteration computes it. The smallest B is the smallest optimum of a
constrained problem under a single kernel of the set: under nature's kernel at λ, a linear program
gives multipliers λ' with B(λ') ≤ B(λ). The two steps alternate until the bound stops falling. B is not
convex, so that the search starts from many λ.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.flags import combined, sum_optimum
from holdfast.tabular.evaluation.linear_program import ConstrainedOptimum, constrained_optimum
from holdfast.tabular.evaluation.optimum import Optimum, best_of
from holdfast.tabular.evaluation.worst_case import Dual, worst_case, worst_kernel
from holdfast.uncertainty.rows import EPS

# Largest number of state–action pairs for linear programs, which then take seconds. Larger models search
# λ by a bounded search.
_MOST_PAIRS = 20_000
# Limit on the alternations. The bound falls in each and settles within ten or so.
_MAX_TURNS = 50
# Relative decrease of the bound that counts: some rounding errors above the accuracy of a linear
# program.
_LEAST_DECREASE = 1e-12
# Starting points along each axis of λ, as shares of the largest useful λ, in steps of about two to
# three, and the number of random starts for several constraints.
_SHARES = (0.003, 0.01, 0.03, 0.06, 0.1, 0.17, 0.3, 0.5, 0.8)
_RANDOM_STARTS = 12
# Number of starting points that are refined, those with the smallest bounds.
_REFINED = 3
# Least spare margin and least distance of rewards in `_reach`, relative to max(1, |value|). They only
# limit how far the search goes.
_LEAST_SPARE, _LEAST_DISTANCE = 1e-4, 1e-6
# Evaluations for each multiplier of a large model, and of one whose signals include probabilities.
# Golden section would leave 0.62⁷ ≈ 3 % of the bracket after eight, and 1e-5 after 24.
_SEARCH_STEPS, _FINE_STEPS = 8, 24


class LagrangianBound(NamedTuple):
    """An upper bound on the worst-case reward of every feasible policy.

    Attributes:
        value: the bound; −inf if it is proved that no policy is feasible.
        multipliers: λ, (m,).
        optimum: the robust optimum of r + Σλ_i c_i.
        reach: rough size of the largest λ_i that can lower the bound, (m,).
    """

    value: float
    multipliers: Float[np.ndarray, " m"]
    optimum: Optimum
    reach: Float[np.ndarray, " m"]


def lagrangian_bound(table: Table, actions: int) -> LagrangianBound:
    """Return the smallest B(λ) found.

    Arguments:
        table: the model.
        actions: number of the model's own actions; the rest of the table's are padding.
    """
    count = len(table.thresholds)
    first = _at(table, np.zeros(count))
    if count == 0 or not np.isfinite(first.value):  # signals too large for double precision
        return first
    reach = _reach(table, first)
    if reach is None:
        return first._replace(value=-np.inf)
    bounds = [first]
    for multipliers in _starts(reach):
        nearest = min(bounds, key=lambda b: float(abs(b.multipliers - multipliers).sum()))
        bounds.append(_at(table, multipliers, nearest.optimum))
    bounds.sort(key=lambda bound: bound.value)
    # Nature's kernel for a sum with probabilities differs by event, and no program has that.
    by_program = table.rows * actions <= _MOST_PAIRS and table.boundaries is None
    refine = _in_turn if by_program else _by_search
    refined = [refine(table, actions, bound, reach) for bound in bounds[:_REFINED]]
    return min(refined, key=lambda bound: bound.value)._replace(reach=reach)


def program_at(table: Table, actions: int, bound: LagrangianBound) -> ConstrainedOptimum:
    """Return the constrained optimum under nature's kernel at λ, one for all signals."""
    return constrained_optimum(table, actions, worst_kernel_at(table, bound))


def worst_kernel_at(table: Table, bound: LagrangianBound) -> Float[Array, "S A K"]:
    """Return nature's kernel at λ, one for all signals."""
    joint = table.with_signals(combined(table, np.r_[1.0, bound.multipliers])[None])
    optimum = bound.optimum
    worst = worst_case(joint, optimum.policy, Dual(), optimum.values)
    return worst_kernel(joint, worst, 0)


def _at(table: Table, multipliers: np.ndarray, start: Optimum | None = None) -> LagrangianBound:
    multipliers = np.maximum(multipliers, 0.0)  # a linear program may return −1e-17
    optimum = sum_optimum(table, np.r_[1.0, multipliers], start)
    value = optimum.upper - float(multipliers @ np.asarray(table.thresholds))
    value += _rounding(table, multipliers, optimum)
    value = np.inf if np.isnan(value) else value  # NaN proves nothing
    return LagrangianBound(value, multipliers, optimum, np.ones_like(multipliers))


def _rounding(table: Table, multipliers: np.ndarray, optimum: Optimum) -> float:
    """Return a bound on the rounding error of r + Σλ_i c_i, summed over steps, and of Σλ_i d_i."""
    # Discounts of a horizon in the signals are rounded twice.
    weights, count = np.r_[1.0, multipliers], len(multipliers) + 4
    largest = np.abs(np.asarray(table.signals)).reshape(len(weights), -1).max(-1)
    signals = float(weights @ largest)
    values = abs(optimum.upper) + float(multipliers @ np.abs(np.asarray(table.thresholds)))
    return EPS * count * (signals / float(table.step_share) + values)


def _reach(table: Table, first: LagrangianBound) -> Float[np.ndarray, " m"] | None:
    """Return, for each constraint alone, the λ beyond which B(λ) > B(0); None if one is infeasible.

    The best policy for the constraint has a margin m and a reward L, so that B(λ) ≥ L + λm.
    """
    reach = []
    for i, threshold in enumerate(np.asarray(table.thresholds), start=1):
        best = best_of(table, i)
        if best.upper < threshold:
            return None
        alone = table.only(0)
        reward = float(worst_case(alone, best.policy, Dual()).value[0])
        spare = max(best.lower - threshold, _LEAST_SPARE * max(1.0, abs(threshold)))
        reach.append(
            max(first.value - reward, _LEAST_DISTANCE * max(1.0, abs(first.value))) / spare
        )
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


def _in_turn(
    table: Table, actions: int, bound: LagrangianBound, reach: np.ndarray
) -> LagrangianBound:
    """Alternate between nature's kernel at λ and the multipliers of the linear program under it."""
    for _ in range(_MAX_TURNS):
        program = program_at(table, actions, bound)
        if not program.feasible:
            return _along_a_proof(table, bound, program.multipliers, reach)
        following = _at(table, program.multipliers, bound.optimum)
        if following.value >= bound.value - _LEAST_DECREASE * max(1.0, abs(bound.value)):
            return min(bound, following, key=lambda b: b.value)
        bound = following
    return bound


def _along_a_proof(
    table: Table, bound: LagrangianBound, weights: np.ndarray, reach: np.ndarray
) -> LagrangianBound:
    """Decrease B along a Farkas direction: weights that prove infeasibility under nature's kernel.

    Once B is below every reward, the model is proved infeasible.
    """
    lowest = float(table.signals[0].min() / table.step_share)
    lowest -= 4 * EPS * abs(lowest)
    for power in range(1, 10):
        further = _at(table, bound.multipliers + 10.0**power * reach.max() * weights, bound.optimum)
        if further.value < lowest:
            return further._replace(value=-np.inf)
        bound = min(bound, further, key=lambda b: b.value)
    return bound


def _by_search(
    table: Table, actions: int, bound: LagrangianBound, reach: np.ndarray
) -> LagrangianBound:
    """Refine one multiplier after the other, each within a factor of three."""
    del actions
    found = [bound]
    for i in range(len(reach)):
        best = min(found, key=lambda b: b.value)
        start = best.multipliers[i] or _SHARES[0] * reach[i]

        def value(multiplier: float, i: int = i, best: LagrangianBound = best) -> float:
            moved = np.where(np.arange(len(reach)) == i, multiplier, best.multipliers)
            found.append(_at(table, moved, best.optimum))
            return found[-1].value

        scipy.optimize.minimize_scalar(
            value,
            bounds=(start / 3, start * 3),
            method="bounded",
            options={"maxiter": _SEARCH_STEPS if table.boundaries is None else _FINE_STEPS},
        )
    return min(found, key=lambda b: b.value)
