"""Machine replacement: run a machine until it breaks, or spend time on repairs."""

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
    """Return a machine that ages with use, with a limit on the time under repair.

    States 0 to `ages` − 1 are the machine's ages; then come the quick and the thorough repair. Action 0
    waits and action 1 sends the machine to repair. If it waits, it ages by one with probability `wear`;
    the oldest stays. If it is sent to repair, the next state is the quick repair with 0.6, the thorough
    repair with 0.1, and one age more with 0.3. In the quick repair, waiting makes it new with 0.8, and
    asking for repair stays there. In the thorough repair, waiting stays there, and asking for repair
    moves to the quick one with 0.6. A step that starts in the oldest state costs `breakdown_cost`, in a
    repair state that repair's cost; the reward is minus this cost. The constrained cost is 1 for every
    step that starts in either repair. The uncertainty set is a KL ball.

    From Delage and Mannor's machine, as public code reads their figure: the ten states, all
    probabilities (among them that the oldest machine stays with 0.3 when sent to repair), and the costs
    20, 2 and 10. Ours: the constraint and its threshold, costs by the state in which a step starts, the
    discount, the start as new, the set and its radius.

    Arguments:
        ages: number of ages, at least 2.
        wear: probability of ageing by one in a step without repair.
        breakdown_cost: cost of a step in the oldest state.
        repair_costs: cost of a step in the quick and in the thorough repair.
        radius: radius of the KL ball, a number or an (S, A) array.
        threshold: largest accepted discounted time under repair.
        discount: discount, in [0, 1).

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
    under_repair = np.repeat(np.arange(ages + 2)[:, None] >= ages, 2, axis=1)
    return RobustCMDP(
        transitions=Kernel(successors, probabilities),
        reward=reward,
        constraints=[at_most(under_repair, threshold, name="repairs")],
        initial=np.eye(ages + 2)[0],
        discount=discount,
        uncertainty=KL(radius),
    )
