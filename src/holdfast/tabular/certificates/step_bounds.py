"""Lower bounds on the change of values in one step from π_k to π_{k+1}.

The paper's robust performance difference lemma, (6), holds. Its two theorems rest on steps that
fail on random models: the Lipschitz constant of each state, E[KL(π_{k+1}‖π_k)] ≤ δ, and the term
b²α_KL. The bounds proved here instead, with κ = E_{d^r}[KL(π_{k+1}‖π_k)], Δ_r and Δ_c the ranges of
the signals, and M the largest ratio of occupancies within the set, are

    V_r(π_{k+1}) − V_r(π_k) ≥ −M·Δ_r·√(κ/2)/(1−γ)²,
    V_c(π_{k+1}) ≥ d − 2M·Δ_c·√(κ/2)/(1−γ)²   if the linearised constraint is met.

The proof is in `docs/explanation/theory.md`. The paper's own bounds are computed for comparison.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table, padded_size
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import Dual, values_under, worst_case, worst_kernels
from holdfast.tabular.steps.tilted_policy import TiltedPolicies


def step_bounds(
    table: Table,
    before: Float[Array, "S A"],
    after: Float[Array, "S A"],
    worst_before: PolicyValues,
    worst_after: PolicyValues,
    delta: float,
    states: int,
) -> dict[str, np.ndarray]:
    """Return the columns that `solve(..., bounds=True)` adds to a row of the history.

    Arguments:
        table: the model.
        before: π_k, (S, A).
        after: π_{k+1}, (S, A).
        worst_before: worst-case values of π_k.
        worst_after: worst-case values of π_{k+1}.
        delta: trust region δ, for the paper's bounds.
        states: number of the model's own states; the rest of the table's are padding.

    Returns:
        `reward_change`, and its lower bounds `lemma_bound`, `reward_bound` and
        `paper_reward_bound`; `linearised_margins` of π_{k+1}; the lower bounds `margin_bounds` and
        `paper_margin_bounds` of its true margins (the paper's bound has an unspecified constant if
        π_k is infeasible, and is NaN there); and `occupancy_ratio`, the theorem's M.
    """
    ratio = occupancy_ratio(table, before, states)
    columns = _bounds(
        table, before, after, worst_before, worst_after, jnp.asarray(ratio), jnp.asarray(delta)
    )
    return {name: np.asarray(value) for name, value in columns.items()}


def occupancy_ratio(table: Table, policy: Float[Array, "S A"], states: int) -> float:
    """Return an upper bound on M = max_s max_p d_p(s)/min_p d_p(s), from 2S robust evaluations of 1{s}.

    It is infinite if some kernel of the set reaches a state that another one does not.

    Arguments:
        table: the model.
        policy: the policy whose occupancies are compared, (S, A).
        states: number of the model's own states.
    """
    actions = policy.shape[1]
    count = min(padded_size(states), table.states)
    indicator = jnp.eye(count, table.states)[:, :, None, None]
    indicator = jnp.broadcast_to(indicator, (count, table.states, actions, 1))
    both = table.with_signals(jnp.concatenate([indicator, -indicator]))
    found = worst_case(both, policy, Dual())
    smallest = found.value[:count] - found.error[:count]
    largest = found.error[count:] - found.value[count:]
    reached = -found.value[count:] > found.error[count:]
    ratio = jnp.where(smallest > 0, largest / jnp.where(smallest > 0, smallest, 1.0), jnp.inf)
    return float(jnp.where(reached, ratio, 1.0).max())


def no_step_bounds(bounds: dict[str, np.ndarray], margins: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns for a policy that did not change since a step with these bounds."""
    still = ("reward_change", "lemma_bound", "reward_bound", "margin_bounds")
    unchanged = {name: np.zeros_like(bounds[name]) for name in still}
    return {**bounds, **unchanged, "linearised_margins": margins}


def performance_difference_bound(
    after: Float[Array, "S A"],
    crossed: PolicyValues,
    kl: Float[Array, " S"],
    discount: Float[Array, ""],
    signal: int = 0,
) -> Float[Array, ""]:
    """Return the lower bound (6) of Lemma 4.1 on V_r(π') − V_r(π), the robust performance difference.

    LaTeX numbers the lemma 4.1; the label of its equation, `eq:lemma31`, has an older number. For a
    utility the bound is (41), and with radius 0 it is (28) and (29).

    Arguments:
        after: π', (S, A).
        crossed: values of π under the worst-case kernels of π'.
        kl: KL(π'‖π)(s), (S,).
        discount: γ.
        signal: 0 for the reward, 1, 2, … for the utilities.
    """
    gain = (after * crossed.advantages[signal]).sum(-1)
    penalty = 2 * discount * jnp.abs(gain).max() / (1 - discount) * jnp.sqrt(kl / 2)
    visits = crossed.occupancy[signal]
    return jnp.where(visits > 0, visits * (gain - penalty), 0.0).sum() / (1 - discount)


@compiled
def _bounds(
    table: Table,
    before: Array,
    after: Array,
    worst_before: PolicyValues,
    worst_after: PolicyValues,
    ratio: Array,
    delta: Array,
) -> dict[str, Array]:
    gamma = table.discount
    actions = (before > 0).sum(-1).max()
    d = worst_before.occupancy[0]
    # With − π + π_k every term is non-negative, so that the sum loses little to rounding.
    kl = jnp.maximum((rel_entr(after, before) - after + before).sum(-1), 0.0)
    drift = jnp.sqrt(jnp.where(d > 0, d * kl, 0.0).sum() / 2)
    ranges = jnp.stack([_range(table, signal, worst_before) for signal in table.signals])

    # The values of π_k under the worst-case kernels of π_{k+1}.
    kernels = worst_kernels(table, worst_after)
    crossed = values_under(table, before, kernels, worst_after)
    largest_gain = jnp.abs((after * crossed.advantages).sum(-1)).max(-1)

    tilts = TiltedPolicies.at(before, worst_before, table.thresholds, table.step_share, "taylor")
    curvature = jnp.diag(tilts.curvature)[1:]
    violation = jnp.maximum(tilts.needed, 0.0)
    stretch = jnp.where(violation > 0, violation**2 / (2 * curvature), 0.0).max(initial=0.0)
    lipschitz = jnp.sqrt(actions) / (1 - gamma) ** 2 * ranges
    slack = 2 * gamma * largest_gain / (1 - gamma)
    paper = ratio * jnp.sqrt(delta / 2) / (1 - gamma)
    gained = (after * worst_before.advantages[1:]).sum(-1)
    linearised = (worst_before.occupancy[1:] * gained).sum(-1) / (1 - gamma)
    return {
        "reward_change": worst_after.value[0] - worst_before.value[0],
        "lemma_bound": performance_difference_bound(after, crossed, kl, gamma),
        "reward_bound": -ratio * ranges[0] * drift / (1 - gamma) ** 2,
        "paper_reward_bound": -paper
        * jnp.sqrt(1 + stretch / delta)
        * (2 * lipschitz[0] + slack[0]),
        "linearised_margins": linearised - tilts.needed,
        "margin_bounds": -2 * ratio * ranges[1:] * drift / (1 - gamma) ** 2,
        "paper_margin_bounds": jnp.where(
            violation > 0, jnp.nan, -paper * (3 * lipschitz[1:] + slack[1:])
        ),
        "occupancy_ratio": ratio,
    }


def _range(table: Table, signal: Array, values: PolicyValues) -> Array:
    """Return the range of a signal over the transitions that can occur."""
    reached = (values.occupancy.max(0) > 0)[:, None, None]
    possible = reached & (table.probabilities > 0)
    signal = jnp.broadcast_to(signal, table.probabilities.shape)
    high = jnp.where(possible, signal, -jnp.inf).max()
    return high - jnp.where(possible, signal, jnp.inf).min()
