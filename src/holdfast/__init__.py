"""Holdfast: policies that keep their constraints when the world is not the model.

Three verbs for tables: `evaluate`, `solve`, `certify`, each on a `RobustCMDP`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

if TYPE_CHECKING:
    from holdfast import environments, uncertainty
    from holdfast._model import Constraint, Kernel, RobustCMDP, at_least, at_most
    from holdfast.environments._gymnasium import from_gymnasium
    from holdfast.tabular.certify import Certificate, certify
    from holdfast.tabular.evaluate import Evaluation, evaluate
    from holdfast.tabular.solve import Solution, solve
    from holdfast.tabular.worst_case import Dual, ProjectedGradient, Tilted
    from holdfast.uncertainty import KL

# Loaded when first used (PEP 562), so that `import holdfast` costs nothing.
_HOME = {
    "Certificate": "holdfast.tabular.certify",
    "Constraint": "holdfast._model",
    "Dual": "holdfast.tabular.worst_case",
    "Evaluation": "holdfast.tabular.evaluate",
    "KL": "holdfast.uncertainty",
    "Kernel": "holdfast._model",
    "ProjectedGradient": "holdfast.tabular.worst_case",
    "RobustCMDP": "holdfast._model",
    "Solution": "holdfast.tabular.solve",
    "Tilted": "holdfast.tabular.worst_case",
    "at_least": "holdfast._model",
    "at_most": "holdfast._model",
    "certify": "holdfast.tabular.certify",
    "environments": "",
    "evaluate": "holdfast.tabular.evaluate",
    "from_gymnasium": "holdfast.environments._gymnasium",
    "solve": "holdfast.tabular.solve",
    "uncertainty": "",
}

__all__ = [
    "KL",
    "Certificate",
    "Constraint",
    "Dual",
    "Evaluation",
    "Kernel",
    "ProjectedGradient",
    "RobustCMDP",
    "Solution",
    "Tilted",
    "__version__",
    "at_least",
    "at_most",
    "certify",
    "environments",
    "evaluate",
    "from_gymnasium",
    "solve",
    "uncertainty",
]


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
