"""CRPO: constraint-rectified policy optimisation (Xu, Liang, Lan 2021, arXiv 2011.05869); robust."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, natural_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number


@dataclasses.dataclass(frozen=True)
class CRPO:
    """Settings of `crpo`; values are in units of their range (`Run.units`).

    The theorem has α = (1−γ)^1.5/√(S·A·T) and η of the order of √(S·A)/((1−γ)^1.5·√T): with T under
    the order of S·A/(1−γ), η is over the range of any value and no constraint is ever looked at.
    The numbers are ours.

    Arguments:
        policy_step: α, of the natural gradient.
        decay: a power in [0, 1]; the step falls as (t+1)^(−decay).
        tolerance: η, the violation up to which the reward is improved.
    """

    policy_step: float = 1.0
    decay: float = 0.5
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_number("policy_step", self.policy_step, above=True)
        check_number("decay", self.decay, most=1.0)
        check_number("tolerance", self.tolerance)


def crpo(run: Run) -> Float[Array, "S A"]:
    """Natural gradient steps on the reward while the constraints hold, else on the one violated most.

    Each value is in its own worst case, where the paper has the nominal one; of several violated
    constraints the paper takes any. It returns an iterate drawn from those that kept the
    constraints to within η; the last row of the history is the one of these with the largest
    reward, of which the paper's bound on their mean holds all the more.

    What the paper proves, under one kernel and for softmax tables: the returned policy is in
    expectation within O(1/√T) of the optimum and violates by O(1/√T).

    What is known to be wrong: its proof compares policies through the performance difference under
    one kernel, which does not hold in the worst case (Ganguly et al. 2025, arXiv 2505.19238,
    appendix H). Ma et al. (2025, arXiv 2508.17448) prove it for a variant that also tracks a
    threshold on the reward, up to an error of the order of the set's diameter. Between a reward and
    a constraint that pull apart, nothing keeps the steps from going back and forth at a policy that
    is no optimum.
    """
    s = run.settings(CRPO)
    kept, most = None, -np.inf
    for t in range(run.options.iterations):
        improved = signal_to_improve(margins(run, run.worst), s.tolerance)
        if improved == 0 and float(run.worst.value[0]) > most:
            kept, most = run.policy, float(run.worst.value[0])
        if t == run.options.iterations - 1:
            break
        weights = np.zeros(len(run.units))
        weights[improved] = s.policy_step * (t + 1) ** -s.decay
        run.record(natural_step(run, run.worst, weights))
    run.record(run.policy if kept is None else kept)
    return run.policy


def signal_to_improve(margins: Float[np.ndarray, " m"], tolerance: float) -> int:
    """The switching rule: 0 is the reward; from 1, the constraint that is violated most."""
    if len(margins) == 0 or margins.min() >= -tolerance:
        return 0
    return 1 + int(margins.argmin())


ALGORITHM = Algorithm("crpo", crpo, settings=CRPO)
