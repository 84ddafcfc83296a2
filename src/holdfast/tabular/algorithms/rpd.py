"""RPD: the robust primal–dual method (Wang, Miao, Zou 2022, arXiv 2209.06866)."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, projected_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number


@dataclasses.dataclass(frozen=True)
class RPD:
    """Settings of `rpd`; values are in units of their range (`Run.units`).

    The numbers are ours.

    Arguments:
        policy_step: α, of the projected gradient step.
        dual_step: β, of the multipliers' step.
        regularisation: b in b_t = b·(t+1)^(−1/4), the multipliers' shrinkage. The power is ours too.
        largest_multiplier: Λ, up to which multipliers go. Those that are best for the dual are no
            larger than the reward's range over the margin of a strictly feasible policy.
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


def rpd(run: Run) -> Float[Array, "S A"]:
    """Descends in the multipliers and ascends in the policy of the robust Lagrangian, in turn.

    The Lagrangian is L(π, λ) = V_r + Σλ_i(V_i − d_i), each value in its own worst case. The method,
    as we read the paper:

        λ_{t+1} = clip(λ_t − β·(V_i − d_i + b_t·λ_t), 0, Λ),
        π_{t+1} = Proj(π_t + α·∇_π L(π_t, λ_{t+1})).

    What the paper proves, by its abstract: convergence, its complexity, and robust feasibility, with
    contamination sets as the worked example. We have not checked under which conditions.

    What is known to be wrong: a stationary point of L need not be near the optimum, nor even its
    maximiser for that λ (Kitamura et al. 2024, theorem 1), and strong duality, which would make the
    best λ give the constrained optimum, does not hold for robust problems in general (Ma et al.
    2025, arXiv 2508.17448). Nothing makes the last iterate feasible. Where worst-case kernels jump,
    gradients do.
    """
    s = run.settings(RPD)
    multipliers = np.zeros(len(run.thresholds))
    for t in range(run.options.iterations):
        shrinkage = s.regularisation * (t + 1) ** -0.25 * multipliers
        multipliers = multipliers - s.dual_step * (margins(run, run.worst) + shrinkage)
        multipliers = np.clip(multipliers, 0.0, s.largest_multiplier)
        run.record(projected_step(run, run.worst, s.policy_step * np.r_[1.0, multipliers]))
    return run.policy


ALGORITHM = Algorithm("rpd", rpd, settings=RPD)
