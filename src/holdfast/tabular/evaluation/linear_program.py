"""The constrained optimum under one kernel, by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.flags import Flags, flags_of

# Status of `scipy.optimize.linprog` for an infeasible program.
_INFEASIBLE = 2


class ConstrainedOptimum(NamedTuple):
    """The constrained optimum under one kernel.

    Attributes:
        feasible: whether some policy meets every constraint under this kernel.
        value: the largest reward; if no policy is feasible, the largest smallest margin.
        occupancy: Σ_t γ^t P(s_t = s, a_t = a) of a policy that attains it; with a horizon
            P(s_t = s, a_t = a), for every step.
        multipliers: multipliers of the constraints; if no policy is feasible, weights that prove it.
    """

    feasible: bool
    value: float
    occupancy: Float[np.ndarray, "rows A"]
    multipliers: Float[np.ndarray, " m"]


def constrained_optimum(
    table: Table, actions: int, kernel: Float[Array, "rows A K"] | None = None
) -> ConstrainedOptimum:
    """Return the maximum of Σ x·r subject to the flow equations, Σ x·c_i ≥ d_i and x ≥ 0.

    The occupancy x has an entry for every step of a horizon, and for every set of events of `reach`
    rules that may have happened.

    Arguments:
        table: the model.
        actions: number of the model's own actions; the rest of the table's are padding.
        kernel: the kernel, (S, A, K), or (H·S, A, K) with a horizon. Default: the nominal one.
    """
    flags = flags_of(table)
    steps, states = table.horizon or 1, table.states
    given = np.asarray(table.probabilities if kernel is None else kernel)
    given = given.reshape(-1, states, *given.shape[-2:])[:, :, :actions]
    p = np.broadcast_to(given, (steps, *given.shape[1:]))
    signals = _paid(table, flags, p).reshape(len(table.signals), -1)
    flow, count = _flow_equations(table, flags, p), signals.shape[-1]
    initial = np.zeros(flow.shape[0])
    initial[:states] = np.asarray(table.initial)  # step 0, no event so far
    thresholds = np.asarray(table.thresholds)

    limits = {"A_ub": -signals[1:], "b_ub": -thresholds} if len(thresholds) else {}
    answer = scipy.optimize.linprog(
        -signals[0], A_eq=flow, b_eq=initial, bounds=(0, None), method="highs", **limits
    )
    feasible = answer.status != _INFEASIBLE
    if not feasible:
        # Maximise one more variable instead: the smallest margin.
        objective = np.r_[np.zeros(count), -1.0]
        answer = scipy.optimize.linprog(
            objective,
            A_eq=scipy.sparse.hstack([flow, scipy.sparse.csr_array((flow.shape[0], 1))]),
            b_eq=initial,
            A_ub=np.hstack([-signals[1:], np.ones((len(thresholds), 1))]),
            b_ub=-thresholds,
            bounds=[(0, None)] * count + [(None, None)],
            method="highs",
        )
    if answer.status != 0:
        raise RuntimeError(f"the linear program was not solved: {answer.message}")
    nodes = np.maximum(answer.x[:count], 0.0).reshape(-1, table.rows, actions)
    occupancy = nodes.sum(0)  # over the flags
    multipliers = np.maximum(-answer.ineqlin.marginals, 0.0) if len(thresholds) else np.zeros(0)
    return ConstrainedOptimum(feasible, -float(answer.fun), occupancy, multipliers)


def _paid(
    table: Table, flags: Flags, p: Float[np.ndarray, "T S A K"]
) -> Float[np.ndarray, "n F T S A"]:
    """Return what every signal is paid for one unit of x(f, t, s, a)."""
    given = np.asarray(table.signals)[..., : p.shape[2], :]
    given = given.reshape(len(given), -1, table.states, *given.shape[-2:])
    means = (p * given).sum(-1)
    if table.horizon is not None:
        means = means * float(table.discount) ** np.arange(len(p))[:, None, None]
    paid = np.repeat(means[:, None], len(flags.stops), axis=1)
    paid += np.moveaxis(flags.pays, 1, 0)[:, :, None, :, None]
    if table.horizon is not None:  # the state after the last action counts
        last = np.broadcast_to(_successors(table, *p.shape[2:]), p.shape)[-1]
        for f, after in enumerate(flags.following):
            received = flags.pays[after].transpose(1, 0, 2)  # signal, state s, state s'
            row = np.arange(table.states)[:, None, None]
            paid[:, f, -1] += (p[-1] * received[:, row, last]).sum(-1)
    return paid


def _flow_equations(
    table: Table, flags: Flags, p: Float[np.ndarray, "T S A K"]
) -> scipy.sparse.csr_array:
    """Return the matrix of the flow equations, with a row for each set of flags, step and state.

    Without a horizon Σ_a x(s', a) − γ Σ_{s,a} p(s'|s, a)·x(s, a) = ρ(s'). With one, the flow goes from
    each step to the next without a discount.
    """
    steps, states, actions, width = p.shape
    sets, horizon = len(flags.stops), table.horizon
    successors = np.broadcast_to(_successors(table, actions, width), p.shape)
    node = np.arange(sets * steps * states).reshape(sets, steps, states)
    column = np.arange(node.size * actions).reshape(*node.shape, actions)
    leaves = scipy.sparse.csr_array(
        (np.ones(column.size), (np.repeat(node.ravel(), actions), column.ravel())),
        shape=(node.size, column.size),
    )
    going = slice(None) if horizon is None else slice(-1)
    # The first node of the next step, in the set of flags after each state.
    first = node[flags.following, :, 0].transpose(0, 2, 1)  # (F, T, S)
    first = first if horizon is None else first[:, 1:]
    to = first[..., None, None] + successors[going]
    flow = np.broadcast_to((table.discount if horizon is None else 1.0) * p[going], to.shape)
    source = np.broadcast_to(column[:, going, ..., None], to.shape)
    arrives = scipy.sparse.csr_array(
        (np.asarray(flow).ravel(), (to.ravel(), source.ravel())), shape=leaves.shape
    )
    return leaves - arrives


def _successors(table: Table, actions: int, width: int) -> np.ndarray:
    """Return the next states of every entry, with a leading axis of steps or one."""
    if table.successors is None:
        return np.arange(width)
    lists = np.asarray(table.successors)
    return lists.reshape(-1, table.states, *lists.shape[-2:])[:, :, :actions]
