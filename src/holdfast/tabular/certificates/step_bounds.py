"""What theory promises of one step from π_k to π_{k+1}, to be set beside what happened.

The paper's Lemma 3.1 holds. Its two theorems rest on steps that fail on random models (the
per-state Lipschitz constant; E[KL(π_{k+1}‖π_k)] ≤ δ; the term b²α_KL), so the bounds that are proved
here are others, with κ = E_{d^r}[KL(π_{k+1}‖π_k)], ρ the range of the signal and M the largest ratio of
occupancies that the set allows:

    V_r(π_{k+1}) − V_r(π_k) ≥ −M·ρ_r·√(κ/2)/(1−γ)²,
    V_c(π_{k+1}) ≥ d − 2M·ρ_c·√(κ/2)/(1−γ)²   where the linearised constraint is met.

The proof is in `docs/theory.md`. The paper's own bounds are computed too, for comparison.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr
from jaxtyping import Array, Float

from holdfast.model.table import Table, padded_size
from holdfast.tabular.evaluation.values import Outlook
from holdfast.tabular.evaluation.worst_case import Dual, outlook_under, worst_outlook
from holdfast.tabular.steps.tilted_policy import Tilts


def step_bounds(
    table: Table,
    before: Float[Array, "S A"],
    after: Float[Array, "S A"],
    worst_before: Outlook,
    worst_after: Outlook,
    delta: float,
    states: int,
) -> dict[str, np.ndarray]:
    """The columns that `solve(..., bounds=True)` adds to a row of the history.

    Arguments:
        table: the model.
        before: π_k.
        after: π_{k+1}.
        worst_before: outlook of π_k in the worst case.
        worst_after: outlook of π_{k+1} in the worst case.
        delta: the trust region, as the paper's bounds have it.
        states: how many of the table's states are the model's own.

    Returns:
        `reward_change`, with `lemma_bound`, `reward_bound` and `paper_reward_bound` below it;
        `linearised_margins` of π_{k+1}, and `margin_bounds` and `paper_margin_bounds` below its true
        margins (the paper's needs an unspecified constant where π_k is infeasible: nan there);
        `occupancy_ratio`, the theorem's M.
    """
    ratio = occupancy_ratio(table, before, states)
    columns = _bounds(
        table, before, after, worst_before, worst_after, jnp.asarray(ratio), jnp.asarray(delta)
    )
    return {name: np.asarray(value) for name, value in columns.items()}


def occupancy_ratio(table: Table, policy: Float[Array, "S A"], states: int) -> float:
    """M = max_s max_p d_p(s)/min_p d_p(s), certified from above by 2S robust evaluations of 1{s}.

    Infinite where some kernel of the set reaches a state that another does not.

    Arguments:
        table: the model.
        policy: whose occupancies are compared.
        states: how many of the table's states are the model's own.
    """
    actions = policy.shape[1]
    count = min(padded_size(states), table.states)
    indicator = jnp.eye(count, table.states)[:, :, None, None]
    indicator = jnp.broadcast_to(indicator, (count, table.states, actions, 1))
    both = table.with_signals(jnp.concatenate([indicator, -indicator]))
    outlook = worst_outlook(both, policy, Dual())
    smallest = outlook.value[:count] - outlook.error[:count]
    largest = outlook.error[count:] - outlook.value[count:]
    reached = -outlook.value[count:] > outlook.error[count:]
    ratio = jnp.where(smallest > 0, largest / jnp.where(smallest > 0, smallest, 1.0), jnp.inf)
    return float(jnp.where(reached, ratio, 1.0).max())


def no_step_bounds(bounds: dict[str, np.ndarray], margins: np.ndarray) -> dict[str, np.ndarray]:
    """The same columns where the policy did not change since a step that had `bounds`."""
    still = ("reward_change", "lemma_bound", "reward_bound", "margin_bounds")
    unchanged = {name: np.zeros_like(bounds[name]) for name in still}
    return {**bounds, **unchanged, "linearised_margins": margins}


@eqx.filter_jit
def _bounds(
    table: Table,
    before: Array,
    after: Array,
    worst_before: Outlook,
    worst_after: Outlook,
    ratio: Array,
    delta: Array,
) -> dict[str, Array]:
    gamma = table.discount
    actions = (before > 0).sum(-1).max()
    d = worst_before.occupancy[0]
    # With − π + π_k every term is non-negative, so that little is lost to rounding.
    kl = jnp.maximum((rel_entr(after, before) - after + before).sum(-1), 0.0)
    drift = jnp.sqrt(jnp.where(d > 0, d * kl, 0.0).sum() / 2)
    ranges = jnp.stack([_range(table, signal, worst_before) for signal in table.signals])

    # Of π_k under the worst-case kernels of π_{k+1}.
    crossed = outlook_under(table, before, worst_after)
    gains = (after * crossed.advantages).sum(-1)
    largest_gain = jnp.abs(gains).max(-1)
    occupancy, gain = crossed.occupancy[0], gains[0]
    penalty = 2 * gamma * largest_gain[0] / (1 - gamma) * jnp.sqrt(kl / 2)
    lemma = jnp.where(occupancy > 0, occupancy * (gain - penalty), 0.0).sum() / (1 - gamma)

    tilts = Tilts.at(before, worst_before, table.thresholds, gamma, "taylor")
    curvature = jnp.diag(tilts.curvature)[1:]
    violation = jnp.maximum(tilts.needed, 0.0)
    stretch = jnp.where(violation > 0, violation**2 / (2 * curvature), 0.0).max(initial=0.0)
    lipschitz = jnp.sqrt(actions) / (1 - gamma) ** 2 * ranges
    slack = 2 * gamma * largest_gain / (1 - gamma)
    paper = ratio * jnp.sqrt(delta / 2) / (1 - gamma)
    linearised = (worst_before.occupancy[1:] * (after * worst_before.advantages[1:]).sum(-1)).sum(
        -1
    )
    return {
        "reward_change": worst_after.value[0] - worst_before.value[0],
        "lemma_bound": lemma,
        "reward_bound": -ratio * ranges[0] * drift / (1 - gamma) ** 2,
        "paper_reward_bound": -paper
        * jnp.sqrt(1 + stretch / delta)
        * (2 * lipschitz[0] + slack[0]),
        "linearised_margins": linearised / (1 - gamma) - tilts.needed,
        "margin_bounds": -2 * ratio * ranges[1:] * drift / (1 - gamma) ** 2,
        "paper_margin_bounds": jnp.where(
            violation > 0, jnp.nan, -paper * (3 * lipschitz[1:] + slack[1:])
        ),
        "occupancy_ratio": ratio,
    }


def _range(table: Table, signal: Array, outlook: Outlook) -> Array:
    """The range of a signal over what can happen."""
    reached = (outlook.occupancy.max(0) > 0)[:, None, None]
    possible = reached & (table.probabilities > 0)
    signal = jnp.broadcast_to(signal, table.probabilities.shape)
    high = jnp.where(possible, signal, -jnp.inf).max()
    return high - jnp.where(possible, signal, jnp.inf).min()
