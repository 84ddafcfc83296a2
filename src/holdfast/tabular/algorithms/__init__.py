"""The algorithms of `solve`, one file each.

An algorithm is a function of a `Run` that calls `Run.record` for every iterate, and an `Algorithm`
record that `holdfast.registry` lists by name. Its hyper-parameters are a frozen dataclass.
"""

from holdfast.registry import ALGORITHMS, Algorithm
from holdfast.tabular.algorithms.crpo import CRPO
from holdfast.tabular.algorithms.cup import CUP
from holdfast.tabular.algorithms.epirc_pgs import EpiRCPGS
from holdfast.tabular.algorithms.r3c import R3C
from holdfast.tabular.algorithms.rcpg import RCPG
from holdfast.tabular.algorithms.rnpg import RNPG
from holdfast.tabular.algorithms.rpd import RPD
from holdfast.tabular.run import Run

__all__ = [
    "ALGORITHMS",
    "CRPO",
    "CUP",
    "R3C",
    "RCPG",
    "RNPG",
    "RPD",
    "Algorithm",
    "EpiRCPGS",
    "Run",
]
