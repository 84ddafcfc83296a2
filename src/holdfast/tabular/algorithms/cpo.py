"""CPO: constrained policy optimisation (Achiam, Held, Tamar, Abbeel, 2017), under the nominal kernel.

Improvement and constraints are one problem inside the trust region. Where the two do not meet (its
infeasible case), the step only restores the constraints.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._trust_region import trust_region_loop
from holdfast.tabular.steps import Tilts, improve, improve_within, recover


def cpo(run: Run) -> Float[Array, "S A"]:
    """Constrained policy improvement inside a trust region, under the nominal kernel."""
    return trust_region_loop(run, improve_or_recover, robust=False)


def improve_or_recover(
    tilts: Tilts, delta: Float[Array, ""]
) -> tuple[Float[Array, "S A"], Bool[Array, ""]]:
    """The paper's equation (8), or a recovery step where that has no solution."""
    if len(tilts.needed) == 0:
        return tilts.policy(improve(tilts, delta)), jnp.array(False)
    update = improve_within(tilts, delta)
    policy = lax.cond(
        update.met, lambda: update.policy, lambda: tilts.policy(recover(tilts, delta))
    )
    return policy, ~update.met
