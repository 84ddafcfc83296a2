"""The frozen lake: cross slippery ice without falling into a hole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability
from holdfast.environments.grid import indicator_of_cells, neighbours
from holdfast.model import Kernel, RobustCMDP, at_least
from holdfast.uncertainty import KL


def frozen_lake(
    *,
    rows: Sequence[str] = ("SFFF", "FHFH", "FFFH", "HFFG"),
    slip: float = 1 / 3,
    prize: float = 200.0,
    utility_cells: Sequence[int] = (2, 6),
    radius: ArrayLike = 0.1,
    threshold: float = 0.7,
    discount: float = 0.99,
) -> RobustCMDP:
    """Return the frozen lake: reach the goal over slippery ice, with a utility in some cells.

    Cells are numbered row by row. Actions 0 to 3 move left, down, right, up. The move goes to each
    side of the intended direction with probability `slip`; a move off the map stays. The reward is
    `prize` on the transition that enters a goal. The utility is 1 for every step that starts in one of
    `utility_cells`. Holes and goals absorb, with neither reward nor utility. The uncertainty set is a
    KL ball.

    From the paper: the 4 × 4 size, prize, radius, threshold, and a utility of 1 "at some states". From
    Gymnasium's FrozenLake-v1, the environment that the paper names: the map and slip. Ours, because
    the paper leaves them open: the cells with the utility, the discount, and the initial cell, uniform
    on the ice.

    Arguments:
        rows: the map, strings of equal length: H is a hole, G a goal, S and F are ice.
        slip: probability of each of the two sideways moves, at most 1/2.
        prize: reward on reaching a goal.
        utility_cells: numbers of the cells of ice that have the utility.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: smallest accepted discounted utility.
        discount: discount, in [0, 1).

    Returns:
        A model with one state for each cell, four actions and the constraint "utility".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.frozen_lake()
        >>> model.states, model.actions
        (16, 4)
        >>> print(model.constraints[0], model.transitions.successors[14, 2])
        utility ≥ 0.7 [14 15 10]

    Reference:
        Sun, He, Miao and Zou, Constrained Reinforcement Learning Under Model Mismatch (ICML 2024),
        appendix on experiments; Towers et al., Gymnasium (2024), environment FrozenLake-v1.
    """
    check_probability("slip", slip, most=0.5)
    letters = _letters(rows)
    cell = letters.ravel()
    ice = (cell == "S") | (cell == "F")
    turns = (np.arange(4)[:, None] + [-1, 0, 1]) % 4
    successors = np.where(
        ice[:, None, None], neighbours(letters.shape)[:, turns], np.arange(cell.size)[:, None, None]
    )
    enters_goal = ice[:, None, None] & (cell[successors] == "G")
    utility = indicator_of_cells("utility_cells", utility_cells, ~ice)
    return RobustCMDP(
        transitions=Kernel(
            successors, np.broadcast_to([slip, 1 - 2 * slip, slip], successors.shape)
        ),
        reward=np.where(enters_goal, prize, 0.0),
        constraints=[at_least(utility, threshold, name="utility")],
        initial=ice / ice.sum(),
        discount=discount,
        uncertainty=KL(radius),
    )


def _letters(rows: Sequence[str]) -> np.ndarray:
    if isinstance(rows, str) or not rows or not all(isinstance(row, str) and row for row in rows):
        raise ValueError(f"rows: expected strings, one for each row of the map, got {rows!r}")
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"rows: row {i}, {row!r}, is not as long as row 0, {rows[0]!r}")
        if unknown := set(row) - set("SFHG"):
            raise ValueError(f"rows: row {i}, {row!r}, has {min(unknown)!r}, expected S, F, H or G")
    letters = np.array([list(row) for row in rows])
    if not (letters == "G").any():
        raise ValueError(f"rows: no goal G in {tuple(rows)}")
    if not np.isin(letters, ["S", "F"]).any():
        raise ValueError(f"rows: no ice S or F to start from in {tuple(rows)}")
    return letters
