"""Holdfast: policies that keep their constraints when the world is not the model.

Three verbs for tables: `evaluate`, `solve`, `certify`, each on a `RobustCMDP`. Two for simulators:
`train` gives an `Agent`, and `stress` puts it under kernels that it was not trained on. `disturb` makes
a simulator of any Gymnasium environment.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast import environments, uncertainty
    from holdfast._model import Constraint, Kernel, RobustCMDP, at_least, at_most
    from holdfast.deep.agent import Agent, load
    from holdfast.deep.channels import Actions, Force, Observations, Parameters, States
    from holdfast.deep.configuration import AdversarySettings, Settings
    from holdfast.deep.disturb import disturb
    from holdfast.deep.hosts.costs import Transition, speed_limit
    from holdfast.deep.loop import TrainingError
    from holdfast.deep.stress import stress
    from holdfast.deep.stress_result import Stress
    from holdfast.deep.train import train
    from holdfast.environments._gymnasium import from_gymnasium
    from holdfast.tabular.certify import Certificate, certify
    from holdfast.tabular.evaluate import Evaluation, evaluate
    from holdfast.tabular.solve import Solution, solve
    from holdfast.tabular.worst_case import Dual, ProjectedGradient, Tilted
    from holdfast.uncertainty import (
        KL,
        ChiSquare,
        Contamination,
        Interval,
        TotalVariation,
        Wasserstein,
    )

# Loaded when first used (PEP 562), so that `import holdfast` does not wait for JAX.
_HOME = {
    "Actions": "holdfast.deep.channels",
    "AdversarySettings": "holdfast.deep.configuration",
    "Agent": "holdfast.deep.agent",
    "Certificate": "holdfast.tabular.certify",
    "ChiSquare": "holdfast.uncertainty",
    "Constraint": "holdfast._model",
    "Contamination": "holdfast.uncertainty",
    "Dual": "holdfast.tabular.worst_case",
    "Evaluation": "holdfast.tabular.evaluate",
    "Force": "holdfast.deep.channels",
    "Interval": "holdfast.uncertainty",
    "KL": "holdfast.uncertainty",
    "Kernel": "holdfast._model",
    "Observations": "holdfast.deep.channels",
    "Parameters": "holdfast.deep.channels",
    "ProjectedGradient": "holdfast.tabular.worst_case",
    "RobustCMDP": "holdfast._model",
    "Settings": "holdfast.deep.configuration",
    "Solution": "holdfast.tabular.solve",
    "States": "holdfast.deep.channels",
    "Stress": "holdfast.deep.stress_result",
    "Tilted": "holdfast.tabular.worst_case",
    "TotalVariation": "holdfast.uncertainty",
    "TrainingError": "holdfast.deep.loop",
    "Transition": "holdfast.deep.hosts.costs",
    "Wasserstein": "holdfast.uncertainty",
    "at_least": "holdfast._model",
    "at_most": "holdfast._model",
    "certify": "holdfast.tabular.certify",
    "disturb": "holdfast.deep.disturb",
    "environments": "",
    "evaluate": "holdfast.tabular.evaluate",
    "from_gymnasium": "holdfast.environments._gymnasium",
    "load": "holdfast.deep.agent",
    "solve": "holdfast.tabular.solve",
    "speed_limit": "holdfast.deep.hosts.costs",
    "stress": "holdfast.deep.stress",
    "train": "holdfast.deep.train",
    "uncertainty": "",
}

__all__ = [
    "KL",
    "Actions",
    "AdversarySettings",
    "Agent",
    "Certificate",
    "ChiSquare",
    "Constraint",
    "Contamination",
    "Dual",
    "Evaluation",
    "Force",
    "Interval",
    "Kernel",
    "Observations",
    "Parameters",
    "ProjectedGradient",
    "RobustCMDP",
    "Settings",
    "Solution",
    "States",
    "Stress",
    "Tilted",
    "TotalVariation",
    "TrainingError",
    "Transition",
    "Wasserstein",
    "__version__",
    "at_least",
    "at_most",
    "certify",
    "disturb",
    "environments",
    "evaluate",
    "from_gymnasium",
    "load",
    "solve",
    "speed_limit",
    "stress",
    "train",
    "uncertainty",
]


# `gymnasium.make("holdfast/…")` knows our environments, whichever of the two is imported first.
if importlib.util.find_spec("gymnasium") is not None:
    from holdfast._registration import register

    register()
    del register


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    home = _HOME[name]
    value = (
        getattr(importlib.import_module(home), name)
        if home
        else importlib.import_module(f"holdfast.{name}")
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
