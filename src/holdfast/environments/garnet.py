"""Garnets: random models of any size."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.model import RobustCMDP, at_most
from holdfast.uncertainty import KL


def garnet(
    *,
    seed: int = 0,
    states: int = 5,
    actions: int = 3,
    constraints: int = 4,
    cost_share: float = 0.9,
    radius: ArrayLike = 0.05,
    threshold: float | None = None,
    discount: float = 0.99,
) -> RobustCMDP:
    """Return a random model with several costs and limits that some policy meets exactly.

    Rows of the kernel are drawn from Dirichlet(0.1), so most of their mass lies on few states. Each
    cost of a pair is 1 with probability `cost_share`, otherwise 0. The reward of a pair is uniform on
    [0, 1]. The initial distribution is drawn from Dirichlet(0.5). A policy with rows from Dirichlet(1)
    is drawn last, and every limit is its worst-case cost, so this policy is feasible with margin zero.
    The uncertainty set is a KL ball.

    From the public code of EpiRC-PGS, in one of its versions: sizes, the distributions of the kernel
    and of the initial state, the costs and their number, the discount, and limits at a random policy's
    worst-case costs. Ours: the reward (there a fifth cost is minimised), the random policy's
    Dirichlet(1) (there 0.2), the set (there a KL penalty) and its radius.

    Arguments:
        seed: seed of everything that is drawn.
        states: number of states.
        actions: number of actions.
        constraints: number of costs; 0 is allowed.
        cost_share: probability that a pair has a given cost.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted cost, the same for every cost; by default the random
            policy's worst-case costs.
        discount: discount, in [0, 1).

    Returns:
        A model with dense rows and the constraints "cost 1", "cost 2", …

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.garnet()
        >>> model.states, model.actions, len(model.constraints)
        (5, 3, 4)

    Reference:
        Kitamura et al., Near-Optimal Policy Identification in Robust Constrained MDPs via Epigraph
        Form (arXiv 2408.16286), experiments; Archibald, McKinnon and Thomas (1995) for the idea.
    """
    check_whole_number("seed", seed, least=0)
    check_whole_number("states", states, least=1)
    check_whole_number("actions", actions, least=1)
    check_whole_number("constraints", constraints, least=0)
    check_probability("cost_share", cost_share)
    rng = np.random.default_rng(seed)
    kernel = rng.dirichlet(np.full(states, 0.1), (states, actions))
    costs = (rng.random((constraints, states, actions)) < cost_share).astype(float)
    reward = rng.random((states, actions))
    initial = rng.dirichlet(np.full(states, 0.5))
    policy = rng.dirichlet(np.ones(actions), states)

    def limited(limits: ArrayLike) -> RobustCMDP:
        each = zip(costs, np.broadcast_to(limits, constraints), strict=True)
        return RobustCMDP(
            transitions=kernel,
            reward=reward,
            constraints=[
                at_most(cost, limit, name=f"cost {i}") for i, (cost, limit) in enumerate(each, 1)
            ],
            initial=initial,
            discount=discount,
            uncertainty=KL(radius),
        )

    if threshold is not None or constraints == 0:
        return limited(0.0 if threshold is None else threshold)
    from holdfast.tabular.evaluate import evaluate

    evaluation = evaluate(limited(0.0), policy)
    # Limits exceed the costs by four times the evaluation's error bound, so that the policy is certified
    # feasible when its costs are computed again.
    return limited([each.worst + 4 * each.error for each in evaluation.constraints])
