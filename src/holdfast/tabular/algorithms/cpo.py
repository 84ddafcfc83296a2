"""CPO: constrained policy optimisation (Achiam, Held, Tamar, Abbeel, 2017), under the nominal kernel.

Improvement and constraints are one problem inside the trust region. Where the two do not meet (its
infeasible case), the step only restores the constraints: a recovery step.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._trust_region import trust_region_loop
from holdfast.tabular.steps.updates import improve_within


def cpo(run: Run) -> Float[Array, "S A"]:
    """Constrained policy improvement inside a trust region, under the nominal kernel."""
    return trust_region_loop(run, improve_within, robust=False)


ALGORITHM = Algorithm(
    "cpo", cpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
