"""PCPO: projection-based constrained policy optimisation (Yang, Rosca, Narasimhan, Ramadge, 2020).

It is RCPO with the nominal kernel in place of every worst case, and shares its code. Its margins in
the history are worst-case ones all the same, which shows what it does not see.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._trust_region import trust_region_loop
from holdfast.tabular.algorithms.rcpo import improve_then_project


def pcpo(run: Run) -> Float[Array, "S A"]:
    """Policy improvement, then projection, under the nominal kernel."""
    return trust_region_loop(run, improve_then_project, robust=False)


ALGORITHM = Algorithm(
    "pcpo", pcpo, accepts=("trust_region", "step", "safeguard", "bounds"), robust=False
)
