"""Safe navigation: cross a grid to a goal, round or through cells that cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.environments.grid import check_cells, noisy_moves
from holdfast.model import Kernel, RobustCMDP, at_most
from holdfast.uncertainty import KL


def safe_navigation(
    *,
    size: int = 5,
    success: float = 0.8,
    step_reward: float = -1.0,
    hazards: Sequence[int] = (6, 7, 8, 11, 12, 13, 16, 17, 18),
    radius: ArrayLike = 0.05,
    threshold: float = 3.0,
    discount: float = 0.99,
) -> RobustCMDP:
    """A walk over a 5 × 5 grid to the far corner, through hazards or round them.

    Cells are numbered row by row; actions 0 to 3 move left, down, right, up; a move goes as meant
    with probability `success` and each other way with a third of the rest; off the map it stays.
    The last cell is the goal, which absorbs at no cost. Every other step pays `step_reward`, so the
    shortest way is the best; a step begun in a hazard costs 1. The uncertainty set is a KL ball.

    From the public code of Bossens's SafeNavigation: size, goal, success, reward, discount, limit 3.
    Ours: no horizon (there 200 steps), that a failed move goes any other way (there it stays), the
    hazards (the inner 3 × 3; there seven cells in two rows, which cost on entering), the initial cell
    (uniform on all but the goal; there the first), the set and its radius.

    Arguments:
        size: rows and columns, at least 2.
        success: probability of the move that was meant.
        step_reward: for every step before the goal.
        hazards: numbers of the cells that cost.
        radius: of the KL ball, a number or an (S, A) array.
        threshold: largest discounted cost that is accepted.
        discount: in [0, 1).

    Returns:
        A model with one state for each cell, four actions and the constraint "hazards".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.safe_navigation()
        >>> model.states, model.actions
        (25, 4)
        >>> print(model.constraints[0], model.reward[[0, 24], 0])
        hazards ≤ 3 [-1.  0.]

    Reference:
        Bossens, Robust Lagrangian and Adversarial Policy Gradient for Robust Constrained Markov
        Decision Processes (arXiv 2308.11267), experiments.
    """
    check_whole_number("size", size, least=2)
    check_probability("success", success)
    goal = size * size - 1
    reward = np.full((size * size, 4), float(step_reward))
    reward[goal] = 0.0
    cost = np.zeros((size * size, 4))
    cost[check_cells("hazards", hazards, size * size, goal)] = 1.0
    return RobustCMDP(
        transitions=Kernel(*noisy_moves(size, goal, success)),
        reward=reward,
        constraints=[at_most(cost, threshold, name="hazards")],
        initial=np.where(np.arange(size * size) == goal, 0.0, 1 / goal),
        discount=discount,
        uncertainty=KL(radius),
    )
