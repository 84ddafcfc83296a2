"""Safe navigation: cross a grid to a goal, around or through cells that cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from holdfast.environments.grid import indicator_of_cells, noisy_moves
from holdfast.model import RobustCMDP, at_most
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
    """Return a 5 × 5 grid with a goal in the far corner, and hazards on the shortest way.

    Cells are numbered row by row. Actions 0 to 3 move left, down, right, up. A move goes as intended
    with probability `success` and in each other direction with a third of the rest; a move off the grid
    stays. The last cell is the goal, which is absorbing and has zero reward and cost. Every other step
    has the reward `step_reward`, so the shortest way has the highest reward. A step that starts in a
    hazard costs 1. The uncertainty set is a KL ball.

    From the public code of Bossens's SafeNavigation: size, goal, success, reward, discount and the
    limit 3. Ours: no horizon (there 200 steps); a failed move goes in any other direction (there it
    stays); the hazards are the inner 3 × 3 cells (there seven cells in two rows, which cost on
    entering); the initial cell is uniform on all but the goal (there the first); the set and its radius.

    Arguments:
        size: number of rows and of columns, at least 2.
        success: probability of the intended move.
        step_reward: reward of every step before the goal.
        hazards: numbers of the cells that cost.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted cost.
        discount: discount, in [0, 1).

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
    kernel, goal = noisy_moves(size, success)
    return RobustCMDP(
        transitions=kernel,
        reward=np.where(goal[:, None], 0.0, np.full(4, float(step_reward))),
        constraints=[
            at_most(indicator_of_cells("hazards", hazards, goal), threshold, name="hazards")
        ],
        initial=~goal / (~goal).sum(),
        discount=discount,
        uncertainty=KL(radius),
    )
