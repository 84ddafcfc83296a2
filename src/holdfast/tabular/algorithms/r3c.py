"""R3C: robust return, robust constraint (Mankowitz et al. 2020, arXiv 2010.10644), its tabular form."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._gradient import kept_alive, margins
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._settings import check_number
from holdfast.tabular.evaluation.values import Outlook
from holdfast.tabular.steps.tilted_policy import Step, Tilts
from holdfast.tabular.steps.updates import improve


@dataclasses.dataclass(frozen=True)
class R3C:
    """Settings of `r3c`; values are in units of their range (`Run.units`).

    Arguments:
        dual_step: of the multipliers' step. Ours.
        first_multiplier: of every constraint at the start. Ours.
    """

    dual_step: float = 0.1
    first_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_number("dual_step", self.dual_step, above=True)
        check_number("first_multiplier", self.first_multiplier)


def r3c(run: Run) -> Float[Array, "S A"]:
    """Maximises robust reward critic plus multipliers times robust constraint critics, state by state.

    The paper trains two critics by robust Bellman operators over a few simulators, adds them with
    the multiplier and improves the policy by MPO (or D4PG). MPO's first step is π ∝ π_k·exp(Q/η)
    with the temperature η that keeps E[KL(π‖π_k)] within a bound. Here the critics are exact, in
    their own worst cases over the whole set, states are weighted by the occupancy under the
    reward's, and the bound is `trust_region`. Then, along the paper's gradient, λ_i ← max(0, λ_i −
    dual_step·(V_i − d_i)). Several multipliers are ours.

    What the paper proves: that the robust operators contract, which makes its evaluation sound, and
    what the multiplier's gradient is. That policies or multipliers converge it does not say.

    What is known to be wrong: critics under different kernels are added state by state, whatever
    the occupancies under those kernels are, so the step is no gradient of any one function; the
    multipliers circle the solution, and so do the policies.
    """
    s = run.settings(R3C)
    multipliers = np.full(len(run.thresholds), s.first_multiplier)
    delta = jnp.asarray(run.options.trust_region)
    for _ in range(run.options.iterations):
        weights = jnp.asarray(run.units * np.r_[1.0, multipliers])
        moved = _improved(
            run.policy, run.worst, weights, run.table.discount, delta, run.options.step
        )
        run.record(moved, trust_region=run.options.trust_region)
        multipliers = np.maximum(multipliers - s.dual_step * margins(run, run.worst), 0.0)
    return run.policy


@eqx.filter_jit
def _improved(
    policy: Float[Array, "S A"],
    outlook: Outlook,
    weights: Float[Array, " n"],
    discount: Float[Array, ""],
    delta: Float[Array, ""],
    step: Step,
) -> Float[Array, "S A"]:
    """The best policy within δ for the weighted sum of the advantages."""
    alone = jax.tree.map(lambda leaf: leaf[:1], outlook)
    penalised = jnp.einsum("n,nsa->sa", weights, outlook.advantages)
    alone = eqx.tree_at(lambda o: o.advantages, alone, penalised[None])
    tilts = Tilts.at(policy, alone, jnp.zeros(0), discount, step)
    return kept_alive(tilts.policy(improve(tilts, delta)), policy)


ALGORITHM = Algorithm("r3c", r3c, settings=R3C, accepts=("trust_region", "step"))
