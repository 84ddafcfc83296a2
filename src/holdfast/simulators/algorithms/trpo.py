"""TRPO: the improvement alone, with no regard to limits (Schulman et al., 2015)."""

from __future__ import annotations

from holdfast.simulators.algorithms.rcpo import iterate

ROBUST, CONSTRAINED = False, False

__all__ = ["CONSTRAINED", "ROBUST", "iterate"]
