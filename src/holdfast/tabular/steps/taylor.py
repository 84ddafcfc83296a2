"""The paper's practical update (26), from Taylor expansions of (13) and (16)."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.tabular.steps.improve import improve
from holdfast.tabular.steps.project import are_met, project
from holdfast.tabular.steps.tilted_policy import PolicyUpdate, TiltedPolicies


@compiled
def taylor_update(tilts: TiltedPolicies, delta: Float[Array, ""]) -> PolicyUpdate:
    """Return π_{k+1} by the closed form (26), which solves (23) and then (25).

    With one constraint, whose linearisation is hᵀ(θ − θ_k) ≥ b, b = d − V_c,

        θ_{k+1} = θ_k + ℓ·H⁻¹g + max((b − ℓ·hᵀH⁻¹g)/(hᵀH⁻¹h), 0)·H⁻¹h,   ℓ = √(2δ/(gᵀH⁻¹g)).

    The paper's signs are those of a cost. Several constraints have no closed form: (25) is then a
    quadratic program in their multipliers.

    Arguments:
        tilts: the family π_c around π_k with second-order moments (`step="taylor"`).
        delta: trust region δ.
    """
    if len(tilts.needed) != 1:
        return project(tilts, improve(tilts, delta))
    (g_g, h_g), (_, h_h) = tilts.curvature
    b = tilts.needed[0]
    length = jnp.sqrt(_ratio(2 * delta, g_g))
    multiplier = jnp.maximum(_ratio(b - length * h_g, h_h), 0.0)
    c = jnp.stack([length, multiplier])
    return PolicyUpdate(tilts.policy(c), c, are_met(tilts, tilts.moments(c).mean[1:]))


def _ratio(numerator: Array, curvature: Array) -> Array:
    """Return the quotient, or zero if the curvature is zero: no tilt moves that signal."""
    return jnp.where(curvature > 0, numerator / jnp.where(curvature > 0, curvature, 1.0), 0.0)
