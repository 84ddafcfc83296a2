"""Kernels in proof files: moves of probability from the nominal rows to a member of the set.

Moves keep the sum of a row exact, whatever their masses are. They are reduced until the checker finds
the row in the set.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Float

from holdfast.tabular.certificates.checker.exact_model import (
    ExactModel,
    ExactRow,
    Payoff,
)
from holdfast.tabular.certificates.checker.exact_sets import member
from holdfast.uncertainty import UncertaintySet, Wasserstein

# Shares by which moves are reduced until the row is in the set: some rounding errors, then more.
_REDUCTIONS = [0.0, *(2.0**-k for k in range(52, 0, -3))]
# Moves of less mass than this, a fraction of one rounding error, are left out.
_LEAST_MOVE = 1e-18

RowMoves = list[tuple[int, int, float]]
Moves = list[list[int | float]]


def kernel_moves(exact: ExactModel, of_row: Callable[[int, int], RowMoves]) -> Moves:
    """Return the moves of all rows as [state, action, from, to, mass], each row in the set.

    Arguments:
        exact: the model.
        of_row: function of state and action to the moves between the entries of that row.
    """
    return [
        [s, a, *move]
        for s, rows in enumerate(exact.rows)
        for a, row in enumerate(rows)
        for move in _inside(exact, row, of_row(s, a))
    ]


def _inside(exact: ExactModel, row: ExactRow, moves: RowMoves) -> RowMoves:
    moves = [move for move in moves if move[2] > _LEAST_MOVE]
    for reduction in _REDUCTIONS if moves else ():
        reduced = [(source, sink, mass * (1 - reduction)) for source, sink, mass in moves]
        if member(exact, row, [(i, j, Fraction(mass)) for i, j, mass in reduced]) is not None:
            return reduced
    return []


def matching_moves(
    exact: ExactModel, q: Float[np.ndarray, "S A K"]
) -> Callable[[int, int], RowMoves]:
    """Return the function from a row to moves that make it equal to that of q, up to rounding.

    Entries that lose mass are matched with entries that receive it, in a Wasserstein set at the least
    cost.
    """

    def of_row(s: int, a: int) -> RowMoves:
        row, total = exact.rows[s][a], sum(map(Fraction, q[s, a].tolist()))
        change = {}
        for k, n in row.place.items():
            exactly = Fraction(q[s, a, k]) / total - row.p[n]
            if exact.kind == "interval":  # rounding must not move an entry whose interval is closed
                below, above = row.room[n]
                exactly = min(max(exactly, -below), above)
            change[k] = float(exactly)
        gives = {k: -d for k, d in change.items() if d < 0}
        takes = {k: d for k, d in change.items() if d > 0}
        if exact.metric and gives and takes:
            return _cheapest(exact, gives, takes)
        return _matched(gives, takes)

    return of_row


def _matched(gives: dict[int, float], takes: dict[int, float]) -> RowMoves:
    sources, sinks, found = list(gives.items()), list(takes.items()), []
    while sources and sinks:
        (source, out), (sink, into) = sources.pop(), sinks.pop()
        mass = min(out, into)
        found.append((source, sink, mass))
        if out > mass:
            sources.append((source, out - mass))
        if into > mass:
            sinks.append((sink, into - mass))
    return found


def _cheapest(exact: ExactModel, gives: dict[int, float], takes: dict[int, float]) -> RowMoves:
    """Return the transport plan of least cost, by a linear program."""
    cost = np.array([[float(exact.metric[i][j]) for j in takes] for i in gives])
    leave = np.kron(np.eye(len(gives)), np.ones(len(takes)))
    arrive = np.kron(np.ones(len(gives)), np.eye(len(takes)))
    out, into = np.array([*gives.values()]), np.array([*takes.values()])
    # Masses of order one make the solver's absolute tolerances relative ones.
    found = scipy.optimize.linprog(
        cost.ravel(),
        A_ub=leave,
        b_ub=out / out.sum(),
        A_eq=arrive,
        b_eq=into / into.sum(),
        method="highs",
    )
    mass = (
        np.maximum(found.x, 0.0).reshape(cost.shape) * out.sum() if found.status == 0 else 0 * cost
    )
    return [(i, j, float(mass[n, m])) for n, i in enumerate(gives) for m, j in enumerate(takes)]


def transport_moves(
    exact: ExactModel,
    uncertainty: UncertaintySet,
    signal: Payoff,
    values: Float[np.ndarray, " S"],
) -> Callable[[int, int], RowMoves]:
    """Return the function from a row to the moves of the worst response to values.

    Arguments:
        exact: the model.
        uncertainty: its Wasserstein set, on the rows of that model.
        signal: the signal.
        values: one number for each state of that model.
    """
    assert isinstance(uncertainty, Wasserstein)
    actions = len(exact.rows[0])
    nominal = np.array([[[float(p) for p in row.p] for row in rows] for rows in exact.rows])
    paid = np.array([[[float(c) for c in row] for row in rows] for rows in signal.paid])
    goes_on = np.isin(np.arange(len(values)), list(signal.ends), invert=True) * values
    following = np.array(
        [[float(row.discount) * goes_on[row.to] for row in rows] for rows in exact.rows]
    )
    targets = jnp.asarray(paid + following)
    _, plan = uncertainty.respond_with_plan(jnp.asarray(nominal), targets)
    source, mass, far, near, share = map(np.asarray, plan)

    def of_row(s: int, a: int) -> RowMoves:
        r = s * actions + a
        ways = ((far[r], share[r]), (near[r], 1 - share[r]))
        return [
            (int(source[r, n]), int(way[n]), float(part * mass[r, n]))
            for n in range(len(exact.metric))
            for way, part in ways
            if way[n] != source[r, n]
        ]

    return of_row
