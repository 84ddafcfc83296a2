"""The built-in models and simulators, and the types from which users build their own.

`MODELS` maps names to functions that return a table, with the paper's numbers as defaults.
`SIMULATORS` maps every registered name, tables included, to a function that returns a simulator.

To add an environment, write one file beside this one and add one line to `registry.py`. A simulator is
a subclass of `Environment` with `Box` or `Discrete` actions, a `GaussianNoise` or `Outcomes`
disturbance, and a `step` that returns a `Step`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.environments.frozen_lake import frozen_lake as frozen_lake
from holdfast.environments.gambler import gambler as gambler
from holdfast.environments.garbage_collector import garbage_collector as garbage_collector
from holdfast.environments.garnet import garnet as garnet
from holdfast.environments.inventory import inventory as inventory
from holdfast.environments.machine_replacement import machine_replacement as machine_replacement
from holdfast.environments.n_chain import n_chain as n_chain
from holdfast.environments.river_swim import river_swim as river_swim
from holdfast.environments.safe_navigation import safe_navigation as safe_navigation
from holdfast.environments.slippery_lake import slippery_lake as slippery_lake
from holdfast.model import RobustCMDP
from holdfast.registry import ENVIRONMENTS, TABLES

if TYPE_CHECKING:
    from holdfast.environments.linear_gaussian import LinearGaussian as LinearGaussian
    from holdfast.environments.point_gather import PointGather as PointGather
    from holdfast.environments.table_simulator import SIMULATORS as SIMULATORS
    from holdfast.environments.table_simulator import TableSimulator as TableSimulator
    from holdfast.simulators.environment import Box as Box
    from holdfast.simulators.environment import Discrete as Discrete
    from holdfast.simulators.environment import Environment as Environment
    from holdfast.simulators.environment import GaussianNoise as GaussianNoise
    from holdfast.simulators.environment import Outcomes as Outcomes
    from holdfast.simulators.environment import Step as Step

MODELS: dict[str, Callable[..., RobustCMDP]] = {name: ENVIRONMENTS[name] for name in TABLES}

# Imported when first used (PEP 562): solving a table needs no simulator.
_HOME = {
    "LinearGaussian": "holdfast.environments.linear_gaussian",
    "PointGather": "holdfast.environments.point_gather",
    **dict.fromkeys(("SIMULATORS", "TableSimulator"), "holdfast.environments.table_simulator"),
    **dict.fromkeys(
        ("Box", "Discrete", "Environment", "GaussianNoise", "Outcomes", "Step"),
        "holdfast.simulators.environment",
    ),
}

__all__ = sorted(["MODELS", *(make.__name__ for make in MODELS.values()), *_HOME])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast.environments' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
