"""RCPG: robust constrained policy gradient (Russel, Benosman, van Baar 2020, arXiv 2010.04870)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, softmax_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_choice, check_number
from holdfast.tabular.evaluation.values import Outlook, kernel_of
from holdfast.tabular.evaluation.worst_case import nominal_outlook, worst_outlook


@dataclasses.dataclass(frozen=True)
class RCPG:
    """Settings of `rcpg`; values are in units of their range (`Run.units`).

    In public code (Bossens's) both steps fall, the multipliers' faster than the policy's; the numbers
    are ours. With exact gradients the policy's step need not fall.

    Arguments:
        policy_step: of the logits' gradient step; it falls as (t+1)^(−policy_decay).
        dual_step: of the multipliers' step; it falls as (t+1)^(−dual_decay).
        policy_decay: a power in [0, 1].
        dual_decay: a power in [0, 1].
        against: whose worst case nature takes for all signals: "reward", or "lagrangian" for that
            of r + Σλ_i c_i (Bossens 2023, arXiv 2308.11267). Bossens has the paper take the
            reward's or the constraint's; the latter is not offered here.
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


def rcpg(run: Run) -> Float[Array, "S A"]:
    """Policy gradient on the Lagrangian of a softmax policy, all signals under one adverse kernel.

    θ moves along ∇_θ[V_r + Σλ_i V_i] and λ_i by −(V_i − d_i), both under the kernel that is the worst
    for the signal named by `against`. Bossens's code has L1 sets; any set serves here.

    What the paper gives, by its abstract: the Lagrangian and the algorithm. What it proves of
    convergence we have not checked.

    What is known to be wrong: one kernel stands for all signals, so that not the whole of the
    constrained objective is made robust (Bossens 2023): what is held is the constraint under the
    *reward's* worst case (or the Lagrangian's), not under its own. The margins in the history are in
    the constraints' own worst case and show the difference. Beyond that, the Lagrangian's stationary
    points have the faults told at `rpd`.
    """
    s = run.settings(RCPG)
    multipliers = np.zeros(len(run.thresholds))
    for t in range(run.options.iterations):
        seen = _under_one_kernel(run, s.against, multipliers)
        multipliers = np.maximum(
            multipliers - s.dual_step * (t + 1) ** -s.dual_decay * margins(run, seen), 0.0
        )
        step = s.policy_step * (t + 1) ** -s.policy_decay
        run.record(softmax_step(run, seen, step * np.r_[1.0, multipliers]))
    return run.policy


def _under_one_kernel(run: Run, against: str, multipliers: np.ndarray) -> Outlook:
    """The policy's outlook where nature takes one kernel for all signals."""
    if against == "reward":
        kernel = kernel_of(run.table, run.worst, 0)
    else:
        weights = run.units * np.r_[1.0, multipliers]
        joint = run.table.with_signals(jnp.tensordot(weights, run.table.signals, axes=1)[None])
        kernel = kernel_of(joint, worst_outlook(joint, run.policy, run.options.worst_case), 0)
    table = eqx.tree_at(lambda t: t.probabilities, run.table, kernel)
    return nominal_outlook(table, run.policy)


ALGORITHM = Algorithm("rcpg", rcpg, settings=RCPG)
