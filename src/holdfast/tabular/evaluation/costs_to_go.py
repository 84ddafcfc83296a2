"""Certified costs-to-go: what one action and then a fallback policy cost, in the worst case."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from holdfast._support.precision import float64
from holdfast.model import Reach, RobustCMDP, policy_of
from holdfast.model.names import PolicyLike
from holdfast.model.table import layout_of
from holdfast.tabular.evaluation.rounding import PER_STATE
from holdfast.tabular.evaluation.values import bracketed_rows
from holdfast.tabular.evaluation.worst_case import nominal_values, worst_case, worst_case_method
from holdfast.uncertainty.rows import EPS


class CostsToGo(NamedTuple):
    """Costs-to-go of every constraint, as costs: those of a utility are negative.

    Under every kernel of the set, the mean of cost + γ·values(s') after an action is at most its entry
    of `actions`, rounding included. This holds whatever `values` are, so that nothing rests on the
    search for the worst case.

    Attributes:
        policy: the fallback policy, (S, A).
        values: worst-case cost-to-go of the fallback policy.
        actions: upper bounds on the worst-case cost of an action and the fallback policy after it.
    """

    policy: Float[np.ndarray, "S A"]
    values: Float[np.ndarray, "m S"]
    actions: Float[np.ndarray, "m S A"]


@float64
def costs_to_go(model: RobustCMDP, policy: PolicyLike) -> CostsToGo:
    """Return the certified costs-to-go of a fallback policy.

    Raises:
        ValueError: the model has a horizon, a reach rule or no constraint.
    """
    if model.horizon is not None or any(isinstance(each, Reach) for each in model.constraints):
        raise ValueError("model: expected a discounted one without reach rules, got another")
    if not model.constraints:
        raise ValueError("model: expected one with constraints, got none")
    layout = layout_of(model)
    table, chosen = layout.table, policy_of(model, policy)
    padded = layout.pad_policy(chosen)
    method, start = worst_case_method("dual"), nominal_values(table, padded)
    worst = worst_case(table, padded, method, start=start)
    assert worst.multipliers is not None
    values, actions = [], []
    for i in range(1, len(model.constraints) + 1):
        rows = bracketed_rows(table.only(i), worst.values[i], worst.multipliers[i])
        # The row's own rounding is in `lower`; that of signal + γ·V is in proportion to its size.
        lower = rows.lower - PER_STATE * EPS * rows.size
        values.append(-layout.unpad(worst.values[i]))
        actions.append(-layout.unpad(jnp.where(jnp.isnan(lower), -jnp.inf, lower)))
    return CostsToGo(chosen, np.stack(values), np.stack(actions))
