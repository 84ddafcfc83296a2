"""The slippery lake: every move may go any way, and thin ice costs instead of ending the walk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.environments.grid import check_cells, noisy_moves
from holdfast.model import Kernel, RobustCMDP, at_most
from holdfast.uncertainty import KL


def slippery_lake(
    *,
    size: int = 4,
    success: float = 0.5,
    prize: float = 10.0,
    thin_ice: Sequence[int] = (5, 7, 11, 12),
    radius: ArrayLike = 0.05,
    threshold: float = 3.0,
    discount: float = 0.95,
) -> RobustCMDP:
    """A lake where a move goes as meant with probability 1/2 and each other way with 1/6.

    Cells are numbered row by row; actions 0 to 3 move left, down, right, up; a move off the map
    stays. The last cell is the goal: it absorbs, and entering it pays `prize`. A step begun on thin
    ice costs 1. The uncertainty set is a KL ball.

    After the RNPG paper's modified Frozen-Lake: size and probabilities; from its public code, the
    absorbing goal and the prize of 10 (the paper's table has 1). Ours: that the prize is paid once,
    on entering; thin ice where the frozen lake has its holes (the paper draws its obstacles at
    random); the initial cell, uniform on all but the goal; discount, set, radius and threshold.

    Arguments:
        size: rows and columns, at least 2.
        success: probability of the move that was meant.
        prize: reward on entering the goal.
        thin_ice: numbers of the cells that cost.
        radius: of the KL ball, a number or an (S, A) array.
        threshold: largest discounted cost that is accepted.
        discount: in [0, 1).

    Returns:
        A model with one state for each cell, four actions and the constraint "thin ice".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.slippery_lake()
        >>> model.states, model.actions
        (16, 4)
        >>> print(model.constraints[0], model.transitions.successors[14, 2])
        thin ice ≤ 3 [13 14 15 10]

    Reference:
        Ganguly, Ghosh, Panaganti and Wierman, Efficient Policy Optimization in Robust Constrained
        MDPs with Iteration Complexity Guarantees (arXiv 2505.19238), experiments.
    """
    check_whole_number("size", size, least=2)
    check_probability("success", success)
    goal = size * size - 1
    successors, probabilities = noisy_moves(size, goal, success)
    enters = (successors == goal) & (np.arange(size * size) != goal)[:, None, None]
    cost = np.zeros((size * size, 4))
    cost[check_cells("thin_ice", thin_ice, size * size, goal)] = 1.0
    return RobustCMDP(
        transitions=Kernel(successors, probabilities),
        reward=np.where(enters, prize, 0.0),
        constraints=[at_most(cost, threshold, name="thin ice")],
        initial=np.where(np.arange(size * size) == goal, 0.0, 1 / goal),
        discount=discount,
        uncertainty=KL(radius),
    )
