"""EpiRC-PGS: policy gradient search in the epigraph form (Kitamura et al. 2024, arXiv 2408.16286)."""

from __future__ import annotations

import dataclasses

import numpy as np

from holdfast._support.arguments import check_number, check_whole_number
from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.optimum import robust_optimum
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import projected_step, scaled_margins

# Width at which the reward's bracket is closed, in units of its range: the accuracy of its upper end.
_CLOSED = 1e-9


@dataclasses.dataclass(frozen=True)
class EpiRCPGS:
    """Settings of `epirc-pgs`. Values are in units of their range (`Run.units`); the numbers are ours.

    Arguments:
        bisections: number of bisections of the reward's bracket for which `iterations` must suffice: a
            search without success takes iterations/bisections steps. RNPG's authors run it with 10, its
            own public code with 1000.
        policy_step: α, step size of the projected gradient.
        decay: power in [0, 1]; within each search the step falls as (t+1)^(−decay). The public code's
            step is constant.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import EpiRCPGS
        >>> settings = EpiRCPGS(bisections=2)
        >>> len(hf.solve("gambler", "epirc-pgs", iterations=5, settings=settings).history["reward"])
        6
    """

    bisections: int = 10
    policy_step: float = 10.0
    decay: float = 0.5

    def __post_init__(self) -> None:
        check_whole_number("bisections", self.bisections, least=1)
        check_number("policy_step", self.policy_step, above=True)
        check_number("decay", self.decay, most=1.0)


def epirc_pgs(run: Run) -> None:
    """Bisect the reward b, and search for a feasible policy with that reward.

    In the epigraph form the reward is one more constraint, V_r ≥ b. For a given b, projected
    gradient steps lower Φ_b(π) = max{b − V_r, max_i(d_i − V_i)} along the one signal that attains
    the maximum, so that no two gradients are added. If Φ_b ≤ 0 is reached, b rises; otherwise it
    falls. `iterations` counts gradient steps. The last row of the history is the feasible policy
    that proves the lower end of the bracket or, if none was found, the policy with the smallest
    violation in the last search.

    A search stops at the first feasible iterate, as in the public code. Ours: a search starts at the
    last iterate of the previous one (public code: at its best); every feasible iterate raises the lower
    end to its own reward; and the upper end starts at the largest worst-case reward without constraints
    (public code: costs are bisected from 0 to 1/(1−γ)).

    The paper claims an ε-optimal policy after Õ(ε⁻⁴) robust evaluations.

    Known limits. The proof that stationary points of Φ_b are global minima has an erratum (version 5).
    Φ_b is a maximum of values under different kernels and may have others; whether there is a feasible
    policy at all is NP-hard to decide in general (arXiv 2604.21177). If a search is stuck or runs out of
    steps, b is taken for unattainable and the bracket closes too low. The public code evaluates with a
    fixed number of sweeps, which leaves 14 % of the value at γ = 0.99.
    """
    s = run.settings(EpiRCPGS)
    steps = max(run.options.iterations // s.bisections, 1)
    low = run.units[0] * float(run.layout.model.reward.min()) / float(run.table.step_share)
    high = run.units[0] * robust_optimum(run.table, run.table.signals[0]).upper
    proof = None
    while len(run.rows) < run.options.iterations and high - low > _CLOSED:
        level, least = 0.5 * (low + high), np.inf
        for t in range(steps):
            reward = run.units[0] * float(run.worst.value[0])
            violations = -scaled_margins(run, run.worst)
            if max(violations, default=0.0) <= 0 and reward > low:
                low, proof = reward, run.policy
            terms = np.r_[level - reward, violations]
            if terms.max() < least:
                least, nearest = terms.max(), run.policy
            if least <= 0 or len(run.rows) == run.options.iterations:
                break
            weights = np.zeros(len(terms))
            weights[terms.argmax()] = s.policy_step * (t + 1) ** -s.decay
            run.record(projected_step(run, run.worst, weights))
        if least > 0:
            high = level
    run.record(nearest if proof is None else proof)
    run.fill()


ALGORITHM = Algorithm("epirc-pgs", epirc_pgs, settings=EpiRCPGS)
