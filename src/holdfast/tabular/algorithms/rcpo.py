"""RCPO: robust constrained policy optimisation (Sun, He, Miao, Zou, ICML 2024), Algorithm 1.

Each iteration improves the policy against the reward's worst-case kernel inside a trust region, then
projects it onto the constraints, each under its own worst-case kernel.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.algorithms._trust_region import trust_region_loop
from holdfast.tabular.steps import Tilts, improve, project, recover


def rcpo(run: Run) -> Float[Array, "S A"]:
    """Robust policy improvement, then projection, under worst-case kernels."""
    return trust_region_loop(run, improve_then_project, robust=True)


def improve_then_project(
    tilts: Tilts, delta: Float[Array, ""]
) -> tuple[Float[Array, "S A"], Bool[Array, ""]]:
    """Equations (13) and (16), or (26) where the tilts are Taylor's.

    Where no policy meets the linearised constraints, a recovery step: the smallest violated margin
    is raised as far as the trust region allows.
    """
    improved = improve(tilts, delta)
    projected = project(tilts, improved)
    if len(tilts.needed) == 0:
        return projected.policy, jnp.array(False)
    policy = lax.cond(
        projected.met, lambda: projected.policy, lambda: tilts.policy(recover(tilts, delta))
    )
    return policy, ~projected.met
