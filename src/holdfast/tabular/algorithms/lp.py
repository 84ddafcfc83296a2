"""LP: the nominal constrained optimum by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

import numpy as np

from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.linear_program import constrained_optimum
from holdfast.tabular.run import Run


def lp(run: Run) -> None:
    """Maximise the nominal reward subject to the nominal constraints, exactly, in one step.

    If no policy meets the constraints nominally, maximise the smallest nominal margin.
    """
    states, actions = run.layout.model.states, run.layout.model.actions
    occupancy = constrained_optimum(run.table, actions).occupancy[:states]
    total = occupancy.sum(-1, keepdims=True)
    # States that are never reached get a uniform row.
    policy = np.where(total > 0, occupancy / np.where(total > 0, total, 1.0), 1 / actions)
    run.record(run.layout.pad_policy(policy))


ALGORITHM = Algorithm(
    "lp", lp, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False, local=False
)
