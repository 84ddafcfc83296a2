"""The verb `certify`: what has been proved about a policy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_whole_number
from holdfast._support.precision import float64
from holdfast.model import RobustCMDP, check_policy
from holdfast.model.table import Layout, layout_of, unpadded_table
from holdfast.tabular.certificates.branch_and_bound import branch_and_bound
from holdfast.tabular.certificates.critical_factor import critical_factors
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.evaluate import Evaluation, evaluate
from holdfast.tabular.evaluation import sparse
from holdfast.tabular.evaluation.optimum import robust_optimum

# Branch and bound solves linear systems of this size at most, thousands of times.
_MOST_STATES_TO_DIVIDE = 512
# A large model's critical factor is found to this accuracy: every step evaluates the policy.
_ROUGH = 1e-4


class Attainable(NamedTuple):
    """Between which two utilities the best worst-case value of each constraint on its own lies."""

    lower: Float[np.ndarray, " m"]
    upper: Float[np.ndarray, " m"]


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """What has been proved about a policy in the worst case over the uncertainty set.

    Attributes:
        feasible: whether every margin, less the numerical error, is at least zero.
        margins: (m,) worst-case margin of every constraint; negative is violated.
        reward: worst-case reward.
        error: bound on the numerical error of the reward and of every margin.
        upper_bound: no policy that keeps the constraints has a larger worst-case reward; −inf where it
            is proved that there is no such policy, inf where no bound was asked for.
        critical_factor: the largest factor on the radii under which every constraint is proved to
            hold: NaN where one does not hold even nominally, inf where none ever breaks.
        critical_factors: (m,) the same for each constraint alone.
        multipliers: (m,) the λ of the bound, in the sense of utilities.
        regions: how many parts of the policy space a bound was computed for; 1 where it was not divided.
        attainable: where the policy is not feasible, (m,) the best worst-case value that each
            constraint could have on its own, in the user's sense; otherwise None.
        evaluation: where the values come from.
        model: the model they are about.
    """

    feasible: bool
    margins: Float[np.ndarray, " m"]
    reward: float
    error: float
    upper_bound: float
    critical_factor: float
    critical_factors: Float[np.ndarray, " m"]
    multipliers: Float[np.ndarray, " m"]
    regions: int
    attainable: Float[np.ndarray, " m"] | None
    evaluation: Evaluation
    model: RobustCMDP = dataclasses.field(repr=False)

    @property
    def gap(self) -> float:
        """By what share of the upper bound the reward may fall short of the best; NaN if infeasible."""
        if not self.feasible or not math.isfinite(self.upper_bound):
            return math.nan
        return (self.upper_bound - self.reward) / max(abs(self.upper_bound), 1e-12)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers, for JSON."""
        pairs = zip(self.model.constraints, self.evaluation.constraints, strict=True)
        return {
            "feasible": self.feasible,
            "reward": {"worst": self.reward, "nominal": self.evaluation.reward.nominal},
            "constraints": [
                {
                    "constraint": str(constraint),
                    "threshold": constraint.threshold,
                    "worst": found.worst,
                    "nominal": found.nominal,
                    "margin": found.margin,
                    "holds": found.margin - self.error >= 0,
                    "critical_factor": float(self.critical_factors[i]),
                    "multiplier": float(self.multipliers[i]),
                    "attainable": None if self.attainable is None else float(self.attainable[i]),
                }
                for i, (constraint, found) in enumerate(pairs)
            ],
            "error": self.error,
            "upper_bound": self.upper_bound,
            "gap": self.gap,
            "critical_factor": self.critical_factor,
            "regions": self.regions,
        }

    def __str__(self) -> str:
        numbers = self.to_dict()
        width = max([6, *(len(c["constraint"]) for c in numbers["constraints"])])
        lines = [
            f"{'feasible in the worst case' if self.feasible else 'NOT feasible in the worst case'}"
            f" (numerical error ≤ {self.error:.1e})",
            f"{'':{width}}  {'worst case':>12}  {'nominal':>12}  {'margin':>12}  {'breaks at':>10}",
            f"{'reward':{width}}  {self.reward:12.6g}  {numbers['reward']['nominal']:12.6g}",
        ]
        lines += [
            f"{c['constraint']:{width}}  {c['worst']:12.6g}  {c['nominal']:12.6g}  {c['margin']:12.6g}"
            f"  {_factor(c['critical_factor']):>10}{'' if c['holds'] else '  violated'}"
            for c in numbers["constraints"]
        ]
        return "\n".join([*lines, *self._conclusions()])

    def _conclusions(self) -> list[str]:
        lines = []
        if self.upper_bound == -math.inf:
            lines.append("no policy keeps these constraints in the worst case: that is proved")
        elif math.isfinite(self.upper_bound):
            lines.append(
                f"no policy that keeps the constraints has a worst-case reward over "
                f"{self.upper_bound:.6g}"
            )
        if not math.isnan(self.gap):
            lines[-1] += f": this one is within {_percent(self.gap)} of the best"
        if self.model.constraints and self.feasible:
            lines.append(
                "the constraints hold however large the radii"
                if math.isinf(self.critical_factor)
                else f"they hold up to {self.critical_factor:.6g} times the radii"
            )
        if self.attainable is not None:
            named = zip(self.model.constraints, self.attainable, strict=True)
            best = ", ".join(f"{value:.6g} for {constraint}" for constraint, value in named)
            lines.append(f"each constraint on its own could reach, in the worst case: {best}")
        return lines


def _factor(factor: float) -> str:
    if math.isnan(factor):
        return "nominally"
    return "never" if math.isinf(factor) else f"× {factor:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "0.01 %"


@float64
def certify(
    model: RobustCMDP,
    policy: ArrayLike,
    *,
    bound: bool = True,
    nodes: int = 0,
    target: float = 1e-4,
) -> Certificate:
    """Proves what can be proved about a policy: that it keeps its constraints, and how good it is.

    Arguments:
        model: the model.
        policy: (S, A), rows that sum to one.
        bound: whether to bound what any policy could have; it takes some twenty robust optimisations.
        nodes: regions that branch and bound may judge to tighten the bound, for models of up to 512
            states and feasible policies; 0 leaves it at the Lagrangian bound.
        target: the gap at which branch and bound stops.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> timid = np.eye(8)[np.zeros(17, int)]        # always stake 1
        >>> certificate = hf.certify(hf.environments.gambler(), timid)
        >>> certificate.feasible
        True
        >>> print(f"{certificate.reward:.3f} of at most {certificate.upper_bound:.3f}")
        0.751 of at most 3.431
        >>> certificate.critical_factor                 # no radius breaks its constraint
        inf
    """
    check_nodes(model, nodes)
    if not (isinstance(target, (int, float)) and 0 <= target < math.inf):
        raise ValueError(f"target: expected a share of at least 0, got {target!r}")
    policy = check_policy("policy", policy, model.states, model.actions)
    evaluation = evaluate(model, policy)
    layout = layout_of(model)
    accuracy = _ROUGH if sparse.is_sparse(layout.table) else 1e-9
    factors = critical_factors(layout.table, layout.pad_policy(policy), accuracy)
    upper, multipliers, regions = math.inf, np.full(len(factors), np.nan), 0
    if bound:
        upper, multipliers, regions = _upper_bound(layout, evaluation, nodes, target)
    shown = None
    if not evaluation.feasible:
        best = attainable(layout)
        shown = np.array([c.shown(v) for c, v in zip(model.constraints, best.lower, strict=True)])
        if any(best.upper < np.array([c.utility_threshold for c in model.constraints])):
            upper = -math.inf
    return Certificate(
        feasible=evaluation.feasible,
        margins=evaluation.margins,
        reward=evaluation.reward.worst,
        error=evaluation.error,
        upper_bound=upper,
        critical_factor=float(np.min(factors, initial=math.inf)),
        critical_factors=factors,
        multipliers=multipliers,
        regions=regions,
        attainable=shown,
        evaluation=evaluation,
        model=model,
    )


def check_nodes(model: RobustCMDP, nodes: int) -> None:
    """Refuses branch and bound on a model that is too large for it."""
    check_whole_number("nodes", nodes, least=0)
    if nodes > 0 and model.states > _MOST_STATES_TO_DIVIDE:
        raise ValueError(
            f"nodes: branch and bound is for models of up to {_MOST_STATES_TO_DIVIDE} states, "
            f"and this one has {model.states}; nodes=0 gives the Lagrangian bound"
        )


def attainable(layout: Layout) -> Attainable:
    """Of every constraint on its own."""
    best = [robust_optimum(layout.table, signal) for signal in layout.table.signals[1:]]
    return Attainable(
        np.array([optimum.lower for optimum in best]), np.array([optimum.upper for optimum in best])
    )


def _upper_bound(
    layout: Layout, evaluation: Evaluation, nodes: int, target: float
) -> tuple[float, np.ndarray, int]:
    """The bound, its multipliers, and how many regions it took."""
    found = lagrangian_bound(layout.table, layout.model.actions)
    worst = evaluation.reward.worst
    close = found.value - worst <= target * max(abs(worst), 1e-12)
    if nodes == 0 or close or not evaluation.feasible or found.value == -math.inf:
        return found.value, found.multipliers, 1
    outcome = branch_and_bound(
        unpadded_table(layout.model),
        found.multipliers,
        found.reach,
        found.value,
        worst - evaluation.reward.error,
        nodes,
        target,
    )
    return max(outcome.value, worst), found.multipliers, outcome.judged
