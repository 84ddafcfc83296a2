"""PCPO: RCPO that trusts the simulator (Yang, Rosca, Narasimhan and Ramadge, 2020)."""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.simulators.algorithms.rcpo import iterate

ALGORITHM = Algorithm("pcpo", iterate, robust=False)
