"""The garbage collector: a robot on its way to a bin, through cells that cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.environments.grid import indicator_of_cells, noisy_moves
from holdfast.model import RobustCMDP, at_most
from holdfast.uncertainty import KL


def garbage_collector(
    *,
    size: int = 4,
    success: float = 0.5,
    at_the_bin: float = 1.0,
    elsewhere: float = 0.001,
    base_cost: float = 0.001,
    delicate: Sequence[int] = (6, 9, 14),
    radius: ArrayLike = 0.05,
    threshold: float = 5.0,
    discount: float = 0.99,
) -> RobustCMDP:
    """Return a room that a robot crosses to a bin; every step in a delicate cell costs 1.

    Cells are numbered row by row. Actions 0 to 3 move left, down, right, up. A move goes as intended
    with probability 1/2 and in each other direction with 1/6; a move off the map stays. The last cell
    holds the bin and absorbs. Every step pays `at_the_bin` there and `elsewhere` in all other cells. A
    step that starts in a delicate cell costs 1, in any other cell `base_cost`. The uncertainty set is a
    KL ball.

    From the RNPG paper: size, probabilities, both rewards, a cost of 1 in some cells, the discount.
    From its public code: the base cost (the paper's table has 0.01) and the number of delicate cells.
    Ours: the choice of these cells (the code draws them again for every run); all other cells pay
    `elsewhere` (in the code only the first does, and the paper has garbage in some); the initial cell is
    the first; the set, its radius and the threshold.

    Arguments:
        size: number of rows and of columns, at least 2.
        success: probability of the intended move.
        at_the_bin: reward of a step at the bin.
        elsewhere: reward of any other step.
        base_cost: cost of a step in a cell that is not delicate.
        delicate: numbers of the cells in which a step costs 1.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted cost.
        discount: discount, in [0, 1).

    Returns:
        A model with one state for each cell, four actions and the constraint "cost".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.garbage_collector()
        >>> model.states, model.actions
        (16, 4)
        >>> print(model.constraints[0], model.reward[[0, 15], 0])
        cost ≤ 5 [0.001 1.   ]

    Reference:
        Ganguly, Ghosh, Panaganti and Wierman, Efficient Policy Optimization in Robust Constrained
        MDPs with Iteration Complexity Guarantees (arXiv 2505.19238), experiments.
    """
    kernel, bin_ = noisy_moves(size, success)
    is_delicate = indicator_of_cells("delicate", delicate, bin_)
    return RobustCMDP(
        transitions=kernel,
        reward=np.where(bin_[:, None], at_the_bin, np.full(4, float(elsewhere))),
        constraints=[at_most(np.where(is_delicate, 1.0, base_cost), threshold, name="cost")],
        initial=np.eye(size * size)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
