"""EpiRC-PGS: policy gradient search in the epigraph form (Kitamura et al. 2024, arXiv 2408.16286)."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Array, Float

from holdfast._support.arguments import check_whole_number
from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import margins, projected_step
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number
from holdfast.tabular.evaluation.optimum import robust_optimum

# A bracket of the reward this narrow, in units of its range, is closed.
_CLOSED = 1e-9


@dataclasses.dataclass(frozen=True)
class EpiRCPGS:
    """Settings of `epirc-pgs`; values are in units of their range (`Run.units`).

    Arguments:
        bisections: of the reward's bracket that `iterations` has to suffice for: a search that
            finds nothing takes iterations/bisections steps. Ours; RNPG's authors run it with 10, its
            own public code with 1000.
        policy_step: α, of the projected gradient. Ours.
        decay: a power in [0, 1]; within each search the step falls as (t+1)^(−decay). Ours: the
            public code's step is constant.
    """

    bisections: int = 10
    policy_step: float = 10.0
    decay: float = 0.5

    def __post_init__(self) -> None:
        check_whole_number("bisections", self.bisections, least=1)
        check_number("policy_step", self.policy_step, above=True)
        check_number("decay", self.decay, most=1.0)


def epirc_pgs(run: Run) -> Float[Array, "S A"]:
    """Bisects the reward b that can be had, searching for a policy that has it and is feasible.

    In the epigraph form the reward is a further constraint, V_r ≥ b. For a given b, projected
    gradient steps lower Φ_b(π) = max{b − V_r, max_i(d_i − V_i)} along the one signal that attains
    the maximum, so that no two gradients are ever added. Where Φ_b ≤ 0 is reached, b can be had and
    goes up; where it is not, b goes down. `iterations` counts gradient steps. The last row of the
    history is the feasible policy that proves the bracket's lower end; where none was found, that
    with the smallest violation in the last search.

    A search stops once it has its answer, as in the public code. Ours: it starts where the last one
    ended (there, at the best policy of the last one); any feasible iterate raises the lower end to
    its own reward; the upper end starts at the best worst-case reward without constraints (there
    costs are bisected, from 0 to 1/(1−γ)).

    What the paper claims: an ε-optimal policy after Õ(ε⁻⁴) robust evaluations.

    What is known to be wrong: the proof that stationary points of Φ_b are global minima has an
    erratum (version 5). Φ_b is a maximum of values under different kernels and can have others;
    whether there is a feasible policy at all is NP-hard to tell in general (arXiv 2604.21177).
    Where the search is stuck or short of steps, b is taken for out of reach and the bracket closes
    too low. The public code evaluates with a fixed number of sweeps that leaves 14 % of the value
    at γ = 0.99.
    """
    s = run.settings(EpiRCPGS)
    steps = max(run.options.iterations // s.bisections, 1)
    low = run.units[0] * float(run.layout.model.reward.min()) / (1 - run.layout.model.discount)
    high = run.units[0] * robust_optimum(run.table, run.table.signals[0]).upper
    proof = None
    while len(run.rows) < run.options.iterations and high - low > _CLOSED:
        level, least = 0.5 * (low + high), np.inf
        for t in range(steps):
            reward, violations = run.units[0] * float(run.worst.value[0]), -margins(run, run.worst)
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
    while len(run.rows) <= run.options.iterations:
        run.repeat()
    return run.policy


ALGORITHM = Algorithm("epirc-pgs", epirc_pgs, settings=EpiRCPGS)
