"""TRPO: the improvement alone, with no regard to limits (Schulman et al., 2015)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.algorithms.rcpo import iterate

ALGORITHM = Algorithm("trpo", iterate, robust=False, constrained=False)
