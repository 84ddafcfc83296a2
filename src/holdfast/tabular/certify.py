"""The verb `certify`: what can be proved about a policy."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import check_number, check_whole_number
from holdfast._support.precision import float64
from holdfast._support.threads import few_threads
from holdfast.model import Reach, RobustCMDP, policy_of
from holdfast.model.names import PolicyLike
from holdfast.model.table import TableLayout, layout_of
from holdfast.tabular.certificates.critical_factor import critical_factors
from holdfast.tabular.certificates.member_kernels import first_kernels, further_kernels
from holdfast.tabular.certificates.occupancy_model import occupancy_model, policy_of_all_steps
from holdfast.tabular.certificates.occupancy_proof import OccupancyProof
from holdfast.tabular.certificates.occupancy_tree import (
    TreeLimits,
    TreeProgress,
    occupancy_tree,
)
from holdfast.tabular.certificates.proof import save_proof
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.evaluate import Evaluation, evaluate, feasibility
from holdfast.tabular.evaluation.optimum import best_of

# Largest model for branch and bound: it solves thousands of linear programs with many rows a state.
_MOST_STATES_TO_DIVIDE = 512
# Relative accuracy of a critical factor; for large models, where every step evaluates the policy, four
# digits.
_ACCURACY, _ROUGH_ACCURACY = 1e-9, 1e-4
# Divisor of a gap whose bound is zero: the smallest reward that is told apart from zero.
_LEAST_REWARD = 1e-12


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Proved statements about a policy in the worst case over the uncertainty set.

    Attributes:
        feasible: whether every margin less the numerical error of its own signal is at least zero.
        margins: worst-case margin of every constraint, (m,); negative if violated.
        reward: worst-case reward.
        error: bound on the numerical error of the reward and of every margin, the largest of their own.
        upper_bound: no feasible policy has a larger worst-case reward; with a `proof`, none that is
            given as a table. −inf if no policy is feasible, inf if no bound was requested.
        critical_factor: largest factor on the radii for which every constraint is proved to hold. NaN if
            one does not hold nominally, inf if all hold for every radius.
        critical_factors: the same for each constraint alone, (m,).
        multipliers: λ of the bound, for the constraints as utilities, (m,).
        regions: number of nodes of branch and bound; 1 without it.
        proof: the multipliers that prove `upper_bound` if it is below the Lagrangian bound; otherwise
            None.
        relaxed_policies: policies that branch and bound could not exclude at first, like `policy`:
            starting points for a further search.
        attainable: if the policy is not feasible, the largest worst-case value that each constraint can
            have on its own, in the user's sense, (m,); otherwise None.
        evaluation: the policy's values.
        model: the model.
        policy: the policy, (S, A), or (H, S, A) with a horizon.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> hf.certify("gambler", np.zeros(17, int))        # always stake 1
        feasible in the worst case (numerical error below 1e-9)
                         worst case       nominal        margin   breaks at
        reward             0.751032       3.26182
        utility ≥ 2.5       6.45418       11.9097       3.95418       never
        no feasible policy has a worst-case reward above 3.43142 (gap 78 %)
        the constraints hold for every radius
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
    proof: OccupancyProof | None
    relaxed_policies: tuple[Float[np.ndarray, "*H S A"], ...]
    attainable: Float[np.ndarray, " m"] | None
    evaluation: Evaluation
    model: RobustCMDP
    policy: Float[np.ndarray, "*H S A"]

    @property
    def gap(self) -> float:
        """Distance of the reward from the upper bound, as a share of the bound; NaN if infeasible."""
        return _gap(self.reward, self.upper_bound) if self.feasible else math.nan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file with a proof of the certificate, which `check_proof` verifies without JAX.

        The proof is exact, and is checked before it is written.

        Raises:
            ValueError: the set is user-defined, a statement could not be proved exactly, or the model
                has other allowed actions at every step.
        """
        if np.asarray(self.model.allowed).ndim == 3:
            raise ValueError(
                "certificate: a proof file needs the same allowed actions at every step"
            )
        save_proof(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain numbers, for JSON."""
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
                    "error": found.error,
                    "holds": found.holds,
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

    def __repr__(self) -> str:
        numbers = self.to_dict()
        width = max([6, *(len(c["constraint"]) for c in numbers["constraints"])])
        lines = [
            feasibility(self.evaluation),
            f"{'':{width}}  {'worst case':>12}  {'nominal':>12}  {'margin':>12}  {'breaks at':>10}",
            f"{'reward':{width}}  {self.reward:12.6g}  {numbers['reward']['nominal']:12.6g}",
        ]
        for rule, c in zip(self.model.constraints, numbers["constraints"], strict=True):
            cells = [f"{rule.number(c[name]):>12}" for name in ("worst", "nominal", "margin")]
            breaks = f"{_factor(c['critical_factor']):>10}{'' if c['holds'] else '  violated'}"
            lines.append("  ".join([f"{c['constraint']:{width}}", *cells, breaks]))
        return "\n".join([*lines, *self._conclusions()])

    def _conclusions(self) -> list[str]:
        lines = []
        rules = _has_reach_rules(self.model)
        kind = "policy given as a table" if rules else "policy"
        if self.upper_bound == -math.inf:
            lines.append(f"proved: no {kind} satisfies these constraints in the worst case")
        elif math.isfinite(self.upper_bound):
            kind = kind if self.proof is None else "policy given as a table"
            bound = f"no feasible {kind} has a worst-case reward above {self.upper_bound:.6g}"
            gap = gap_text(self.gap).replace("< ", "below ")
            lines.append(f"{bound} (gap {gap})" if gap else bound)
        if rules and math.isfinite(self.upper_bound):
            lines.append(
                "tables do not remember which events have happened; policies that do may be better"
            )
        if self.model.constraints and self.feasible:
            lines.append(
                "the constraints hold for every radius"
                if math.isinf(self.critical_factor)
                else "the constraints hold for radii up to "
                f"{self.critical_factor:.6g} times the given ones"
            )
        if self.attainable is not None:
            named = zip(self.model.constraints, self.attainable, strict=True)
            best = ", ".join(f"{c.number(value)} for {c}" for c, value in named)
            lines.append(f"best worst-case value of each constraint on its own: {best}")
        return lines


def gap_text(gap: float) -> str:
    """Return an optimality gap in per cent, or nothing for NaN.

    Example:
        >>> gap_text(0.0123), gap_text(9.4e-13), gap_text(float("nan"))
        ('1.2 %', '< 1e-6 %', '')
    """
    if math.isnan(gap):
        return ""
    # Below 1e-8 the numerical error of bound and reward decides.
    return f"{100 * gap:.2g} %" if abs(gap) >= 1e-8 else "< 1e-6 %"


def _factor(factor: float) -> str:
    if math.isnan(factor):
        return "nominally"
    return "never" if math.isinf(factor) else f"× {factor:.4g}"


@few_threads
@float64
def certify(
    model: RobustCMDP,
    policy: PolicyLike,
    *,
    bound: bool = True,
    nodes: int | None = 0,
    target: float = 0.01,
    seconds: float = 60.0,
    progress: Callable[[TreeProgress], None] | None = None,
) -> Certificate:
    """Return what can be proved about a policy: that it meets its constraints, and how good it is.

    Arguments:
        model: the model, or its name.
        policy: probabilities (S, A) with rows that sum to one, action indices (S,), or a mapping such as
            {"worn": "service"} from every state to an action or to probabilities of actions. With a
            horizon also (H, S, A) or (H, S).
        bound: whether to compute an upper bound on the worst-case reward of all feasible policies,
            history-dependent ones included. It takes some twenty robust optimisations.
        nodes: largest number of boxes of policies for which branch and bound computes a bound, for
            feasible policies in models of up to 512 states in all steps; None for no limit but
            `seconds`; 0 for the Lagrangian bound alone. The bound from boxes holds for policies given as
            (S, A) tables, or (H, S, A) with a horizon.
        target: gap at which branch and bound stops.
        seconds: time after which branch and bound stops. An interrupt (Ctrl-C) stops it as well, and
            the certificate contains the bound reached so far.
        progress: function called with the nodes, bound, gap and seconds of branch and bound so far.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> certificate = hf.certify("gambler", np.zeros(17, int))       # always stake 1
        >>> certificate.feasible
        True
        >>> print(f"{certificate.reward:.3f} of at most {certificate.upper_bound:.3f}")
        0.751 of at most 3.431
        >>> certificate.critical_factor                 # no radius breaks its constraint
        inf
        >>> river = hf.environments.river_swim()
        >>> policy = hf.solve(river, iterations=100).policy
        >>> hf.certify(river, policy).gap > 0.7                 # the Lagrangian bound alone
        True
        >>> hf.certify(river, policy, nodes=None).gap <= 0.011
        True
    """
    check_nodes(model, nodes)
    check_number("target", target)
    check_number("seconds", seconds)
    policy = policy_of(model, policy)
    evaluation = evaluate(model, policy)
    layout = layout_of(model)
    accuracy = _ROUGH_ACCURACY if layout.table.is_large else _ACCURACY
    factors = critical_factors(layout.table, layout.pad_policy(policy), accuracy)
    upper, multipliers, regions = math.inf, np.full(len(factors), np.nan), 0
    proof: OccupancyProof | None = None
    relaxed: tuple[np.ndarray, ...] = ()
    if bound:
        lagrangian = lagrangian_bound(layout.table, model.actions)
        upper, multipliers, regions = lagrangian.value, lagrangian.multipliers, 1
        # A NaN is not close to the reward: the comparison has to succeed.
        cutoff = _cutoff(evaluation.reward.worst, target)
        if nodes != 0 and evaluation.feasible and not upper <= cutoff:
            tree = occupancy_tree(
                occupancy_model(model),
                first_kernels(layout, evaluation, lagrangian),
                cutoff,
                TreeLimits(nodes, seconds),
                lambda other: further_kernels(model, other, cutoff),
                progress
                and (lambda state: progress(_with_gap(state, evaluation, lagrangian.value))),
            )
            relaxed, regions = (
                tuple(policy_of_all_steps(model, p) for p in tree.policies),
                tree.nodes,
            )
            if tree.value < upper:
                upper, proof = tree.value, tree.proof
    attained, hopeless = None, False
    if not evaluation.feasible:
        attained, hopeless = attainable_values(layout)
    return Certificate(
        feasible=evaluation.feasible,
        margins=evaluation.margins,
        reward=evaluation.reward.worst,
        error=evaluation.error,
        upper_bound=-math.inf if hopeless else upper,
        critical_factor=float(np.min(factors, initial=math.inf)),
        critical_factors=factors,
        multipliers=multipliers,
        regions=regions,
        proof=proof,
        relaxed_policies=relaxed,
        attainable=attained,
        evaluation=evaluation,
        model=model,
        policy=policy,
    )


def _with_gap(state: TreeProgress, evaluation: Evaluation, most: float) -> TreeProgress:
    """Return the state of a search with the gap, and with a bound of at most another one."""
    bound = min(state.bound, most)
    return state._replace(bound=bound, gap=_gap(evaluation.reward.worst, bound))


def _gap(reward: float, bound: float) -> float:
    """Return the distance of a reward from a bound, as a share of the bound; NaN without a bound."""
    return (bound - reward) / max(abs(bound), _LEAST_REWARD) if math.isfinite(bound) else math.nan


def check_nodes(model: RobustCMDP, nodes: int | None) -> None:
    """Raise a ValueError if branch and bound does not support the model."""
    if nodes is not None:
        check_whole_number("nodes", nodes, least=0)
    states = model.states * (model.horizon or 1)
    if nodes != 0 and states > _MOST_STATES_TO_DIVIDE:
        steps = "" if model.horizon is None else f" in {model.horizon} steps"
        raise ValueError(
            f"nodes: branch and bound is for models of up to {_MOST_STATES_TO_DIVIDE} states in all "
            f"steps, got {model.states} states{steps}; nodes=0 gives the Lagrangian bound"
        )


def _has_reach_rules(model: RobustCMDP) -> bool:
    return any(isinstance(constraint, Reach) for constraint in model.constraints)


def attainable_values(layout: TableLayout) -> tuple[Float[np.ndarray, " m"], bool]:
    """Return the best worst-case value of each constraint on its own, and whether one is unattainable.

    The values are in the user's sense. A constraint whose best value is proved to miss its threshold
    makes the model infeasible.
    """
    best = [best_of(layout.table, i) for i in range(1, len(layout.table.signals))]
    pairs = list(zip(layout.model.constraints, best, strict=True))
    shown = np.array([constraint.shown(optimum.lower) for constraint, optimum in pairs])
    return shown, any(o.upper < constraint.utility_threshold for constraint, o in pairs)


def _cutoff(reward: float, target: float) -> float:
    """Return the largest upper bound whose gap from a reward is at most the target.

    Example:
        >>> print(f"{_cutoff(99.0, 0.01):.6f} {_cutoff(-101.0, 0.01):.6f}")
        100.000000 -100.000000
    """
    if reward > 0 and target >= 1:
        return math.inf
    cutoff = reward / (1 - target) if reward > 0 else reward / (1 + target)
    # A few rounding errors less, so that the gap that is computed from it is at most the target.
    cutoff -= 8 * float(np.finfo(float).eps) * abs(cutoff)
    return max(cutoff, reward + target * _LEAST_REWARD)
