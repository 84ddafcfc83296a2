"""RNPG: robust natural policy gradient (Ganguly, Ghosh, Panaganti, Wierman 2025, arXiv 2505.19238)."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, natural_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number
from holdfast.tabular.evaluation.optimum import robust_optimum


@dataclasses.dataclass(frozen=True)
class RNPG:
    """Settings of `rnpg`; values are in units of their range (`Run.units`).

    Arguments:
        penalty: λ, by which the reward's loss is divided. The theorem's is 2/(1−γ) over ξ, or over
            the accuracy asked for where ξ is 0; its experiments have 50, which here would give away
            up to 2 % of the range. Ours: 1000.
        slack: ξ, added to every violation. The paper's is the margin that the optimum has to spare;
            its experiments go without. Ours is one over λ, the least that makes every minimiser
            feasible.
        policy_step: α, of the natural gradient. Ours.
        decay: a power in [0, 1]; the step falls as (t+1)^(−decay). Ours: the theorem's α is constant,
            of the order of 1/√T.
    """

    penalty: float = 1000.0
    slack: float = 0.001
    policy_step: float = 1.0
    decay: float = 0.5

    def __post_init__(self) -> None:
        check_number("penalty", self.penalty, above=True)
        check_number("slack", self.slack)
        check_number("policy_step", self.policy_step, above=True)
        check_number("decay", self.decay, most=1.0)


def rnpg(run: Run) -> Float[Array, "S A"]:
    """Natural gradient steps on the largest of the reward's loss over λ and the constraints' violations.

    It minimises F(π) = max{(V* − V_r)/λ, max_i(d_i − V_i + ξ)}, with V* the best worst-case reward
    if there were no constraint, by π ∝ π_k·exp(α·A) along the signal that attains the maximum. The
    last row of the history is the iterate with the smallest F, which is what the paper returns.

    Ours: V* − V_r, where the paper, which minimises costs, has the cost's value itself; and the same
    α for all signals, where the paper's step along the objective is divided by λ, as F is.

    What the paper proves: a feasible policy within ε of the optimum after O(ε⁻²) steps, where the
    optimum has a known margin ξ to spare; without it, a violation up to ε, after O(ε⁻⁴).

    What is known to be wrong: the proof assumes that one policy minimises F from every state at
    once, and that no kernel of the set raises a probability by as much as the factor 1/γ. Nothing
    grants the former for a maximum of values under different kernels, which can be stationary where
    it is not least (whether there is a feasible policy is NP-hard to tell, arXiv 2604.21177).
    The public code's evaluator gives the same value for all radii from 0.02 to 100.
    """
    s = run.settings(RNPG)
    best_reward = robust_optimum(run.table, run.table.signals[0]).upper
    kept, least = run.policy, np.inf
    for t in range(run.options.iterations):
        lost = run.units[0] * (best_reward - float(run.worst.value[0])) / s.penalty
        terms = np.r_[lost, s.slack - margins(run, run.worst)]
        if terms.max() < least:
            kept, least = run.policy, terms.max()
        if t == run.options.iterations - 1:
            break
        weights = np.zeros(len(terms))
        weights[terms.argmax()] = s.policy_step * (t + 1) ** -s.decay
        run.record(natural_step(run, run.worst, weights))
    run.record(kept)
    return run.policy


ALGORITHM = Algorithm("rnpg", rnpg, settings=RNPG)
