"""Holdfast: policies that keep their constraints when the world is not the model.

`evaluate`, `solve` and `certify` work on a table, a `RobustCMDP`. `train` returns an `Agent` for a
simulator, and `stress` measures it under kernels that it was not trained on. `disturb` turns a
Gymnasium environment into such a simulator.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from holdfast._version import __version__

# The public names, by module. A module is imported when one of its names is first used (PEP 562), so
# that `import holdfast` does not import JAX.
_PUBLIC = {
    "holdfast": "environments uncertainty",
    "holdfast.auditing": "Audit audit",
    "holdfast.gym.channels": "Actions Force Observations Parameters States",
    "holdfast.gym.disturb": "disturb",
    "holdfast.gym.from_gymnasium": "from_gymnasium",
    "holdfast.gym.costs": "Transition speed_limit",
    "holdfast.gym.shield": "Shield",
    "holdfast.model": "Constraint Kernel RobustCMDP at_least at_most reach",
    "holdfast.model.logs.from_log": "from_log",
    "holdfast.model.logs.summary": "LogSummary",
    "holdfast.model.mdptoolbox": "from_mdptoolbox",
    "holdfast.model.policy_table": "PolicyTable",
    "holdfast.simulators.certificates.simulator_certificate": "SimulatorCertificate",
    "holdfast.simulators.certificates.stress_result": "Stress",
    "holdfast.simulators.environment": "TrainingError",
    "holdfast.simulators.policy.agent": "Agent",
    "holdfast.simulators.training.settings": "AdversarySettings Settings",
    "holdfast.tabular.certificates.checker.check_proof": "check_proof",
    "holdfast.tabular.certify": "Certificate",
    "holdfast.tabular.evaluate": "Evaluation",
    "holdfast.tabular.evaluation.projected_gradient": "ProjectedGradient",
    "holdfast.tabular.evaluation.tilted_kernel": "Tilted",
    "holdfast.tabular.evaluation.worst_case": "Dual",
    "holdfast.tabular.sensitivity": "Sensitivity",
    "holdfast.tabular.solve": "Solution",
    "holdfast.tabular.sweep": "Sweep",
    "holdfast.uncertainty": "KL ChiSquare Contamination Interval TotalVariation Wasserstein",
    "holdfast.verbs": (
        "as_agent certify check_environment evaluate load sensitivity solve stress sweep train"
    ),
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["__version__", *sorted(_MODULE_OF)]

# Type checkers cannot read the table. A test keeps these imports equal to it.
if TYPE_CHECKING:
    from holdfast import environments as environments
    from holdfast import uncertainty as uncertainty
    from holdfast.auditing import Audit as Audit
    from holdfast.auditing import audit as audit
    from holdfast.gym.channels import Actions as Actions
    from holdfast.gym.channels import Force as Force
    from holdfast.gym.channels import Observations as Observations
    from holdfast.gym.channels import Parameters as Parameters
    from holdfast.gym.channels import States as States
    from holdfast.gym.costs import Transition as Transition
    from holdfast.gym.costs import speed_limit as speed_limit
    from holdfast.gym.disturb import disturb as disturb
    from holdfast.gym.from_gymnasium import from_gymnasium as from_gymnasium
    from holdfast.gym.shield import Shield as Shield
    from holdfast.model import Constraint as Constraint
    from holdfast.model import Kernel as Kernel
    from holdfast.model import RobustCMDP as RobustCMDP
    from holdfast.model import at_least as at_least
    from holdfast.model import at_most as at_most
    from holdfast.model import reach as reach
    from holdfast.model.logs.from_log import from_log as from_log
    from holdfast.model.logs.summary import LogSummary as LogSummary
    from holdfast.model.mdptoolbox import from_mdptoolbox as from_mdptoolbox
    from holdfast.model.policy_table import PolicyTable as PolicyTable
    from holdfast.simulators.certificates.simulator_certificate import (
        SimulatorCertificate as SimulatorCertificate,
    )
    from holdfast.simulators.certificates.stress_result import Stress as Stress
    from holdfast.simulators.environment import TrainingError as TrainingError
    from holdfast.simulators.policy.agent import Agent as Agent
    from holdfast.simulators.training.settings import AdversarySettings as AdversarySettings
    from holdfast.simulators.training.settings import Settings as Settings
    from holdfast.tabular.certificates.checker.check_proof import check_proof as check_proof
    from holdfast.tabular.certify import Certificate as Certificate
    from holdfast.tabular.evaluate import Evaluation as Evaluation
    from holdfast.tabular.evaluation.projected_gradient import (
        ProjectedGradient as ProjectedGradient,
    )
    from holdfast.tabular.evaluation.tilted_kernel import Tilted as Tilted
    from holdfast.tabular.evaluation.worst_case import Dual as Dual
    from holdfast.tabular.sensitivity import Sensitivity as Sensitivity
    from holdfast.tabular.solve import Solution as Solution
    from holdfast.tabular.sweep import Sweep as Sweep
    from holdfast.uncertainty import KL as KL
    from holdfast.uncertainty import ChiSquare as ChiSquare
    from holdfast.uncertainty import Contamination as Contamination
    from holdfast.uncertainty import Interval as Interval
    from holdfast.uncertainty import TotalVariation as TotalVariation
    from holdfast.uncertainty import Wasserstein as Wasserstein
    from holdfast.verbs import as_agent as as_agent
    from holdfast.verbs import certify as certify
    from holdfast.verbs import check_environment as check_environment
    from holdfast.verbs import evaluate as evaluate
    from holdfast.verbs import load as load
    from holdfast.verbs import sensitivity as sensitivity
    from holdfast.verbs import solve as solve
    from holdfast.verbs import stress as stress
    from holdfast.verbs import sweep as sweep
    from holdfast.verbs import train as train

# `import holdfast` makes its environments known to `gymnasium.make`.
if importlib.util.find_spec("gymnasium") is not None:
    from holdfast.gym.registration import register

    register()
    del register


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module = _MODULE_OF[name]
    if module == __name__:  # a submodule
        return importlib.import_module(f"{module}.{name}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
