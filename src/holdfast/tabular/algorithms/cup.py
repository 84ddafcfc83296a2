"""CUP: conservative update policy (Yang et al. 2022, arXiv 2202.07565).

The published version is called constrained update projection.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast._support.arguments import check_choice, check_number
from holdfast.registry import Algorithm
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import natural_step, scaled_margins


@dataclasses.dataclass(frozen=True)
class CUP:
    """Settings of `cup`. Values are in units of their range (`Run.units`), and all numbers are ours.

    Arguments:
        policy_step: step size of the natural gradient. The authors' code has PPO's clipped loss.
        dual_step: η of ν ← clip(ν + η·(d − V_c), 0, ν_max). The 0.01 of the authors' code is for costs
            of sampled episodes.
        largest_multiplier: ν_max. The 2 of the authors' code is for the same costs.
        robust: whether to use worst cases. The paper uses the nominal kernel.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import CUP
        >>> settings = CUP(robust=True)
        >>> len(hf.solve("gambler", "cup", iterations=5, settings=settings).history["reward"])
        6
    """

    policy_step: float = 1.0
    dual_step: float = 0.02
    largest_multiplier: float = 100.0
    robust: bool = False

    def __post_init__(self) -> None:
        check_number("policy_step", self.policy_step, above=True)
        check_number("dual_step", self.dual_step, above=True)
        check_number("largest_multiplier", self.largest_multiplier, above=True)
        check_choice("robust", self.robust, (True, False))


def cup(run: Run) -> None:
    """Improve the policy, then project it with a multiplier that is learned instead of solved for.

    Improvement: π_{k+½} ∝ π_k·exp(α·A^r), the maximiser of E_{d,π}[A^r] less a KL penalty.
    Projection: π_{k+1} minimises E_d[KL(π‖π_{k+½})] − α·ν·E_{d,π}[A^c], which is
    π_{k+½}·exp(α·ν·A^c), while ν follows the violation. This is the authors' code, which has a
    constant of its advantage estimator in place of α. One ν for each of several constraints is
    ours. The paper's generalised advantages are estimators for samples; exact values need none.

    The paper's abstract claims a bound on performance by its surrogate functions, and safety, under the
    nominal kernel. We have not checked whether that holds for a learned ν.

    Known limits. With a learned ν the iterates circle the constraint, and some violate it. Unless
    `robust` is set, they see the nominal kernel only.
    """
    s = run.settings(CUP)
    nu = np.zeros(len(run.thresholds))
    for _ in range(run.options.iterations):
        values = run.worst if s.robust else run.nominal
        nu = np.clip(nu - s.dual_step * scaled_margins(run, values), 0.0, s.largest_multiplier)
        run.record(natural_step(run, values, s.policy_step * np.r_[1.0, nu]))


ALGORITHM = Algorithm("cup", cup, settings=CUP, robust=False)
