"""What if the radii, or a limit, were different: for one policy, without solving again.

Which pairs matter: with d the occupancy under the nominal kernel p, q the worst-case kernel and
y = signal + γV the targets under q,

    V_p − V_q = Σ_{s,a} d(s)·π(a|s)·(p − q)(s,a)·y(s,a)·Σ_t γ^t

exactly (the performance difference of two kernels). With a horizon the terms of all steps are added, and
d of a `reach` rule ends with its event. Each term is what nature gains in one pair. It is at least zero,
since q is a worst response to y. Pairs with large terms are worth more data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import check_number
from holdfast._support.precision import float64
from holdfast._support.threads import few_threads
from holdfast.model import Kernel, Reach, RobustCMDP
from holdfast.model.names import PolicyLike, action_label, state_label
from holdfast.model.policies import policy_of
from holdfast.model.table import layout_of
from holdfast.tabular.certificates.upper_bound import lagrangian_bound
from holdfast.tabular.evaluate import (
    ConstraintEvaluation,
    Evaluation,
    SignalEvaluation,
    evaluate,
)
from holdfast.tabular.evaluation.worst_case import nominal_values

# Factors on the radii at which the policy is evaluated by default.
_FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# Pairs that the summary lists.
_MOST_LISTED = 5


class PairShare(NamedTuple):
    """What nature gains in one pair.

    Attributes:
        state: name of the state.
        action: name of the action.
        losses: loss of the reward and of each constraint that comes from this pair, (1 + m,), in their
            units. They sum to the distance of the worst case from the nominal value.
    """

    state: str
    action: str
    losses: Float[np.ndarray, " n"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sensitivity:
    """What the values of a policy depend on, made by `sensitivity`.

    Attributes:
        factors: factors on the radii, (n,).
        evaluations: values of the policy at each factor.
        upper_bound: no feasible policy has a larger worst-case reward, at factor 1.
        prices: shadow price of each constraint, (m,): if its limit is relaxed by x, no feasible policy
            has a worst-case reward above `upper_bound` + price·x. Zero if the limit does not matter.
        pairs: what nature gains in each pair, by the loss of the reward, the largest first.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> found = hf.sensitivity("gambler", np.zeros(17, int), factors=[0, 1, 2])
        >>> [f"{each.reward.worst:.3f}" for each in found.evaluations]
        ['3.262', '0.751', '0.397']
        >>> found.pairs[0].state, found.pairs[0].action
        ('state 15', 'action 0')
    """

    factors: Float[np.ndarray, " n"]
    evaluations: tuple[Evaluation, ...]
    upper_bound: float
    prices: Float[np.ndarray, " m"]
    pairs: tuple[PairShare, ...]

    @property
    def names(self) -> list[str]:
        """The reward and the constraints, in words."""
        first = self.evaluations[0]
        return ["reward", *(each.name for each in first.constraints)]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each factor: the factor, the reward, and every margin."""
        return [
            {"factor": float(factor), "reward": found.reward.worst, "feasible": found.feasible}
            | {f"margin of {each.name}": each.margin for each in found.constraints}
            for factor, found in zip(self.factors, self.evaluations, strict=True)
        ]

    def __str__(self) -> str:
        lines = ["radii      reward  margins"]
        for row in self.rows():
            margins = [v for k, v in row.items() if k.startswith("margin")]
            shown = "  ".join(f"{margin:.4g}" for margin in margins)
            lines.append(f"× {row['factor']:<5g}{row['reward']:10.5g}  {shown}".rstrip())
        for name, price in zip(self.names[1:], self.prices, strict=True):
            most = f"{self.upper_bound:.6g} + {price:.4g}·x"
            lines.append(f"{name} relaxed by x: no feasible policy has a reward above {most}")
        total = sum((pair.losses[0] for pair in self.pairs), 0.0)
        for pair in self.pairs[:_MOST_LISTED]:
            if total > 0 and pair.losses[0] > 0:
                share = 100 * pair.losses[0] / total
                where = f"{pair.state} / {pair.action}"
                lines.append(f"{where}: {share:.0f} % of what uncertainty costs the reward")
        return "\n".join(lines)

    __repr__ = __str__


@few_threads
@float64
def sensitivity(
    model: RobustCMDP, policy: PolicyLike, *, factors: Sequence[float] = _FACTORS
) -> Sensitivity:
    """Return how the values of a policy depend on the radii, the limits and the pairs.

    Arguments:
        model: the model, or its name.
        policy: the policy, in any form that `evaluate` accepts.
        factors: factors on the radii.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> found = hf.sensitivity("gambler", np.zeros(17, int), factors=[1.0])
        >>> loss = sum(pair.losses[0] for pair in found.pairs)
        >>> reward = found.evaluations[0].reward
        >>> print(f"{loss:.6f} {reward.nominal - reward.worst:.6f}")
        2.510785 2.510785
    """
    for factor in factors:
        check_number("factors", factor)
    rows = policy_of(model, policy)
    assert model.uncertainty is not None
    evaluations = tuple(
        evaluate(model.replace(uncertainty=model.uncertainty.scaled(float(factor))), rows)
        for factor in factors
    )
    layout = layout_of(model)
    bound = lagrangian_bound(layout.table, model.actions)
    feasible = math.isfinite(bound.value)
    return Sensitivity(
        factors=np.asarray(factors, float),
        evaluations=evaluations,
        upper_bound=bound.value,
        prices=bound.multipliers * [c.steps for c in model.constraints]
        if feasible
        else np.full(len(model.constraints), np.nan),
        pairs=_pairs(model, rows, evaluate(model, rows)),
    )


def _pairs(
    model: RobustCMDP, policy: Float[np.ndarray, "*H S A"], found: Evaluation
) -> tuple[PairShare, ...]:
    """Return what nature gains in each pair, the largest loss of the reward first."""
    layout = layout_of(model)
    nominal = nominal_values(layout.table, layout.pad_policy(policy))
    by_step = (-1, model.states, model.actions)
    losses = np.stack([
        (layout.unpad(visits)[..., None] * policy * _gains(model, each)).reshape(by_step).sum(0)
        for visits, each in zip(nominal.occupancy, (found.reward, *found.constraints), strict=True)
    ], axis=-1) * model.total_weight  # fmt: skip
    order = np.argsort(-losses[..., 0], axis=None, kind="stable")
    places = [np.unravel_index(flat, losses.shape[:2]) for flat in order]
    taken = policy.reshape(by_step).max(0) > 0
    return tuple(
        PairShare(state_label(model, int(s)), action_label(model, int(a)), losses[s, a])
        for s, a in places
        if taken[s, a]
    )


def _gains(model: RobustCMDP, found: SignalEvaluation) -> Float[np.ndarray, "*H S A"]:
    """Return (p − q)·y in every row, in the unit of the signal's limit."""
    signal, sign, scale, discount = model.reward, 1.0, 1.0, model.discount
    last = np.zeros(model.states)
    if isinstance(found, ConstraintEvaluation):
        rule = found.constraint
        signal, sign, scale = rule.signal, rule.sign, rule.steps
        if isinstance(rule, Reach):
            last = sign * rule.pays
            # The probability to reach states within a horizon is not discounted.
            discount = discount if model.horizon is None else 1.0
    values = found.values * scale
    following = discount * (values if model.horizon is None else np.r_[values[1:], last[None]])
    signal = signal if model.by_next_state(signal) else signal[..., None]
    nominal, worst = (
        _expected(kernel, signal, following) for kernel in (model.transitions, found.kernel)
    )
    return sign / scale * (nominal - worst)


def _expected(
    kernel: Any, signal: Float[np.ndarray, "..."], following: Float[np.ndarray, "*H S"]
) -> Float[np.ndarray, "*H S A"]:
    """Return the expectation of signal + following(s') in every pair."""
    if isinstance(kernel, Kernel):
        probabilities, targets = kernel.probabilities, following[..., kernel.successors]
    else:
        probabilities, targets = kernel, following[..., None, None, :]
    return (probabilities * (signal + targets)).sum(-1)
