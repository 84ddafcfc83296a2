"""The certified error of worst-case values, from one worst response to V."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.blocks import by_blocks
from holdfast.tabular.evaluation.rounding import (
    ROUND_UP,
    certified_error,
    reached_states,
    state_rounding,
)
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    per_signal,
    until_stop,
    with_boundary,
)
from holdfast.uncertainty import UncertaintySet


def certified_errors(
    table: Table, policy: Float[Array, "S A"], worst: PolicyValues
) -> Float[Array, " n"]:
    """Return how far each worst-case value may be from the minimum over the set.

    The bound needs only one worst response to V, whose membership is checked independently. It does not
    depend on how V was found. With a horizon the backward pass has certified V already.
    """
    if table.horizon is not None:
        return worst.error
    assert worst.multipliers is not None
    return per_signal(
        lambda one, *found: error_of(one, policy, *found), table, worst.values, worst.multipliers
    )


class _StateBrackets(NamedTuple):
    upper: Float[Array, " S"]
    lower: Float[Array, " S"]


@compiled
def error_of(
    table: Table,
    policy: Float[Array, "S A"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> Float[Array, ""]:
    """Return how far the worst-case value of a table's only signal may be from V(ρ).

    Arguments:
        table: the model with one signal.
        policy: (S, A).
        values: any V.
        multipliers: nature's dual variables, from which the search for the worst response starts.
    """

    def respond(uncertainty: UncertaintySet, *rows: Array) -> _StateBrackets:
        p, y, _, pi, guess, size = rows
        _, lower, upper = uncertainty.bracket(p, y, guess)
        rounded = state_rounding(pi, size, p.shape[-1]) * ROUND_UP
        return _StateBrackets((pi * upper).sum(-1) + rounded, (pi * lower).sum(-1) - rounded)

    policy = until_stop(table, policy)
    # Only numbers of states leave a block, so that large models need little memory.
    found = by_blocks(respond, table, table.signals[0], values, policy, multipliers)
    upper, lower = with_boundary(table, found.upper), with_boundary(table, found.lower)
    reached = reached_states(table, policy)
    return certified_error(table, reached, values, upper - values, values - lower)
