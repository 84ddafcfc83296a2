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
    from holdfast.gym.channels import Actions, Force, Observations, Parameters, States
    from holdfast.gym.disturb import disturb
    from holdfast.gym.from_gymnasium import from_gymnasium
    from holdfast.gym.hosts.costs import Transition, speed_limit
    from holdfast.model import Constraint, Kernel, RobustCMDP, at_least, at_most
    from holdfast.simulators.certificates.stress_result import Stress
    from holdfast.simulators.policy.agent import Agent
    from holdfast.simulators.training.loop import TrainingError
    from holdfast.simulators.training.settings import AdversarySettings, Settings
    from holdfast.tabular.certify import Certificate
    from holdfast.tabular.evaluate import Evaluation
    from holdfast.tabular.evaluation.worst_case import Dual, ProjectedGradient, Tilted
    from holdfast.tabular.solve import Solution
    from holdfast.uncertainty import (
        KL,
        ChiSquare,
        Contamination,
        Interval,
        TotalVariation,
        Wasserstein,
    )
    from holdfast.verbs import certify, evaluate, load, solve, stress, train

# Loaded when first used (PEP 562), so that `import holdfast` does not wait for JAX.
_HOME = {
    "Actions": "holdfast.gym.channels",
    "AdversarySettings": "holdfast.simulators.training.settings",
    "Agent": "holdfast.simulators.policy.agent",
    "Certificate": "holdfast.tabular.certify",
    "ChiSquare": "holdfast.uncertainty",
    "Constraint": "holdfast.model",
    "Contamination": "holdfast.uncertainty",
    "Dual": "holdfast.tabular.evaluation.worst_case",
    "Evaluation": "holdfast.tabular.evaluate",
    "Force": "holdfast.gym.channels",
    "Interval": "holdfast.uncertainty",
    "KL": "holdfast.uncertainty",
    "Kernel": "holdfast.model",
    "Observations": "holdfast.gym.channels",
    "Parameters": "holdfast.gym.channels",
    "ProjectedGradient": "holdfast.tabular.evaluation.worst_case",
    "RobustCMDP": "holdfast.model",
    "Settings": "holdfast.simulators.training.settings",
    "Solution": "holdfast.tabular.solve",
    "States": "holdfast.gym.channels",
    "Stress": "holdfast.simulators.certificates.stress_result",
    "Tilted": "holdfast.tabular.evaluation.worst_case",
    "TotalVariation": "holdfast.uncertainty",
    "TrainingError": "holdfast.simulators.training.loop",
    "Transition": "holdfast.gym.hosts.costs",
    "Wasserstein": "holdfast.uncertainty",
    "at_least": "holdfast.model",
    "at_most": "holdfast.model",
    "certify": "holdfast.verbs",
    "disturb": "holdfast.gym.disturb",
    "environments": "",
    "evaluate": "holdfast.verbs",
    "from_gymnasium": "holdfast.gym.from_gymnasium",
    "load": "holdfast.verbs",
    "solve": "holdfast.verbs",
    "speed_limit": "holdfast.gym.hosts.costs",
    "stress": "holdfast.verbs",
    "train": "holdfast.verbs",
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
    from holdfast.gym.registration import register

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
