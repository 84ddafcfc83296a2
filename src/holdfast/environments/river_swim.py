"""The constrained river swim: the reward is upstream, and so is the cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_whole_number
from holdfast.model import Kernel, RobustCMDP, at_most
from holdfast.uncertainty import KL

LEFT, RIGHT = 0, 1
# Probabilities of the intended move, of staying and of the opposite move; and of staying at a bank.
_WITH, _STAY, _AGAINST = 0.3, 0.6, 0.1
_HELD = 0.9


def river_swim(
    *,
    states: int = 6,
    near_reward: float = 0.1,
    far_reward: float = 1.0,
    radius: ArrayLike = 0.05,
    threshold: float = 15.0,
    discount: float = 0.99,
) -> RobustCMDP:
    """Return a river: little reward at the left bank, more at the right bank, where it costs most.

    Action 0 swims left and action 1 right. Between the banks a stroke goes as intended with
    probability 0.3, stays with 0.6 and goes the other way with 0.1. At a bank the stroke towards it
    stays with 0.9, and the other stroke leaves it with 0.3. The reward is `near_reward` for left at the
    left bank and `far_reward` for right at the right bank. A step that starts in state s costs s/20.
    The uncertainty set is a KL ball.

    From the public code of the RNPG paper's authors: six states, two actions, all probabilities, both
    rewards and the cost (the paper's table has other rewards and costs). From the paper: the discount.
    Ours: the initial state (the left bank), the set, its radius and the threshold.

    Arguments:
        states: number of places in the river, at least 2.
        near_reward: reward for left at the left bank.
        far_reward: reward for right at the right bank.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted cost.
        discount: discount, in [0, 1).

    Returns:
        A model with `states` states, two actions and the constraint "cost".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.river_swim()
        >>> model.states, model.actions
        (6, 2)
        >>> print(model.constraints[0], model.transitions.probabilities[3, 1])
        cost ≤ 15 [0.1 0.6 0.3]

    Reference:
        Strehl and Littman, An analysis of model-based interval estimation for Markov decision
        processes (2008), for the river; Ganguly, Ghosh, Panaganti and Wierman (arXiv 2505.19238)
        with a cost.
    """
    check_whole_number("states", states, least=2)
    place = np.arange(states)
    successors = np.stack([np.maximum(place - 1, 0), place, np.minimum(place + 1, states - 1)], -1)
    probabilities = np.empty((states, 2, 3))
    probabilities[:, LEFT] = _WITH, _STAY, _AGAINST
    probabilities[:, RIGHT] = _AGAINST, _STAY, _WITH
    probabilities[0] = [(0.0, _HELD, 1 - _HELD), (0.0, 1 - _WITH, _WITH)]
    probabilities[-1] = [(_WITH, 1 - _WITH, 0.0), (1 - _HELD, _HELD, 0.0)]
    reward = np.zeros((states, 2))
    reward[0, LEFT] = near_reward
    reward[-1, RIGHT] = far_reward
    cost = np.repeat(place[:, None] / 20, 2, axis=1)
    return RobustCMDP(
        transitions=Kernel(np.repeat(successors[:, None], 2, axis=1), probabilities),
        reward=reward,
        constraints=[at_most(cost, threshold, name="cost")],
        initial=np.eye(states)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
