"""LP: the nominal constrained optimum by linear programming over occupancies (Altman 1999)."""

from __future__ import annotations

import numpy as np

from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.linear_program import constrained_optimum
from holdfast.tabular.run import Run


def lp(run: Run) -> None:
    """Maximise the nominal reward subject to the nominal constraints, exactly, in one step.

    If no policy meets the constraints nominally, maximise the smallest nominal margin. With `reach`
    rules the program is over states and flags that say which events have happened. Its policy without
    the flags keeps the value of every sum, while the probabilities may differ from the program's.
    """
    model = run.layout.model
    occupancy = run.layout.unpad_states(constrained_optimum(run.table, model.actions).occupancy)
    total = occupancy.sum(-1, keepdims=True)
    # States that are never reached get a uniform row.
    reached = total > 0
    policy = np.where(reached, occupancy / np.where(reached, total, 1.0), 1 / model.actions)
    run.record(run.layout.pad_policy(policy))


ALGORITHM = Algorithm(
    "lp", lp, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False, local=False
)
