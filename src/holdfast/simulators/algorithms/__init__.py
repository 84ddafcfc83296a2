"""Training algorithms by name: one file each, and one line here.

A module has `iterate`, one iteration of training, `ROBUST`, whether every signal has a worst-case kernel
of its own, and `CONSTRAINED`, whether limits are enforced.
"""

from types import ModuleType

from holdfast.simulators.algorithms import cpo, pcpo, rcpo, trpo

ALGORITHMS: dict[str, ModuleType] = {"rcpo": rcpo, "pcpo": pcpo, "cpo": cpo, "trpo": trpo}

__all__ = ["ALGORITHMS"]
