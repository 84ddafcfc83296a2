"""RNPG: robust natural policy gradient (Ganguly, Ghosh, Panaganti, Wierman 2025, arXiv 2505.19238)."""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast._support.arguments import check_number
from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.optimum import robust_optimum
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import natural_step, scaled_margins


@dataclasses.dataclass(frozen=True)
class RNPG:
    """Settings of `rnpg`. Values are in units of their range (`Run.units`), and all numbers are ours.

    Arguments:
        penalty: λ, by which the reward's loss is divided. The theorem uses λ = 2/((1−γ)ξ), with the
            required accuracy in place of ξ if ξ = 0; the paper's experiments use 50, which would cost up
            to 2 % of the range here.
        slack: ξ, added to every violation. In the theory it is the Slater margin of the optimum; the
            experiments use 0. Default: 1/λ, the smallest value for which every minimiser is feasible.
        policy_step: α, step size of the natural gradient.
        decay: power in [0, 1]; the step falls as (t+1)^(−decay). The theorem's α is constant, of the
            order of 1/√T.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import RNPG
        >>> settings = RNPG(penalty=50.0, slack=0.0)
        >>> len(hf.solve("gambler", "rnpg", iterations=5, settings=settings).history["reward"])
        6
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


def rnpg(run: Run) -> None:
    """Lower the largest of the reward's loss over λ and the constraints' violations.

    It minimises F(π) = max{(V* − V_r)/λ, max_i(d_i − V_i + ξ)}, with V* the largest worst-case
    reward without constraints, by π ∝ π_k·exp(α·A) along the signal that attains the maximum. The
    last row of the history is the iterate with the smallest F, which the paper returns.

    Differences from the paper: the objective is V* − V_r (the paper minimises a cost), and one α is used
    for all signals (the paper divides the objective's step by λ).

    The paper proves a feasible policy within ε of the optimum after O(ε⁻²) steps if the optimum has a
    known Slater margin ξ, and otherwise a violation of up to ε after O(ε⁻⁴) steps.

    Known limits. The proof assumes that one policy minimises F from every state at once, and that
    no kernel of the set raises a probability by a factor of 1/γ or more. The former fails for
    maxima of values under different kernels, which can have stationary points that are not minima
    (whether there is a feasible policy is NP-hard to decide, arXiv 2604.21177). The evaluator of
    the public code returns the same value for all radii from 0.02 to 100.
    """
    s = run.settings(RNPG)
    best_reward = robust_optimum(run.table, run.table.signals[0]).upper
    kept, least = run.policy, np.inf
    for t in range(run.options.iterations):
        lost = run.units[0] * (best_reward - float(run.worst.value[0])) / s.penalty
        terms = np.r_[lost, s.slack - scaled_margins(run, run.worst)]
        if terms.max() < least:
            kept, least = run.policy, terms.max()
        if t == run.options.iterations - 1:
            break
        weights = np.zeros(len(terms))
        weights[terms.argmax()] = s.policy_step * (t + 1) ** -s.decay
        run.record(natural_step(run, run.worst, weights))
    run.record(kept)


ALGORITHM = Algorithm("rnpg", rnpg, settings=RNPG)
