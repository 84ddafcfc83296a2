"""PCPO: RCPO that trusts the simulator (Yang, Rosca, Narasimhan and Ramadge, 2020)."""

from __future__ import annotations

from holdfast.simulators.algorithms.rcpo import iterate

ROBUST, CONSTRAINED = False, True

__all__ = ["CONSTRAINED", "ROBUST", "iterate"]
