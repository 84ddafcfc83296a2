"""RPD: the robust primal–dual method (Wang, Miao, Zou 2022, arXiv 2209.06866)."""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast._support.arguments import check_number
from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import projected_step, scaled_margins


@dataclasses.dataclass(frozen=True)
class RPD:
    """Settings of `rpd`. Values are in units of their range (`Run.units`), and all numbers are ours.

    Arguments:
        policy_step: α, step size of the projected gradient.
        dual_step: β, step size of the multipliers.
        regularisation: b in b_t = b·(t+1)^(−1/4), the shrinkage of the multipliers.
        largest_multiplier: Λ, bound on the multipliers. Multipliers that minimise the dual are at most
            the reward's range divided by the margin of a strictly feasible policy.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import RPD
        >>> settings = RPD(dual_step=1.0)
        >>> len(hf.solve("gambler", "rpd", iterations=5, settings=settings).history["reward"])
        6
    """

    policy_step: float = 0.3
    dual_step: float = 3.0
    regularisation: float = 0.001
    largest_multiplier: float = 100.0

    def __post_init__(self) -> None:
        check_number("policy_step", self.policy_step, above=True)
        check_number("dual_step", self.dual_step, above=True)
        check_number("regularisation", self.regularisation)
        check_number("largest_multiplier", self.largest_multiplier, above=True)


def rpd(run: Run) -> None:
    """Descend in the multipliers and ascend in the policy of the robust Lagrangian, in turn.

    The Lagrangian is L(π, λ) = V_r + Σλ_i(V_i − d_i), each value in its own worst case. As we read the
    paper,

        λ_{t+1} = clip(λ_t − β·(V_i − d_i + b_t·λ_t), 0, Λ),
        π_{t+1} = Proj(π_t + α·∇_π L(π_t, λ_{t+1})).

    The paper's abstract claims convergence, its complexity, and robust feasibility, with contamination
    sets as the worked example. We have not checked the conditions.

    Known limits. A stationary point of L need not be near the optimum, nor maximise L at that λ
    (Kitamura et al. 2024, theorem 1). Strong duality, by which the best λ would give the constrained
    optimum, fails for robust problems in general (Ma et al. 2025, arXiv 2508.17448). Nothing makes the
    last iterate feasible. Gradients jump where worst-case kernels do.
    """
    s = run.settings(RPD)
    multipliers = np.zeros(len(run.thresholds))
    for t in range(run.options.iterations):
        shrinkage = s.regularisation * (t + 1) ** -0.25 * multipliers
        multipliers = multipliers - s.dual_step * (scaled_margins(run, run.worst) + shrinkage)
        multipliers = np.clip(multipliers, 0.0, s.largest_multiplier)
        run.record(projected_step(run, run.worst, s.policy_step * np.r_[1.0, multipliers]))


ALGORITHM = Algorithm("rpd", rpd, settings=RPD)
