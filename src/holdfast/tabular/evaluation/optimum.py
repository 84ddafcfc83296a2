"""The best worst-case value of one signal, constraints apart: robust value and policy iteration."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import Outlook, reply
from holdfast.tabular.evaluation.worst_case import Dual, worst_outlook

_TIE = 1e-13
# Policy iteration ends by itself; this only bounds what rounding could do.
_MAX_ROUNDS = 1000


class Optimum(NamedTuple):
    """The best worst-case value from the initial distribution lies in [lower, upper].

    Attributes:
        policy: attains at least `lower`.
        lower: certified: the policy's worst-case value less its error.
        upper: certified: V + max(0, max_s(T̄V − V))/(1−γ), T̄ built from members of the set.
        outlook: of the policy, in the signal's worst case.
    """

    policy: Float[Array, "S A"]
    lower: float
    upper: float
    outlook: Outlook


@eqx.filter_jit
def sweep(
    table: Table,
    signal: Float[Array, "S A J"],
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
) -> tuple[Float[Array, " S"], Float[Array, "S A"], Float[Array, "S A"]]:
    """One sweep of robust value iteration: max_a min_q q·y, its greedy policy, nature's multipliers."""
    any_policy = jnp.full(multipliers.shape, 1 / multipliers.shape[1])
    answer = reply(table, signal, any_policy, values, multipliers)
    best = answer.action_values.max(-1)
    # The first of the actions that are best but for rounding, so that ties do not flicker.
    tied = answer.action_values >= best[:, None] - _TIE * (1 + jnp.abs(best[:, None]))
    greedy = jax.nn.one_hot(tied.argmax(-1), multipliers.shape[1])
    return best, greedy, answer.multipliers


def robust_optimum(
    table: Table,
    signal: Float[Array, "S A J"],
    start: Optimum | Float[Array, "S A"] | None = None,
    tolerance: float = 1e-9,
) -> Optimum:
    """Maximises the worst case of one signal to a certified error; it never stops on a count.

    Each round evaluates the greedy policy exactly in the worst case (so the values only rise) and
    makes one sweep, whose residual bounds the distance to the optimum.

    Arguments:
        table: the model.
        signal: what to maximise.
        start: a policy to start from, or the optimum of a similar signal.
        tolerance: the width of the bracket to reach, relative to max(1, largest |V|).
    """
    alone = table.with_signals(signal[None])
    count = table.probabilities.shape[1]
    outlook: Outlook | None = None
    if isinstance(start, Optimum):
        policy, outlook = start.policy, start.outlook
    else:
        policy = jnp.full((table.states, count), 1 / count) if start is None else start
    best = float("inf")
    for _ in range(_MAX_ROUNDS):
        outlook = worst_outlook(alone, policy, Dual(), outlook)
        values = outlook.values[0]
        swept, greedy, _ = sweep(table, signal, values, outlook.multipliers[0])
        excess = float(jnp.maximum((swept - values).max(), 0.0) / (1 - table.discount))
        error = float(outlook.error[0])
        width = excess + 2 * error
        # Rounding may keep the residual above the tolerance: then it no longer falls.
        if width <= tolerance * max(1.0, float(jnp.abs(values).max())) or width >= best:
            break
        best = min(best, width) if width < 1e-6 else best
        policy = greedy
    assert outlook is not None
    value = float(outlook.value[0])
    return Optimum(policy, value - error, value + excess + error, outlook)
