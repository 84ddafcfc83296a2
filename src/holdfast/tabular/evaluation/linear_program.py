"""The constrained optimum under one kernel, by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Array, Float

from holdfast.model.table import Table

# Status of `scipy.optimize.linprog` for an infeasible program.
_INFEASIBLE = 2


class ConstrainedOptimum(NamedTuple):
    """The constrained optimum under one kernel.

    Attributes:
        feasible: whether some policy meets every constraint under this kernel.
        value: the largest reward; if no policy is feasible, the largest smallest margin.
        occupancy: Σ_t γ^t P(s_t = s, a_t = a) of a policy that attains it.
        multipliers: multipliers of the constraints; if no policy is feasible, weights that prove it.
    """

    feasible: bool
    value: float
    occupancy: Float[np.ndarray, "S A"]
    multipliers: Float[np.ndarray, " m"]


def constrained_optimum(
    table: Table, actions: int, kernel: Float[Array, "S A K"] | None = None
) -> ConstrainedOptimum:
    """Return the maximum of Σ x·r subject to the flow equations, Σ x·c_i ≥ d_i and x ≥ 0.

    Arguments:
        table: the model.
        actions: number of the model's own actions; the rest of the table's are padding.
        kernel: the kernel, (S, A, K). Default: the nominal one.
    """
    p = np.asarray(table.probabilities if kernel is None else kernel)[:, :actions]
    states = table.states
    signals = (p * np.asarray(table.signals)[:, :, :actions]).sum(-1).reshape(-1, states * actions)
    flow = _flow_equations(table, p)
    initial, thresholds = np.asarray(table.initial), np.asarray(table.thresholds)

    limits = {"A_ub": -signals[1:], "b_ub": -thresholds} if len(thresholds) else {}
    answer = scipy.optimize.linprog(
        -signals[0], A_eq=flow, b_eq=initial, bounds=(0, None), method="highs", **limits
    )
    feasible = answer.status != _INFEASIBLE
    if not feasible:
        # Maximise one more variable instead: the smallest margin.
        objective = np.r_[np.zeros(states * actions), -1.0]
        answer = scipy.optimize.linprog(
            objective,
            A_eq=scipy.sparse.hstack([flow, scipy.sparse.csr_array((states, 1))]),
            b_eq=initial,
            A_ub=np.hstack([-signals[1:], np.ones((len(thresholds), 1))]),
            b_ub=-thresholds,
            bounds=[(0, None)] * (states * actions) + [(None, None)],
            method="highs",
        )
    if answer.status != 0:
        raise RuntimeError(f"the linear program was not solved: {answer.message}")
    occupancy = np.maximum(answer.x[: states * actions], 0.0).reshape(states, actions)
    multipliers = np.maximum(-answer.ineqlin.marginals, 0.0) if len(thresholds) else np.zeros(0)
    return ConstrainedOptimum(feasible, -float(answer.fun), occupancy, multipliers)


def _flow_equations(table: Table, p: Float[np.ndarray, "S A K"]) -> scipy.sparse.csr_array:
    """Return the matrix of Σ_a x(s', a) − γ Σ_{s,a} p(s'|s, a)·x(s, a) = ρ(s'), a row for each s'."""
    states, actions, width = p.shape
    if table.successors is None:
        successors = np.broadcast_to(np.arange(width), p.shape)
    else:
        successors = np.asarray(table.successors)[:, :actions]
    pair, shape = np.arange(states * actions), (states, states * actions)
    arrivals = np.asarray(table.discount) * p.ravel()
    arrives = scipy.sparse.csr_array(
        (arrivals, (successors.ravel(), np.repeat(pair, width))), shape=shape
    )
    leaves = scipy.sparse.csr_array(
        (np.ones(states * actions), (np.repeat(np.arange(states), actions), pair)), shape=shape
    )
    return leaves - arrives
