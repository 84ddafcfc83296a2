"""CPO: constrained policy optimisation (Achiam, Held, Tamar, Abbeel 2017), under the nominal kernel.

Improvement and constraints are one problem within the trust region, the nominal form of (8). If no
policy of the trust region meets the constraints, a recovery step restores them.
"""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms.rcpo import iterate
from holdfast.tabular.run import Run
from holdfast.tabular.steps.improve import improve_within


def cpo(run: Run) -> None:
    """Improve the policy within the trust region and the linearised constraints at once."""
    iterate(run, improve_within, robust=False)


ALGORITHM = Algorithm(
    "cpo", cpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
