"""The recovery step, for a policy whose linearised constraints cannot be met."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast._support.roots import increasing_root
from holdfast.tabular.steps.improve import KL_ACCURACY, MAX_STEPS, STRONGEST_TILT, along
from holdfast.tabular.steps.project import several_multipliers
from holdfast.tabular.steps.tilted_policy import PolicyUpdate, TiltedPolicies


@compiled
def recover(tilts: TiltedPolicies, delta: Float[Array, ""]) -> PolicyUpdate:
    """Return the policy in the trust region that maximises the smallest violated margin.

    max over π of min over violated i of the linearised margin, subject to E_{d^r}[KL(π‖π_k)] ≤ δ. The
    solution tilts along the violated constraints alone. Let η be the sum of its multipliers. For each η
    the best multipliers solve a concave problem, and the KL grows with η. The paper has no such step;
    its projection (16) has no solution here.

    Arguments:
        tilts: the family π_c around π_k.
        delta: trust region δ.
    """
    if len(tilts.needed) == 1:
        c = along(tilts, jnp.array([0.0, 1.0]), delta)
        return PolicyUpdate(tilts.policy(c), c, tilts.moments(c).mean[1] >= tilts.needed[0])
    needed = jnp.where(tilts.needed > 0, tilts.needed, -jnp.inf)
    zero = jnp.zeros(len(tilts.features))

    def kl_and_slope(eta: Array) -> tuple[Array, Array, Array]:
        nu = several_multipliers(tilts, zero, needed, eta)[0]
        c = zero.at[1:].set(nu)
        moments = tilts.moments(c)
        # The smallest violated margins rise together, by dt, and dKL = η·dt.
        used = nu > 0
        inner = jnp.where(
            used[:, None] & used[None, :], moments.covariance[1:, 1:], jnp.eye(len(nu))
        )
        inverse = jnp.linalg.lstsq(inner, jnp.where(used, 1.0, 0.0))[0]
        rise = 1 / jnp.where(inverse.sum() > 0, inverse.sum(), jnp.inf)
        return moments.kl, eta * rise, c

    worst = jnp.argmax(tilts.needed)
    sizes = jax.vmap(tilts.span)(tilts.features[1:])
    size = jnp.where(tilts.needed > 0, sizes, 0.0).max()
    variance = tilts.curvature[1:, 1:][worst, worst]
    variance = jnp.maximum(variance, jnp.finfo(delta.dtype).tiny)
    guess = jnp.where(size > 0, jnp.sqrt(2 * delta / variance), 0.0)
    limit = STRONGEST_TILT / jnp.where(size > 0, size, 1.0) if tilts.step == "exact" else jnp.inf
    c = increasing_root(
        kl_and_slope,
        delta,
        guess,
        quadratic=True,
        absolute=KL_ACCURACY * delta,
        limit=limit,
        max_steps=MAX_STEPS,
    ).aux
    return PolicyUpdate(tilts.policy(c), c, jnp.all(tilts.moments(c).mean[1:] >= needed))
