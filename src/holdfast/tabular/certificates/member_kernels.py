"""Kernels for an upper bound: members of the uncertainty set, found as worst cases."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from holdfast.model import Kernel, Reach, RobustCMDP
from holdfast.model.table import TableLayout
from holdfast.tabular.certificates.occupancy_model import kernel_of_all_steps, policy_of_all_steps
from holdfast.tabular.certificates.occupancy_program import KernelCopy
from holdfast.tabular.certificates.upper_bound import LagrangianBound, worst_kernel_at
from holdfast.tabular.evaluate import Evaluation, evaluate

# Share of the nominal kernel in a kernel that serves in a proof. Divergences are convex and zero at
# the nominal kernel, so that they fall by this share at least: more than the 1e-9 by which a search
# may leave the set, and too little to change a bound by more than about 1e-6.
_NOMINAL_SHARE = 1e-6
# Rows closer than this to the nominal row become that row, which is a member of every set.
_SAME_ROW = 1e-12
# A constraint binds if its margin is below this share of max(1, |worst value|).
_BINDING = 1e-3


def first_kernels(
    layout: TableLayout, evaluation: Evaluation, bound: LagrangianBound
) -> list[KernelCopy]:
    """Return a policy's worst kernels for reward and binding constraints, and the bound's own.

    The steps of a horizon are further states of the kernels.
    """
    common = layout.kernel(worst_kernel_at(layout.table, bound))
    binding = [
        i
        for i, each in enumerate(evaluation.constraints, start=1)
        if each.margin <= _BINDING * max(1.0, abs(each.worst))
    ]
    return [
        _serving(layout.model, evaluation.reward.kernel),
        *(_of_constraint(layout.model, evaluation, i) for i in binding),
        _serving(layout.model, common),
    ]


def further_kernels(
    model: RobustCMDP, policy: Float[np.ndarray, "n A"], cutoff: float
) -> list[KernelCopy]:
    """Return the worst kernels under which a policy misses the cutoff or a constraint.

    The steps of a horizon are further states of the policy and of the kernels.
    """
    evaluation = evaluate(model, policy_of_all_steps(model, policy))
    reached = evaluation.reward.worst >= cutoff
    found = [] if reached else [_serving(model, evaluation.reward.kernel)]
    margins = enumerate(evaluation.margins, start=1)
    return found + [_of_constraint(model, evaluation, i) for i, m in margins if not m >= 0]


def _of_constraint(model: RobustCMDP, evaluation: Evaluation, number: int) -> KernelCopy:
    """Return the worst kernel of a constraint; that of a reach rule serves its own visits."""
    is_rule = isinstance(model.constraints[number - 1], Reach)
    kernel = evaluation.constraints[number - 1].kernel
    return _serving(model, kernel, number if is_rule else 0)


def _serving(model: RobustCMDP, kernel: np.ndarray | Kernel, rule: int = 0) -> KernelCopy:
    return KernelCopy(kernel_of_all_steps(model, strict_member(model, kernel)), rule)


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
