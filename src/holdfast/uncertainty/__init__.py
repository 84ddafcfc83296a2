"""Uncertainty sets: the kernels that nature may choose from, one set a file.

A new set is one file beside this one and one line in `holdfast.registry`.
"""

from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty._set import Response, UncertaintySet
from holdfast.uncertainty.chi_square import ChiSquare
from holdfast.uncertainty.contamination import Contamination
from holdfast.uncertainty.interval import Interval
from holdfast.uncertainty.kl import KL
from holdfast.uncertainty.total_variation import TotalVariation
from holdfast.uncertainty.wasserstein import Wasserstein

SETS = UNCERTAINTY

__all__ = [
    "KL",
    "SETS",
    "ChiSquare",
    "Contamination",
    "Interval",
    "Response",
    "TotalVariation",
    "UncertaintySet",
    "Wasserstein",
]
