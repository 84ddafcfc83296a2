"""The gambler's problem: bet on coin tosses until ruin or the goal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.model import Kernel, RobustCMDP, at_least
from holdfast.uncertainty import KL


def gambler(
    *,
    goal: int = 16,
    heads: float = 0.6,
    prize: float = 10.0,
    radius: ArrayLike = 0.1,
    threshold: float = 2.5,
    discount: float = 0.95,
) -> RobustCMDP:
    """Return the gambler's problem: reach a balance by betting, with a utility for modest stakes.

    State s is the balance, 0 to `goal`; action a stakes min(a + 1, s, goal − s). Heads wins the
    stake and tails loses it, so each (s, a) has the two outcomes s ± stake. The reward is `prize`
    on the transition that enters the goal. The utility is 1 when 2·stake ≤ s, and 0 otherwise. The
    balances 0 and `goal` absorb, with neither reward nor utility. The uncertainty set is a KL ball.

    From the paper: goal, heads, prize, radius and threshold. Ours, because the paper leaves them open:
    the stakes 1 to goal // 2, reduced to the largest allowed stake; the utility; the discount; and the
    initial balance, uniform on 1 to goal − 1.

    Arguments:
        goal: balance at which the gambler stops, at least 2.
        heads: probability of winning the stake.
        prize: reward on reaching the goal.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: smallest accepted discounted utility.
        discount: discount, in [0, 1).

    Returns:
        A model with goal + 1 states, goal // 2 actions and the constraint "utility".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.gambler()
        >>> model.states, model.actions
        (17, 8)
        >>> print(model.constraints[0], model.transitions.successors[10, 7])
        utility ≥ 2.5 [16  4]

    Reference:
        Sun, He, Miao and Zou, Constrained Reinforcement Learning Under Model Mismatch (ICML 2024),
        appendix on experiments; the problem itself is example 4.3 of Sutton and Barto,
        Reinforcement Learning (2nd edition, 2018).
    """
    check_whole_number("goal", goal, least=2)
    check_probability("heads", heads)
    balance = np.arange(goal + 1)[:, None]
    stake = np.minimum(np.arange(1, goal // 2 + 1), np.minimum(balance, goal - balance))
    playing = (balance > 0) & (balance < goal)
    successors = np.stack([balance + stake, balance - stake], axis=-1)
    enters_goal = playing[..., None] & (successors == goal)
    utility = playing & (2 * stake <= balance)
    initial = np.where(playing[:, 0], 1 / (goal - 1), 0.0)
    return RobustCMDP(
        transitions=Kernel(successors, np.broadcast_to([heads, 1 - heads], successors.shape)),
        reward=np.where(enters_goal, prize, 0.0),
        constraints=[at_least(utility, threshold, name="utility")],
        initial=initial,
        discount=discount,
        uncertainty=KL(radius),
    )
