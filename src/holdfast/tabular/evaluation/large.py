"""Evaluation of large successor lists and of wide dense models, both by quick sweeps."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation import dense, sparse
from holdfast.tabular.evaluation.certified import error_of
from holdfast.tabular.evaluation.rounding import initial_value
from holdfast.tabular.evaluation.sparse import LargeValues
from holdfast.tabular.evaluation.worst_case import (
    Dual,
    by_policy_iteration,
    limits_of,
    tolerance_of,
)

# Certified errors that are rounding only, relative to the largest |V|, times 1−γ: some hundred eps, for
# the terms of a row, of the policy and of the initial distribution.
_ROUNDING = 2e-14


def large_values(table: Table, policy: Float[Array, "S A"], method: Dual) -> LargeValues:
    """Return the nominal and worst-case values of a policy in a large or wide model.

    Quick values are certified. If their error is larger than asked for, policy iteration continues from
    them.
    """
    asked = tolerance_of(method, table)
    if table.is_large:
        return sparse.evaluate(table, policy, asked, method.max_rounds)
    limits = limits_of(method, table)
    within = max(asked, _ROUNDING / (1 - float(table.discount)))
    found = LargeValues([], [], [], [], [])
    for i in range(len(table.signals)):
        one = table.only(i)
        nominal, values, multipliers, _ = dense.quick_values(one, policy, limits[0])
        error = float(error_of(one, policy, values, multipliers))
        # Values that overflowed prove nothing, and are no start either.
        size = float(jnp.abs(values).max())
        if not math.isfinite(size):
            values, multipliers = jnp.zeros_like(values), jnp.zeros_like(multipliers)
        if not error <= within * size or not math.isfinite(size):
            last = by_policy_iteration(one, policy, values, multipliers, limits)
            assert last.multipliers is not None
            values, multipliers = last.values, last.multipliers
            error = float(error_of(one, policy, values, multipliers))
        found.nominal.append(float(_initial_value(one, nominal)))
        found.worst.append(float(_initial_value(one, values)))
        found.error.append(error)
        found.values.append(values)
        found.multipliers.append(multipliers)
    return found


def details(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> tuple[Float[Array, "S A"], Float[Array, " S"]]:
    """Return the advantages and the occupancy of a table's only signal under the worst response to V."""
    find = sparse.details if table.is_large else dense.details
    return find(table, policy, values, multipliers)


_initial_value = compiled(initial_value)
