"""Uncertainty sets: the kernels that nature may choose from, one set per file.

A new set derives from `UncertaintySet`. `SETS` maps names to sets, those of other packages included.
"""

from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty.chi_square import ChiSquare
from holdfast.uncertainty.contamination import Contamination
from holdfast.uncertainty.interval import Interval
from holdfast.uncertainty.kl import KL
from holdfast.uncertainty.protocol import UncertaintySet
from holdfast.uncertainty.rows import Bracket, Response
from holdfast.uncertainty.total_variation import TotalVariation
from holdfast.uncertainty.wasserstein import Wasserstein

SETS = UNCERTAINTY

__all__ = [
    "KL",
    "SETS",
    "Bracket",
    "ChiSquare",
    "Contamination",
    "Interval",
    "Response",
    "TotalVariation",
    "UncertaintySet",
    "Wasserstein",
]
