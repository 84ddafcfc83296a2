"""The algorithms of `solve`, one file each.

A new algorithm is one file beside this one, with a function from a `Run` to its last policy and,
where it has hyper-parameters, a frozen dataclass of them; and one line in `ALGORITHMS`.
"""

from holdfast.tabular.algorithms._registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms.cpo import cpo
from holdfast.tabular.algorithms.crpo import CRPO, crpo
from holdfast.tabular.algorithms.cup import CUP, cup
from holdfast.tabular.algorithms.epirc_pgs import EpiRCPGS, epirc_pgs
from holdfast.tabular.algorithms.lp import lp
from holdfast.tabular.algorithms.pcpo import pcpo
from holdfast.tabular.algorithms.r3c import R3C, r3c
from holdfast.tabular.algorithms.rcpg import RCPG, rcpg
from holdfast.tabular.algorithms.rcpo import rcpo
from holdfast.tabular.algorithms.rnpg import RNPG, rnpg
from holdfast.tabular.algorithms.rpd import RPD, rpd
from holdfast.tabular.algorithms.rvi import rvi

ALGORITHMS: dict[str, Algorithm] = {
    "rcpo": Algorithm(rcpo),
    "pcpo": Algorithm(pcpo),
    "cpo": Algorithm(cpo),
    "rvi": Algorithm(rvi, local=False),
    "lp": Algorithm(lp, local=False),
    "rpd": Algorithm(rpd, RPD, reads=()),
    "rcpg": Algorithm(rcpg, RCPG, reads=()),
    "r3c": Algorithm(r3c, R3C, reads=("trust_region", "step")),
    "cup": Algorithm(cup, CUP, reads=()),
    "crpo": Algorithm(crpo, CRPO, reads=()),
    "epirc-pgs": Algorithm(epirc_pgs, EpiRCPGS, reads=()),
    "rnpg": Algorithm(rnpg, RNPG, reads=()),
}

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
