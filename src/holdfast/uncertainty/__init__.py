"""Uncertainty sets: the kernels that nature may choose from, one set a file.

A new set is one file beside this one and one line in `SETS`.
"""

from holdfast.uncertainty._set import Response, UncertaintySet
from holdfast.uncertainty.kl import KL

SETS: dict[str, type[UncertaintySet]] = {"kl": KL}

__all__ = ["KL", "SETS", "Response", "UncertaintySet"]
