"""RNPG: robust natural policy gradient (Ganguly, Ghosh, Panaganti, Wierman 2025, arXiv 2505.19238)."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast.tabular.algorithms._gradient import margins, natural_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number
from holdfast.tabular.optimum import robust_optimum


@dataclasses.dataclass(frozen=True)
class RNPG:
    """Settings of `rnpg`; values are in units of their range (`Run.units`).

    Arguments:
        penalty: λ, by which the reward's loss is divided. The theorem's is of the order of one over
            the accuracy asked for; its experiments have 50, which gives away up to 2 % of the
            range. Ours: 1000.
        slack: ξ, added to every violation. Ours is one over λ, the least that makes every minimiser
            feasible.
        policy_step: α, of the natural gradient. Ours.
        decay: a power in [0, 1]; the step falls as (t+1)^(−decay). Ours, as the theorem's α falls
            with T.
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
    paper's KL sets may be any set here. The last row of the history is the iterate with the
    smallest F, which the theorem is about.

    What the paper proves: some iterate has F within ε of its minimum after O(ε⁻²) steps, and a
    minimiser of F is feasible and within O(ε) of the optimum for λ and ξ of the right order.

    What is known to be wrong: the proof needs that moving along the worst-case advantages, signal
    by signal, leads to the minimum of F, which holds for one value but not for a maximum of values
    under different kernels (finding a feasible policy is NP-hard, arXiv 2604.21177). The public
    code's evaluator gives the same value for all radii from 0.02 to 100.
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
