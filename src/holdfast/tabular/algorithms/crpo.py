"""CRPO: constraint-rectified policy optimisation (Xu, Liang, Lan 2021, arXiv 2011.05869), robust."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import check_number
from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import natural_step, scaled_margins


@dataclasses.dataclass(frozen=True)
class CRPO:
    """Settings of `crpo`. Values are in units of their range (`Run.units`), and all numbers are ours.

    The theorem has α = (1−γ)^1.5/√(S·A·T) and η of the order of √(S·A)/((1−γ)^1.5·√T). Unless T is at
    least of the order of S·A/(1−γ), this η exceeds the range of every value, and no constraint is ever
    enforced.

    Arguments:
        policy_step: α, step size of the natural gradient.
        decay: power in [0, 1]; the step falls as (t+1)^(−decay).
        tolerance: η, the violation up to which the reward is improved.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import CRPO
        >>> settings = CRPO(policy_step=0.5)
        >>> len(hf.solve("gambler", "crpo", iterations=5, settings=settings).history["reward"])
        6
    """

    policy_step: float = 1.0
    decay: float = 0.5
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_number("policy_step", self.policy_step, above=True)
        check_number("decay", self.decay, most=1.0)
        check_number("tolerance", self.tolerance)


def crpo(run: Run) -> None:
    """Improve the reward while the constraints hold, and otherwise the most violated constraint.

    Each value is in its own worst case; the paper has the nominal one. Of several violated constraints
    the paper takes any. The paper returns a random iterate among those that met the constraints within
    η. Here the last row of the history is the one of them with the largest reward; the paper's bound on
    the mean holds for it too.

    The paper proves, under one kernel and for softmax tables, that the returned policy is in expectation
    within O(1/√T) of the optimum and violates the constraints by O(1/√T).

    Known limits. The proof compares policies by the performance difference under one kernel, which
    fails in the worst case (Ganguly et al. 2025, arXiv 2505.19238, appendix H). Ma et al. (2025, arXiv
    2508.17448) prove it for a variant that also tracks a threshold on the reward, up to an error of the
    order of the set's diameter. If reward and constraint conflict, the steps may alternate at a policy
    that is not optimal.
    """
    s = run.settings(CRPO)
    kept, most = None, -np.inf
    for t in range(run.options.iterations):
        improved = signal_to_improve(scaled_margins(run, run.worst), s.tolerance)
        if improved == 0 and float(run.worst.value[0]) > most:
            kept, most = run.policy, float(run.worst.value[0])
        if t == run.options.iterations - 1:
            break
        weights = np.zeros(len(run.units))
        weights[improved] = s.policy_step * (t + 1) ** -s.decay
        run.record(natural_step(run, run.worst, weights))
    run.record(run.policy if kept is None else kept)


def signal_to_improve(margins: Float[np.ndarray, " m"], tolerance: float) -> int:
    """Return 0 for the reward, or i ≥ 1 for the most violated constraint."""
    if len(margins) == 0 or margins.min() >= -tolerance:
        return 0
    return 1 + int(margins.argmin())


ALGORITHM = Algorithm("crpo", crpo, settings=CRPO)
