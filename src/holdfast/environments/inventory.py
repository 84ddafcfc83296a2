"""The inventory: order before the demand is known, and lose few sales."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_number, check_whole_number
from holdfast.model import Kernel, RobustCMDP, at_most
from holdfast.uncertainty import KL


def inventory(
    *,
    capacity: int = 8,
    mean_demand: float = 4.0,
    price: float = 3.0,
    purchase: float = 2.0,
    holding: float = 0.3,
    radius: ArrayLike = 0.05,
    threshold: float = 14.0,
    discount: float = 0.95,
) -> RobustCMDP:
    """Return a shop that orders stock every day and has a limit on lost sales.

    State s is the stock, 0 to `capacity`; action a orders a units, at most capacity − s. The demand is
    then Poisson with the given mean; demands above 2·capacity count as 2·capacity. The shop sells what
    it has, and the rest of the demand is lost. The reward is price·sold − purchase·ordered −
    holding·left over. The cost is the number of lost sales. Both depend on the demand, which is the
    outcome of a pair, so the uncertainty set, a KL ball, is a set of demand distributions.

    From the RCPG paper: only that it is an inventory. Ours: everything else. Without the constraint an
    empty shop would be the most profitable.

    Arguments:
        capacity: largest stock, at least 1.
        mean_demand: mean of the Poisson distribution, positive.
        price: income from a unit sold.
        purchase: expense for a unit ordered.
        holding: expense for a unit left over, each day.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted number of lost sales.
        discount: discount, in [0, 1).

    Returns:
        A model with capacity + 1 states, as many actions and the constraint "lost sales".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.inventory()
        >>> model.states, model.actions
        (9, 9)
        >>> print(model.constraints[0], model.transitions.successors[3, 2][:7])
        lost sales ≤ 14 [5 4 3 2 1 0 0]

    Reference:
        Russel, Benosman and van Baar, Robust Constrained-MDPs (arXiv 2010.04870), experiments.
    """
    from scipy.stats import poisson

    check_whole_number("capacity", capacity, least=1)
    check_number("mean_demand", mean_demand, above=True)
    demand = np.arange(2 * capacity + 1)
    # The last entry is the probability of 2·capacity or more.
    chance = np.r_[poisson.pmf(demand[:-1], mean_demand), poisson.sf(demand[-2], mean_demand)]
    stock = np.arange(capacity + 1)[:, None, None]
    ordered = np.minimum(np.arange(capacity + 1)[:, None], capacity - stock)
    sold = np.minimum(stock + ordered, demand)
    left = stock + ordered - sold
    return RobustCMDP(
        transitions=Kernel(left, np.broadcast_to(chance, left.shape)),
        reward=price * sold - purchase * ordered - holding * left,
        constraints=[at_most(demand - sold, threshold, name="lost sales")],
        initial=np.eye(capacity + 1)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
