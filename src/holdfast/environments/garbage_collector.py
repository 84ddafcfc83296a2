"""The garbage collector: a robot on its way to the bin, which is paid for being there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.environments.grid import check_cells, noisy_moves
from holdfast.model import Kernel, RobustCMDP, at_most
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
    """A robot crosses a room to a bin; some cells are delicate, and each step in one costs.

    Cells are numbered row by row; actions 0 to 3 move left, down, right, up; the move that was
    meant happens with probability 1/2, each other one with 1/6, and a move off the map stays. The
    last cell has the bin and absorbs. Every step pays `at_the_bin` there and `elsewhere` in all
    other cells. A step begun in a delicate cell costs 1, in any other cell `base_cost`. The
    uncertainty set is a KL ball.

    From the RNPG paper: size, probabilities, both rewards, a cost of 1 in some cells, the discount.
    From its public code: the base cost (the paper's table has 0.01) and the number of those cells.
    Ours: which cells they are (the code draws them anew for every run, and for each whether it
    costs), that all other cells pay `elsewhere` (the code's slice reaches the first cell alone; the
    paper has garbage in some), the start in the first cell, the set, its radius and the threshold.

    Arguments:
        size: rows and columns, at least 2.
        success: probability of the move that was meant.
        at_the_bin: reward of a step at the bin.
        elsewhere: reward of any other step.
        base_cost: cost of a step in a cell that is not delicate.
        delicate: numbers of the cells in which a step costs 1.
        radius: of the KL ball, a number or an (S, A) array.
        threshold: largest discounted cost that is accepted.
        discount: in [0, 1).

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
    check_whole_number("size", size, least=2)
    check_probability("success", success)
    goal = size * size - 1
    reward = np.full((size * size, 4), float(elsewhere))
    reward[goal] = at_the_bin
    cost = np.full((size * size, 4), float(base_cost))
    cost[check_cells("delicate", delicate, size * size, goal)] = 1.0
    return RobustCMDP(
        transitions=Kernel(*noisy_moves(size, goal, success)),
        reward=reward,
        constraints=[at_most(cost, threshold, name="cost")],
        initial=np.eye(size * size)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
