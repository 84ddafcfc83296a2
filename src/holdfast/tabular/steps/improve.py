"""The policy improvement (13), and CPO's problem (8): improvement and constraints at once."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast._support.roots import increasing_root
from holdfast.tabular.steps.project import CONSTRAINT_TOLERANCE, projection_multipliers
from holdfast.tabular.steps.tilted_policy import PolicyUpdate, TiltedPolicies

# Largest coefficient, in units of one over the span of the feature's mean. If δ is large enough for the
# greedy policy, no finite tilt attains it; this coefficient agrees with the limit to seven digits.
STRONGEST_TILT = 1e7
# Relative accuracy of the KL at the end of `improve_within` and `recover`: above the rounding of a
# sum over states, and small enough not to show in the policy.
KL_ACCURACY = 1e-11
# Newton steps for one coefficient with multipliers inside. Safeguarded Newton takes fewer than 20;
# 60 leave room for bisection.
MAX_STEPS = 60


@compiled
def improve(tilts: TiltedPolicies, delta: Float[Array, ""]) -> Float[Array, " n"]:
    """Return the coefficients of π_{k+½}, the policy improvement of equation (13).

    max over π of E_{d^r, π}[A^r] subject to E_{d^r}[KL(π‖π_k)] ≤ δ. The solution is π ∝ π_k·exp(A^r/τ)
    with one temperature τ = 1/c_0 for all states, found by one-dimensional root finding. The policy
    itself is `tilts.policy(c)`. The coefficients c are not the paper's c, which is the utility.

    Arguments:
        tilts: the family π_c around π_k.
        delta: trust region δ.
    """
    return along(tilts, jnp.zeros(len(tilts.features)).at[0].set(1.0), delta)


def along(
    tilts: TiltedPolicies, direction: Float[Array, " n"], delta: Float[Array, ""]
) -> Float[Array, " n"]:
    """Return the multiple of a direction in c at which E_{d^r}[KL(π‖π_k)] = δ."""
    size = tilts.span(tilts.shift(direction))
    direction = direction / jnp.where(size > 0, size, 1.0)

    def kl_and_slope(x: Array) -> tuple[Array, Array, None]:
        moments = tilts.moments(x * direction)
        return moments.kl, x * (direction @ moments.covariance @ direction), None

    variance = direction @ tilts.curvature @ direction
    start = jnp.sqrt(2 * delta / jnp.maximum(variance, jnp.finfo(delta.dtype).tiny))
    start = jnp.where(size > 0, start, 0.0)
    limit = STRONGEST_TILT if tilts.step == "exact" else jnp.inf
    x = increasing_root(kl_and_slope, delta, start, quadratic=True, limit=limit).x
    return x * direction


@compiled
def improve_within(
    tilts: TiltedPolicies, delta: Float[Array, ""], accuracy: float = KL_ACCURACY
) -> PolicyUpdate:
    """Return CPO's update, equation (8): improvement and constraints in one problem.

    For each weight c_0 of the reward, the solution without the trust region is a projection. Its KL
    grows with c_0, so c_0 is found by root finding, as in `improve`. If the solution at c_0 = 0 is
    already further than δ from π_k, no policy in the trust region meets the constraints.

    Arguments:
        tilts: the family π_c around π_k.
        delta: trust region δ.
        accuracy: relative accuracy of the KL.
    """
    zero = jnp.zeros(len(tilts.features))
    if len(tilts.needed) == 0:
        c = improve(tilts, delta)
        return PolicyUpdate(tilts.policy(c), c, jnp.array(True))
    start, met = projection_multipliers(tilts, zero)
    nearest = zero.at[1:].set(start)
    met = met & (tilts.moments(nearest).kl <= delta * (1 + CONSTRAINT_TOLERANCE))

    def kl_and_slope(weight: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        c = zero.at[0].set(weight)
        multipliers, kept_within = projection_multipliers(tilts, c)
        c = c.at[1:].set(multipliers)
        moments = tilts.moments(c)
        # Along this path the active constraints stay met, which leaves dKL = c_0·dE[A^r].
        active = c[1:] > 0
        cross = jnp.where(active, moments.covariance[0, 1:], 0.0)
        inner = jnp.where(
            active[:, None] & active[None, :], moments.covariance[1:, 1:], jnp.eye(len(active))
        )
        kept = jnp.linalg.lstsq(inner, cross)[0]
        slope = weight * jnp.maximum(moments.covariance[0, 0] - cross @ kept, 0.0)
        return moments.kl, slope, (c, kept_within)

    size = tilts.span(tilts.features[0])
    variance = jnp.maximum(tilts.moments(nearest).covariance[0, 0], jnp.finfo(delta.dtype).tiny)
    guess = jnp.where(met & (size > 0), jnp.sqrt(2 * delta / variance), 0.0)
    root = increasing_root(
        kl_and_slope,
        delta,
        guess,
        quadratic=True,
        absolute=accuracy * delta,
        limit=STRONGEST_TILT / jnp.where(size > 0, size, 1.0),
        max_steps=MAX_STEPS,
    )
    c, kept_within = root.aux
    c = jnp.where(guess > 0, c, nearest)
    return PolicyUpdate(tilts.policy(c), c, met & (kept_within | (guess <= 0)))
