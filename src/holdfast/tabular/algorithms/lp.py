"""LP: the nominal constrained optimum by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.evaluation.linear_program import constrained_optimum


def lp(run: Run) -> Float[Array, "S A"]:
    """Maximises the nominal reward subject to the nominal constraints, exactly, in one step.

    Where no policy meets the constraints even nominally, it maximises the smallest nominal margin.
    """
    states, actions = run.layout.model.states, run.layout.model.actions
    occupancy = constrained_optimum(run.table, actions).occupancy[:states]
    total = occupancy.sum(-1, keepdims=True)
    # States that are never reached get a uniform row.
    policy = np.where(total > 0, occupancy / np.where(total > 0, total, 1.0), 1 / actions)
    run.record(run.layout.pad_policy(policy))
    return run.policy


ALGORITHM = Algorithm(
    "lp", lp, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False, local=False
)
