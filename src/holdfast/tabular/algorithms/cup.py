"""CUP: conservative update policy (Yang et al. 2022, arXiv 2202.07565).

The published version calls it constrained update projection.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, natural_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_choice, check_number


@dataclasses.dataclass(frozen=True)
class CUP:
    """Settings of `cup`; values are in units of their range (`Run.units`).

    Arguments:
        policy_step: of the improvement, the natural gradient's. Ours: the authors' code has PPO's
            clipped loss.
        dual_step: η of ν ← clip(ν + η·(d − V_c), 0, ν_max). Ours: the 0.01 of the authors' code is
            for costs of sampled episodes.
        largest_multiplier: ν_max. Ours: the 2 of the authors' code is for the same costs.
        robust: whether it sees worst cases. The paper's does not.
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


def cup(run: Run) -> Float[Array, "S A"]:
    """Improvement, then a projection whose multiplier is learned instead of solved for.

    Improvement: π_{k+½} ∝ π_k·exp(α·A^r), the maximiser of E_{d,π}[A^r] less a KL penalty.
    Projection: π_{k+1} minimises E_d[KL(π‖π_{k+½})] − α·ν·E_{d,π}[A^c], which is
    π_{k+½}·exp(α·ν·A^c), while ν follows the violation, as in the authors' code, which has a constant
    of its advantage estimator in the place of α. Several constraints have a ν each; ours. The paper's
    generalised advantages are estimators for samples; exact values need none.

    What the paper proves, by its abstract: a bound on performance by its surrogate functions, and
    safety, under the nominal kernel. Whether that is so for a learned ν we have not checked.

    What is known to be wrong: with a learned ν the iterates circle the constraint, some on the wrong
    side of it; and, unless `robust`, they see the nominal kernel only.
    """
    s = run.settings(CUP)
    nu = np.zeros(len(run.thresholds))
    for _ in range(run.options.iterations):
        seen = run.worst if s.robust else run.nominal
        nu = np.clip(nu - s.dual_step * margins(run, seen), 0.0, s.largest_multiplier)
        run.record(natural_step(run, seen, s.policy_step * np.r_[1.0, nu]))
    return run.policy


ALGORITHM = Algorithm("cup", cup, settings=CUP, robust=False)
