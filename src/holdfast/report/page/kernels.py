"""The worst-case kernels beside the nominal one, as state-to-state tables under the policy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from holdfast.model import Kernel, RobustCMDP
from holdfast.report.page.content import Kernels, Matrix, table_of_numbers

# A heat map with more states has cells too small to see.
MOST_STATES_WHOLE, MOST_ROWS, MOST_COLUMNS = 60, 40, 60
# The tables are dense while they are compared.
MOST_STATES = 2000


def under_policy(
    kernel: np.ndarray | Kernel, policy: Float[np.ndarray, "S A"]
) -> Float[np.ndarray, "S S"]:
    """P(s'|s) when the policy acts.

    Example:
        >>> import numpy as np, holdfast as hf
        >>> lists = hf.Kernel(
        ...     successors=[[[0, 1]], [[1, 1]]], probabilities=[[[0.25, 0.75]], [[0.5, 0.5]]]
        ... )
        >>> under_policy(lists, np.ones((2, 1))).tolist()
        [[0.25, 0.75], [0.0, 1.0]]
    """
    if not isinstance(kernel, Kernel):
        return np.einsum("sa,sat->st", policy, kernel)
    states = len(policy)
    table = np.zeros((states, states))
    state = np.arange(states)[:, None, None]
    np.add.at(
        table,
        (np.broadcast_to(state, kernel.successors.shape), kernel.successors),
        policy[..., None] * kernel.probabilities,
    )
    return table


def kernel_block(
    model: RobustCMDP, policy: Float[np.ndarray, "S A"], worst: Mapping[str, np.ndarray | Kernel]
) -> Kernels:
    """Heat maps of the nominal kernel, of every signal's worst case and of their differences.

    Arguments:
        model: whose kernel is nominal.
        policy: that acts.
        worst: worst-case kernels, by what they are the worst for.
    """
    nominal = under_policy(model.transitions, policy)
    tables = {name: under_policy(kernel, policy) for name, kernel in worst.items()}
    changes = sum((np.abs(table - nominal) for table in tables.values()), np.zeros_like(nominal))
    rows, columns = _shown(changes)
    cut = np.ix_(rows, columns)
    others = [
        Matrix(f"worst case for {n}", False, table_of_numbers(t[cut])) for n, t in tables.items()
    ]
    others += [
        Matrix(
            f"worst case for {name}, less nominal", True, table_of_numbers((table - nominal)[cut])
        )
        for name, table in tables.items()
    ]
    about = "Each row is a state, each column the next one; the policy acts."
    if len(rows) < model.states:
        about += (
            f" Of {model.states} states these are the {len(rows)} whose rows nature changes most, "
            f"and the {len(columns)} next states most affected."
        )
    return Kernels(
        key="kernels",
        title="Nominal and worst-case kernel",
        about=about,
        rows=rows.tolist(),
        columns=columns.tolist(),
        nominal=Matrix("nominal", False, table_of_numbers(nominal[cut])),
        others=others,
    )


def _shown(changes: Float[np.ndarray, "S S"]) -> tuple[np.ndarray, np.ndarray]:
    """All states where they can be seen, else those that nature changes most."""
    states = len(changes)
    if states <= MOST_STATES_WHOLE:
        return np.arange(states), np.arange(states)
    rows = np.sort(np.argsort(-changes.sum(1), kind="stable")[:MOST_ROWS])
    columns = np.sort(np.argsort(-changes[rows].sum(0), kind="stable")[:MOST_COLUMNS])
    return rows, columns
