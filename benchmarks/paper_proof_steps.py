"""How often the steps of the paper's proofs fail on random models, and the bounds that replace them.

    python benchmarks/paper_proof_steps.py [--models 100]

From a random policy on each random model, the paper's plain update is applied a few times. For every
step from π_k to π_{k+1} it checks: (37), the Lipschitz constant per state,
|A^{π_k}(s, a) − A^{π_{k+1}}(s, a)| ≤ L·‖π_{k+1}(s) − π_k(s)‖₁; (32), E[KL(π_{k+1}‖π_k)] ≤ δ from a
feasible π_k; (43) without its term in M', E[KL(π_{k+1}‖π_k)] ≤ δ + b²α_KL from an infeasible one; and
Lemma 4.1 and the two corrected bounds of `docs/explanation/theory.md`.
"""

from __future__ import annotations

import argparse
import collections

import jax
import jax.numpy as jnp
import numpy as np

import holdfast as hf
from holdfast.model.table import layout_of
from holdfast.tabular.certificates.step_bounds import step_bounds
from holdfast.tabular.evaluation.worst_case import Dual, values_under, worst_case, worst_kernels
from holdfast.tabular.steps.improve import improve
from holdfast.tabular.steps.project import project
from holdfast.tabular.steps.tilted_policy import TiltedPolicies

DELTA = 0.01
STEPS = 4


def random_model(rng: np.random.Generator) -> hf.RobustCMDP:
    states, actions = 4, 3
    model = hf.RobustCMDP(
        transitions=rng.dirichlet(np.full(states, 0.5), (states, actions)),
        reward=rng.random((states, actions)),
        initial=rng.dirichlet(np.ones(states)),
        discount=rng.choice([0.5, 0.8, 0.95]),
        uncertainty=hf.KL(rng.choice([0.01, 0.1, 0.5])),
    )
    signal = rng.random((states, actions))
    policy = rng.dirichlet(np.ones(actions), states)
    worst = hf.evaluate(model.replace(reward=signal), policy).reward.worst
    return model.replace(constraints=[hf.at_least(signal, worst)])


def check_step(model: hf.RobustCMDP, table, before, after, old, new, tally) -> None:
    gamma = model.discount

    def count(name: str, holds: bool) -> None:
        tally[name][0 if holds else 1] += 1

    bounds = step_bounds(table, before, after, old, new, DELTA, model.states)
    error = float(old.error.max() + new.error.max())
    change = bounds["reward_change"]
    count("Lemma 4.1", change >= bounds["lemma_bound"] - error)
    count("corrected reward bound", change >= bounds["reward_bound"] - error)
    if bounds["linearised_margins"][0] >= 0:
        margin = float(new.value[1] - table.thresholds[0])
        count("corrected constraint bound", margin >= bounds["margin_bounds"][0] - error)

    crossed = values_under(table, before, worst_kernels(table, new), new)
    moved = jnp.abs(crossed.advantages[0] - new.advantages[0]).max(-1)[: model.states]
    distance = jnp.abs(after - before).sum(-1)[: model.states]
    lipschitz = np.sqrt(model.actions) / (1 - gamma) ** 2
    count(
        "(37): Lipschitz constant per state", bool(jnp.all(moved <= lipschitz * distance + error))
    )

    d = np.asarray(old.occupancy[0])
    ratio = np.log(np.maximum(after, 1e-300) / np.maximum(before, 1e-300))
    kl = float(d @ np.where(np.asarray(after) > 0, after * ratio, 0.0).sum(-1))
    tilts = TiltedPolicies.at(before, old, table.thresholds, table.step_share, "exact")
    violation = float(tilts.needed[0])
    if violation <= 0:
        count("(32): E[KL] ≤ δ from a feasible policy", kl <= DELTA * (1 + 1e-9))
    else:
        stretch = violation**2 / (2 * float(tilts.curvature[1, 1]))
        bound = DELTA + stretch
        count("(43) without M': E[KL] ≤ δ + b²α_KL", kl <= bound * (1 + 1e-9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=100)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    tally: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for _ in range(arguments.models):
        model = random_model(rng)
        with jax.enable_x64(True):
            layout = layout_of(model)
            table = layout.table
            policy = layout.pad_policy(rng.dirichlet(np.ones(model.actions), model.states))
            worst = worst_case(table, policy, Dual())
            for _ in range(STEPS):
                tilts = TiltedPolicies.at(
                    policy, worst, table.thresholds, table.step_share, "exact"
                )
                moved, _, met = project(tilts, improve(tilts, jnp.asarray(DELTA)))
                if not met:
                    break
                seen = worst_case(table, moved, Dual(), worst)
                check_step(model, table, policy, moved, worst, seen, tally)
                policy, worst = moved, seen
    for name, (held, failed) in sorted(tally.items()):
        print(f"{name:40} failed {failed:4} of {held + failed}")


if __name__ == "__main__":
    main()
