"""R3C: robust return, robust constraint (Mankowitz et al. 2020, arXiv 2010.10644), its tabular form."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from holdfast._support.arguments import check_number
from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.run import Run
from holdfast.tabular.steps.gradient import scaled_margins
from holdfast.tabular.steps.improve import improve
from holdfast.tabular.steps.tilted_policy import TiltedPolicies


@dataclasses.dataclass(frozen=True)
class R3C:
    """Settings of `r3c`. Values are in units of their range (`Run.units`), and all numbers are ours.

    Arguments:
        dual_step: step size of the multipliers.
        first_multiplier: initial multiplier of every constraint.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import R3C
        >>> settings = R3C(first_multiplier=0.0)
        >>> len(hf.solve("gambler", "r3c", iterations=5, settings=settings).history["reward"])
        6
    """

    dual_step: float = 0.1
    first_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_number("dual_step", self.dual_step, above=True)
        check_number("first_multiplier", self.first_multiplier)


def r3c(run: Run) -> None:
    """Maximise the robust reward critic plus multipliers times robust constraint critics.

    The paper trains two critics by robust Bellman operators over a few simulators, adds them with the
    multiplier, and improves the policy by MPO (or D4PG). The first step of MPO is π ∝ π_k·exp(Q/η), with
    the temperature η that keeps E[KL(π‖π_k)] within a bound. Here the critics are exact, in their own
    worst cases over the whole set; states are weighted by the occupancy under the reward's worst case;
    and the bound is `trust_region`. The multipliers follow the paper's gradient,
    λ_i ← max(0, λ_i − dual_step·(V_i − d_i)). Several multipliers are ours.

    The paper proves that the robust operators contract, which makes its evaluation sound, and derives
    the gradient of the multiplier. It does not claim that policies or multipliers converge.

    Known limits. Critics under different kernels are added state by state, whatever the occupancies
    under those kernels are, so that the step is the gradient of no single function. The multipliers
    circle the solution, and so do the policies.
    """
    s = run.settings(R3C)
    multipliers = np.full(len(run.thresholds), s.first_multiplier)
    delta = jnp.asarray(run.options.trust_region)
    for _ in range(run.options.iterations):
        critic = _penalised(run.worst, jnp.asarray(run.units * np.r_[1.0, multipliers]))
        tilts = TiltedPolicies.at(
            run.policy, critic, jnp.zeros(0), run.table.step_share, run.options.step
        )
        improved = tilts.policy(improve(tilts, delta))
        run.record(improved, trust_region=run.options.trust_region)
        margins = scaled_margins(run, run.worst)
        multipliers = np.maximum(multipliers - s.dual_step * margins, 0.0)


def _penalised(values: PolicyValues, weights: jax.Array) -> PolicyValues:
    """Return the reward's values with the weighted sum of all advantages in place of its own."""
    alone = jax.tree.map(lambda leaf: leaf[:1], values)
    critic = jnp.einsum("n,nsa->sa", weights, values.advantages)
    return eqx.tree_at(lambda v: v.advantages, alone, critic[None])


ALGORITHM = Algorithm("r3c", r3c, settings=R3C, accepts=("trust_region", "step"))
