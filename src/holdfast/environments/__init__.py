"""Models and simulators by name, with the paper's numbers as defaults, and what one's own are made of.

`MODELS` are tables: a new one is one file beside this one and one line there. `SIMULATORS` are what
`train` takes by name, every table among them. A simulator of one's own is a subclass of `Environment`,
which says what it needs in terms of `Box` or `Discrete` actions, `GaussianNoise` or `Outcomes`, and
`Step`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.environments.frozen_lake import frozen_lake
from holdfast.environments.gambler import gambler
from holdfast.environments.garbage_collector import garbage_collector
from holdfast.environments.garnet import garnet
from holdfast.environments.inventory import inventory
from holdfast.environments.machine_replacement import machine_replacement
from holdfast.environments.n_chain import n_chain
from holdfast.environments.river_swim import river_swim
from holdfast.environments.safe_navigation import safe_navigation
from holdfast.environments.slippery_lake import slippery_lake
from holdfast.model import RobustCMDP

if TYPE_CHECKING:
    from holdfast.environments.linear_gaussian import LinearGaussian
    from holdfast.environments.point_gather import PointGather
    from holdfast.environments.table_simulator import SIMULATORS, TableSimulator
    from holdfast.simulators.environment import (
        Box,
        Discrete,
        Environment,
        GaussianNoise,
        Outcomes,
        Step,
    )

MODELS: dict[str, Callable[..., RobustCMDP]] = {
    "gambler": gambler,
    "n-chain": n_chain,
    "frozen-lake": frozen_lake,
    "river-swim": river_swim,
    "garnet": garnet,
    "slippery-lake": slippery_lake,
    "garbage-collector": garbage_collector,
    "inventory": inventory,
    "machine-replacement": machine_replacement,
    "safe-navigation": safe_navigation,
}

# Loaded when first used: who solves tables needs none of it.
_HOME = {
    "Box": "holdfast.simulators.environment",
    "Discrete": "holdfast.simulators.environment",
    "Environment": "holdfast.simulators.environment",
    "GaussianNoise": "holdfast.simulators.environment",
    "LinearGaussian": "holdfast.environments.linear_gaussian",
    "Outcomes": "holdfast.simulators.environment",
    "PointGather": "holdfast.environments.point_gather",
    "SIMULATORS": "holdfast.environments.table_simulator",
    "Step": "holdfast.simulators.environment",
    "TableSimulator": "holdfast.environments.table_simulator",
}

__all__ = [
    "MODELS",
    "SIMULATORS",
    "Box",
    "Discrete",
    "Environment",
    "GaussianNoise",
    "LinearGaussian",
    "Outcomes",
    "PointGather",
    "Step",
    "TableSimulator",
    "frozen_lake",
    "gambler",
    "garbage_collector",
    "garnet",
    "inventory",
    "machine_replacement",
    "n_chain",
    "river_swim",
    "safe_navigation",
    "slippery_lake",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast.environments' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
