"""LP: the nominal constrained optimum by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Array, Float

from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.table import Table


def lp(run: Run) -> Float[Array, "S A"]:
    """Maximises the nominal reward subject to the nominal constraints, exactly, in one step.

    Where no policy meets the constraints even nominally, it maximises the smallest nominal margin.
    """
    states, actions = run.layout.model.states, run.layout.model.actions
    occupancy = _best_occupancy(run.table, actions)[:states]
    total = occupancy.sum(-1, keepdims=True)
    # States that are never reached get a uniform row.
    policy = np.where(total > 0, occupancy / np.where(total > 0, total, 1.0), 1 / actions)
    run.record(run.layout.pad_policy(policy))
    return run.policy


def _best_occupancy(table: Table, actions: int) -> Float[np.ndarray, "S A"]:
    """Max Σ x·r subject to the flow equations and Σ x·c_i ≥ d_i, with x ≥ 0 summing to 1/(1−γ)."""
    p = np.asarray(table.probabilities)[:, :actions]
    states = table.states
    signals = (p * np.asarray(table.signals)[:, :, :actions]).sum(-1).reshape(-1, states * actions)
    flow = _flow_equations(table, actions)
    initial, thresholds = np.asarray(table.initial), np.asarray(table.thresholds)

    limits = {"A_ub": -signals[1:], "b_ub": -thresholds} if len(thresholds) else {}
    answer = scipy.optimize.linprog(
        -signals[0], A_eq=flow, b_eq=initial, bounds=(0, None), method="highs", **limits
    )
    if answer.status == 2:
        # Infeasible: one more variable t, the smallest margin, is maximised instead.
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
    return np.maximum(answer.x[: states * actions], 0.0).reshape(states, actions)


def _flow_equations(table: Table, actions: int) -> scipy.sparse.csr_array:
    """Σ_a x(s', a) − γ Σ_{s,a} p(s'|s, a)·x(s, a) = ρ(s'), a row for each s'."""
    p = np.asarray(table.probabilities)[:, :actions]
    states, _, width = p.shape
    if table.successors is None:
        successors = np.broadcast_to(np.arange(width), p.shape)
    else:
        successors = np.asarray(table.successors)[:, :actions]
    pair = np.arange(states * actions)
    arrives = scipy.sparse.csr_array(
        (
            np.asarray(table.discount) * p.ravel(),
            (successors.ravel(), np.repeat(pair, width)),
        ),
        shape=(states, states * actions),
    )
    leaves = scipy.sparse.csr_array(
        (np.ones(states * actions), (np.repeat(np.arange(states), actions), pair)),
        shape=(states, states * actions),
    )
    return leaves - arrives
