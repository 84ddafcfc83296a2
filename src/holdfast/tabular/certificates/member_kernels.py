"""Kernels for an upper bound: members of the uncertainty set, found as worst cases."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from holdfast.model import Kernel, RobustCMDP
from holdfast.model.table import TableLayout
from holdfast.tabular.certificates.occupancy_model import kernel_of_all_steps, policy_of_all_steps
from holdfast.tabular.certificates.upper_bound import LagrangianBound, worst_kernel_at
from holdfast.tabular.evaluate import Evaluation, evaluate

# Weight of the nominal kernel mixed into a kernel of a proof. Divergences are convex and zero at the
# nominal kernel, so they fall by at least this fraction: more than the 1e-9 by which a search may leave
# the set, and too little to change a bound by more than about 1e-6.
_NOMINAL_SHARE = 1e-6
# Rows closer than this to the nominal row become that row, which is a member of every set.
_SAME_ROW = 1e-12
# A constraint binds if its margin is below this share of max(1, |worst value|).
_BINDING = 1e-3


def first_kernels(
    layout: TableLayout, evaluation: Evaluation, bound: LagrangianBound
) -> list[np.ndarray | Kernel]:
    """Return a policy's worst kernels for reward and binding constraints, and the bound's own.

    The steps of a horizon are further states of the kernels.
    """
    found: list[np.ndarray | Kernel] = [evaluation.reward.kernel]
    for constraint in evaluation.constraints:
        if constraint.margin <= _BINDING * max(1.0, abs(constraint.worst)):
            found.append(constraint.kernel)
    found.append(layout.kernel(worst_kernel_at(layout.table, bound)))
    return [_serving(layout.model, kernel) for kernel in found]


def further_kernels(
    model: RobustCMDP, policy: Float[np.ndarray, "n A"], cutoff: float
) -> list[np.ndarray | Kernel]:
    """Return the worst kernels under which a policy misses the cutoff or a constraint.

    The steps of a horizon are further states of the policy and of the kernels.
    """
    evaluation = evaluate(model, policy_of_all_steps(model, policy))
    found = [evaluation.reward.kernel] if not evaluation.reward.worst >= cutoff else []
    found += [each.kernel for each in evaluation.constraints if not each.margin >= 0]
    return [_serving(model, kernel) for kernel in found]


def _serving(model: RobustCMDP, kernel: np.ndarray | Kernel) -> np.ndarray | Kernel:
    return kernel_of_all_steps(model, strict_member(model, kernel))


def strict_member(model: RobustCMDP, kernel: np.ndarray | Kernel) -> np.ndarray | Kernel:
    """Return a kernel close to a worst case that is a member of the set beyond its numerical error.

    Arguments:
        model: the model.
        kernel: worst case of a signal, in the form of `SignalEvaluation.kernel`.
    """
    if not isinstance(kernel, Kernel):
        nominal = model.transitions
        assert not isinstance(nominal, Kernel)
        return _towards(nominal, kernel)
    nominal = model.transitions
    assert isinstance(nominal, Kernel)
    p = nominal.probabilities
    if not np.array_equal(kernel.successors, nominal.successors):  # the set leaves the lists
        p = nominal.dense()
    return Kernel(kernel.successors, _towards(p, kernel.probabilities))


def _towards(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    mixed = (1 - _NOMINAL_SHARE) * q + _NOMINAL_SHARE * p
    same = (np.abs(q - p) <= _SAME_ROW).all(-1, keepdims=True)
    return np.where(same, p, mixed)
