"""PCPO: projection-based constrained policy optimisation (Yang, Rosca, Narasimhan, Ramadge 2020).

The steps of RCPO under the nominal kernel. The margins in the history are worst-case margins all
the same: they show what PCPO does not see.
"""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms.rcpo import improve_and_project, iterate
from holdfast.tabular.run import Run


def pcpo(run: Run) -> None:
    """Improve the policy within a trust region, then project it, both under the nominal kernel."""
    iterate(run, improve_and_project, robust=False)


ALGORITHM = Algorithm(
    "pcpo", pcpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
