"""The N-chain: a walk between two ends, one of which pays a bonus."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.model import Kernel, RobustCMDP, at_least
from holdfast.uncertainty import KL


def n_chain(
    *,
    nodes: int = 40,
    slip: float = 0.1,
    bonus: float = 10.0,
    radius: ArrayLike = 0.15,
    threshold: float = 6.0,
    discount: float = 0.95,
) -> RobustCMDP:
    """Return a chain of nodes: left pays reward, right pays utility, and the right end pays a bonus.

    State s is node s + 1; action 0 moves left and action 1 moves right. With probability `slip` the
    move goes the other way; a move past an end stays. The signals depend on the action, not on where
    the move went: (reward, utility) is (1, 0) for left and (0, 2) for right. In the last node both
    actions also pay the reward `bonus`. The uncertainty set is a KL ball.

    From the paper: nodes, slip, the signals of both moves, the size of the bonus, radius and
    threshold. Ours, because the paper leaves them open: every step that starts in the last node pays
    the bonus; a move past an end stays; the discount; and the uniform initial distribution.

    Arguments:
        nodes: length of the chain, at least 2.
        slip: probability that a move goes the other way.
        bonus: reward added in the last node.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: smallest accepted discounted utility.
        discount: discount, in [0, 1).

    Returns:
        A model with `nodes` states, two actions and the constraint "utility".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain()
        >>> model.states, model.actions
        (40, 2)
        >>> print(model.constraints[0], model.reward[0], model.reward[-1])
        utility ≥ 6 [1. 0.] [11. 10.]

    Reference:
        Sun, He, Miao and Zou, Constrained Reinforcement Learning Under Model Mismatch (ICML 2024),
        appendix on experiments.
    """
    check_whole_number("nodes", nodes, least=2)
    check_probability("slip", slip)
    node = np.arange(nodes)
    left, right = np.maximum(node - 1, 0), np.minimum(node + 1, nodes - 1)
    successors = np.stack([[left, right], [right, left]]).transpose(2, 0, 1)
    reward = np.tile([1.0, 0.0], (nodes, 1))
    reward[-1] += bonus
    utility = np.tile([0.0, 2.0], (nodes, 1))
    return RobustCMDP(
        transitions=Kernel(successors, np.broadcast_to([1 - slip, slip], successors.shape)),
        reward=reward,
        constraints=[at_least(utility, threshold, name="utility")],
        discount=discount,
        uncertainty=KL(radius),
    )
