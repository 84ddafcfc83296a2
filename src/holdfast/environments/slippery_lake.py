"""The slippery lake: every move may go in any direction, and thin ice costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.environments.grid import indicator_of_cells, noisy_moves
from holdfast.model import RobustCMDP, at_most
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
    """Return a lake on which half of all moves fail, with a prize at the goal and thin ice that costs.

    Cells are numbered row by row. Actions 0 to 3 move left, down, right, up. A move goes as intended
    with probability 1/2 and in each other direction with 1/6; a move off the map stays. The last cell
    is the goal: it absorbs, and entering it pays `prize`. A step that starts on thin ice costs 1. The
    uncertainty set is a KL ball.

    From the RNPG paper's modified Frozen-Lake: size and probabilities. From its public code: the
    absorbing goal and the prize of 10 (the paper's table has 1). Ours: the prize is paid once, on
    entering; the thin ice is at the holes of the frozen lake (the paper draws its obstacles at random);
    the initial cell is uniform on all but the goal; discount, set, radius and threshold.

    Arguments:
        size: number of rows and of columns, at least 2.
        success: probability of the intended move.
        prize: reward on entering the goal.
        thin_ice: numbers of the cells that cost.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted cost.
        discount: discount, in [0, 1).

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
    kernel, goal = noisy_moves(size, success)
    enters_goal = goal[kernel.successors] & ~goal[:, None, None]
    return RobustCMDP(
        transitions=kernel,
        reward=np.where(enters_goal, prize, 0.0),
        constraints=[
            at_most(indicator_of_cells("thin_ice", thin_ice, goal), threshold, name="thin ice")
        ],
        initial=~goal / (~goal).sum(),
        discount=discount,
        uncertainty=KL(radius),
    )
