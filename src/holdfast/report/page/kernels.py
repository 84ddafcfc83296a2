"""The worst-case kernels beside the nominal one, as state-to-state matrices under the policy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from holdfast.model import Kernel, RobustCMDP
from holdfast.report.page.content import Block, Grid, HeatMap, HeatMaps
from holdfast.report.page.grid import grid_block, map_of, signal_names, under_policy

# The cells of a heat map with more states are too small to see.
MOST_STATES_WHOLE, MOST_ROWS, MOST_COLUMNS = 60, 40, 60
# The matrices are dense while they are compared: 2,000 states take 32 MB each.
MOST_STATES = 2000


def kernel_blocks(
    model: RobustCMDP, policy: Float[np.ndarray, "S A"], whose: str = ""
) -> list[Block]:
    """Return heat maps of the worst-case kernels, and the map of a grid world; none for large models.

    Arguments:
        model: the model.
        policy: the policy that acts.
        whose: origin of the policy, appended to the titles.
    """
    import holdfast as hf

    if (
        model.states > MOST_STATES or model.horizon is not None
    ):  # a kernel for every step is no picture
        return []
    evaluation = hf.evaluate(model, policy)
    names = ("reward", *signal_names(model))
    found = (evaluation.reward, *evaluation.constraints)
    worst = {name: each.kernel for name, each in zip(names, found, strict=True)}
    rows = map_of(model)
    blocks: list[Grid | HeatMaps] = [kernel_block(model, policy, worst)]
    if rows is not None:
        blocks.insert(0, grid_block(rows, model, policy, worst))
    suffix = f": {whose}" if whose else ""
    return [block._replace(title=f"{block.title}{suffix}") for block in blocks]


def kernel_block(
    model: RobustCMDP, policy: Float[np.ndarray, "S A"], worst: Mapping[str, np.ndarray | Kernel]
) -> HeatMaps:
    """Return heat maps of the nominal kernel, of the worst-case kernels and of the differences.

    Arguments:
        model: the model, with the nominal kernel.
        policy: the policy that acts.
        worst: worst-case kernels by signal.
    """
    nominal = under_policy(model.transitions, policy)
    tables = {
        f"worst case for {name}": under_policy(kernel, policy) for name, kernel in worst.items()
    }
    changes = sum((np.abs(table - nominal) for table in tables.values()), np.zeros_like(nominal))
    rows, columns = _shown(changes)
    cut = np.ix_(rows, columns)
    others = [HeatMap(name, False, table[cut]) for name, table in tables.items()]
    others += [
        HeatMap(f"{name}, less nominal", True, (table - nominal)[cut])
        for name, table in tables.items()
    ]
    about = "Each row is a state, each column the next state; the policy acts."
    if len(rows) < model.states:
        about += (
            f" Of {model.states} states these are the {len(rows)} whose rows nature changes most, "
            f"and the {len(columns)} next states most affected."
        )
    title, first = "Nominal and worst-case kernel", HeatMap("nominal", False, nominal[cut])
    names = model.state_names or range(model.states)
    states, following = ([names[s] for s in axis] for axis in (rows, columns))
    return HeatMaps("kernels", title, about, states, following, first, others)


def _shown(changes: Float[np.ndarray, "S S"]) -> tuple[np.ndarray, np.ndarray]:
    """Return all states if a heat map can show them, else the states that nature changes most."""
    states = len(changes)
    if states <= MOST_STATES_WHOLE:
        return np.arange(states), np.arange(states)
    rows = np.sort(np.argsort(-changes.sum(1), kind="stable")[:MOST_ROWS])
    columns = np.sort(np.argsort(-changes[rows].sum(0), kind="stable")[:MOST_COLUMNS])
    return rows, columns
