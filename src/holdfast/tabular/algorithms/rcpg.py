"""RCPG: robust constrained policy gradient (Russel, Benosman, van Baar 2020, arXiv 2010.04870)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from holdfast._support.arguments import check_choice, check_number
from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import values_under, worst_case, worst_kernel
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import scaled_margins, softmax_step


@dataclasses.dataclass(frozen=True)
class RCPG:
    """Settings of `rcpg`. Values are in units of their range (`Run.units`), and all numbers are ours.

    In Bossens's public code both steps fall, that of the multipliers faster. With exact gradients the
    step of the policy need not fall.

    Arguments:
        policy_step: step size of the logits' gradient; it falls as (t+1)^(−policy_decay).
        dual_step: step size of the multipliers; it falls as (t+1)^(−dual_decay).
        policy_decay: power in [0, 1].
        dual_decay: power in [0, 1].
        against: the signal whose worst case gives the kernel for all signals: "reward", or
            "lagrangian" for r + Σλ_i c_i (Bossens 2023, arXiv 2308.11267). According to Bossens, the
            paper uses the reward or the constraint; the latter is not offered here.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import RCPG
        >>> settings = RCPG(against="lagrangian")
        >>> len(hf.solve("gambler", "rcpg", iterations=5, settings=settings).history["reward"])
        6
    """

    policy_step: float = 30.0
    dual_step: float = 1.0
    policy_decay: float = 0.0
    dual_decay: float = 0.5
    against: Literal["reward", "lagrangian"] = "reward"

    def __post_init__(self) -> None:
        check_number("policy_step", self.policy_step, above=True)
        check_number("dual_step", self.dual_step, above=True)
        check_number("policy_decay", self.policy_decay, most=1.0)
        check_number("dual_decay", self.dual_decay, most=1.0)
        check_choice("against", self.against, ("reward", "lagrangian"))


def rcpg(run: Run) -> None:
    """Follow the policy gradient of the Lagrangian, with all signals under one adverse kernel.

    The logits θ move along ∇_θ[V_r + Σλ_i V_i] and λ_i by −(V_i − d_i), both under the kernel that
    is the worst for the signal named by `against`. Bossens's code has L1 sets; here any set works.

    According to its abstract the paper gives the Lagrangian and the algorithm. We have not checked what
    it proves about convergence.

    Known limits. One kernel serves all signals, so that the constraint is enforced under the worst case
    of the reward or of the Lagrangian, and not under its own (Bossens 2023). The margins in the history
    are in the constraints' own worst cases and show the difference. The stationary points of the
    Lagrangian have the limits described in `rpd`.
    """
    s = run.settings(RCPG)
    multipliers = np.zeros(len(run.thresholds))
    for t in range(run.options.iterations):
        values = _under_one_kernel(run, s.against, multipliers)
        dual_step = s.dual_step * (t + 1) ** -s.dual_decay
        multipliers = np.maximum(multipliers - dual_step * scaled_margins(run, values), 0.0)
        policy_step = s.policy_step * (t + 1) ** -s.policy_decay
        run.record(softmax_step(run, values, policy_step * np.r_[1.0, multipliers]))


def _under_one_kernel(run: Run, against: str, multipliers: np.ndarray) -> PolicyValues:
    """Return the values of the current policy with one kernel for all signals."""
    if against == "reward":
        kernel = worst_kernel(run.table, run.worst, 0)
    elif run.table.boundaries is not None:
        raise ValueError("against: 'lagrangian' is for sums; a reach rule needs 'reward'")
    else:
        weights = run.units * np.r_[1.0, multipliers]
        joint = run.table.with_signals(jnp.tensordot(weights, run.table.signals, axes=1)[None])
        kernel = worst_kernel(joint, worst_case(joint, run.policy, run.options.worst_case), 0)
    return values_under(run.table, run.policy, [kernel] * len(run.table.signals), run.worst)


ALGORITHM = Algorithm("rcpg", rcpg, settings=RCPG)
