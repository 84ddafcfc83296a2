"""The algorithms of `solve`, one file each.

A new algorithm is one file beside this one, with a function from a `Run` to its last policy, and one
line in `ALGORITHMS`.
"""

from collections.abc import Callable

from jaxtyping import Array

from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms.cpo import cpo
from holdfast.tabular.algorithms.lp import lp
from holdfast.tabular.algorithms.pcpo import pcpo
from holdfast.tabular.algorithms.rcpo import rcpo
from holdfast.tabular.algorithms.rvi import rvi

ALGORITHMS: dict[str, Callable[[Run], Array]] = {
    "rcpo": rcpo,
    "pcpo": pcpo,
    "cpo": cpo,
    "rvi": rvi,
    "lp": lp,
}

__all__ = ["ALGORITHMS", "Run"]
