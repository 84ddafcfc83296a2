"""The inventory: order before the demand is known, and lose few sales."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_whole_number
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
    """A shop orders stock every day, sells what is asked for, and may not lose too many sales.

    State s is the stock, 0 to `capacity`; action a orders a units, cut to capacity − s. Then the
    demand comes: Poisson with the given mean, all of 2·capacity and over counted as 2·capacity.
    What is there is sold, the rest of the demand is lost. The reward is price·sold −
    purchase·ordered − holding·left over, the cost is the number of sales lost; both depend on the
    demand, which is the outcome of a pair, so the uncertainty set, a KL ball, is over the demand.

    From the RCPG paper: that it is an inventory. Everything else is ours: the price of losing sales
    is low enough to make an empty shop pay, which the constraint forbids.

    Arguments:
        capacity: the largest stock, at least 1.
        mean_demand: of the Poisson distribution, positive.
        price: of a unit sold.
        purchase: of a unit ordered.
        holding: of a unit left over, each day.
        radius: of the KL ball, a number or an (S, A) array.
        threshold: largest discounted number of lost sales that is accepted.
        discount: in [0, 1).

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
    check_whole_number("capacity", capacity, least=1)
    if not (isinstance(mean_demand, (int, float)) and 0 < mean_demand < math.inf):
        raise ValueError(f"mean_demand: expected a positive number, got {mean_demand!r}")
    chance = _demand(2 * capacity, mean_demand)
    stock = np.arange(capacity + 1)[:, None, None]
    ordered = np.minimum(np.arange(capacity + 1)[:, None], capacity - stock)
    demand = np.arange(2 * capacity + 1)
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


def _demand(most: int, mean: float) -> Float[np.ndarray, " demands"]:
    """Poisson probabilities of 0 to most − 1, and of most or more."""
    number = np.arange(most)
    logs = number * math.log(mean) - mean - np.array([math.lgamma(n + 1) for n in number])
    chance = np.exp(logs)
    return np.r_[chance, max(1 - chance.sum(), 0.0)]
