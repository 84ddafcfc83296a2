"""Robust constrained MDPs: kernels, constraints, model files, and the padded tables for computation."""

from holdfast.model.checks import check_policy
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint, at_least, at_most
from holdfast.model.kernel import Kernel
from holdfast.model.policies import policy_of
from holdfast.model.rules import Reach, reach

__all__ = [
    "Constraint",
    "Kernel",
    "Reach",
    "RobustCMDP",
    "at_least",
    "at_most",
    "check_policy",
    "policy_of",
    "reach",
]
