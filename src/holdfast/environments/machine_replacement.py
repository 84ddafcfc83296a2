"""Machine replacement: run a machine until it breaks, or spend time on its repair."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_probability, check_whole_number
from holdfast.model import Kernel, RobustCMDP, at_most
from holdfast.uncertainty import KL

WAIT, REPAIR = 0, 1


def machine_replacement(
    *,
    ages: int = 8,
    wear: float = 0.8,
    breakdown_cost: float = 20.0,
    repair_costs: tuple[float, float] = (2.0, 10.0),
    radius: ArrayLike = 0.05,
    threshold: float = 3.0,
    discount: float = 0.95,
) -> RobustCMDP:
    """A machine ages with use; the oldest state costs most, and time under repair is limited.

    States 0 to `ages` − 1 are the machine's ages, then come the quick and the thorough repair.
    Waiting, the machine ages by one with probability `wear`; the oldest stays. Sent to repair, it
    is in the quick repair next with 0.6, in the thorough one with 0.1, and ages by one with 0.3.
    Waiting in the quick repair makes it new with 0.8, asking for repair again stays there; the
    thorough repair goes on for ever while one waits, and asking again moves to the quick one with
    0.6. A step begun in the oldest state costs `breakdown_cost`, in a repair state its own cost;
    the reward is minus that. The cost that is constrained is 1 for every step begun in either
    repair. The uncertainty set is a KL ball.

    From Delage and Mannor's machine, as public code reads their figure: the ten states, all
    probabilities (that the oldest machine stays with 0.3 when sent to repair among them), the costs
    20, 2 and 10. Ours: the constraint and its threshold, costs by the state begun in, the discount,
    the start as new, the set and its radius.

    Arguments:
        ages: how many, at least 2.
        wear: probability of ageing by one while running.
        breakdown_cost: of a step in the oldest state.
        repair_costs: of a step in the quick and in the thorough repair.
        radius: of the KL ball, a number or an (S, A) array.
        threshold: largest discounted time under repair that is accepted.
        discount: in [0, 1).

    Returns:
        A model with ages + 2 states, two actions and the constraint "repairs".

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.machine_replacement()
        >>> model.states, model.actions
        (10, 2)
        >>> print(model.constraints[0], model.reward[7:, 0])
        repairs ≤ 3 [-20.  -2. -10.]

    Reference:
        Delage and Mannor, Percentile Optimization for Markov Decision Processes with Parameter
        Uncertainty (Operations Research, 2010), figure 3.
    """
    check_whole_number("ages", ages, least=2)
    check_probability("wear", wear)
    quick, thorough = ages, ages + 1
    age = np.arange(ages)
    older = np.minimum(age + 1, ages - 1)
    successors = np.zeros((ages + 2, 2, 3), int)
    probabilities = np.zeros((ages + 2, 2, 3))
    successors[:ages, WAIT] = np.stack([older, age, age], -1)
    probabilities[:ages, WAIT] = wear, 1 - wear, 0.0
    successors[:ages, REPAIR] = np.stack([older, age * 0 + quick, age * 0 + thorough], -1)
    probabilities[:ages, REPAIR] = 0.3, 0.6, 0.1
    successors[quick], probabilities[quick] = [(0, quick, quick)] * 2, [(0.8, 0.2, 0), (0, 1, 0)]
    successors[thorough] = [(thorough, quick, quick)] * 2
    probabilities[thorough] = [(1, 0, 0), (0.4, 0.6, 0)]
    reward = np.zeros((ages + 2, 2))
    reward[ages - 1] = -breakdown_cost
    reward[ages:] = -np.array(repair_costs, float)[:, None]
    under_repair = np.zeros((ages + 2, 2))
    under_repair[ages:] = 1.0
    return RobustCMDP(
        transitions=Kernel(successors, probabilities),
        reward=reward,
        constraints=[at_most(under_repair, threshold, name="repairs")],
        initial=np.eye(ages + 2)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
