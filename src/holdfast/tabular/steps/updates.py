"""The steps of a policy update: improve, project, both at once, recover; exact and by Taylor expansion.

Each is a search for the few coefficients of a tilt of the current policy (`tilted_policy`): the
improvement moves the reward's until E_{d^r}[KL(π‖π_k)] is δ, the projection moves the constraints' until
the linearised constraints hold.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from holdfast._support.roots import increasing_root
from holdfast.tabular.steps.multipliers import MET, multipliers_of, several_multipliers
from holdfast.tabular.steps.tilted_policy import Tilts, span

# Tilts stop at this many times one over the span of the feature's mean: where δ lets the policy
# condition on the maximisers there is no finite tilt, and this one is that limit to the seventh digit.
_STRONGEST_TILT = 1e7


class Update(NamedTuple):
    """A policy, its coefficients, and whether it meets the linearised constraints."""

    policy: Float[Array, "S A"]
    coefficients: Float[Array, " n"]
    met: Bool[Array, ""]


def improve(tilts: Tilts, delta: Float[Array, ""]) -> Float[Array, " n"]:
    """Equation (13): max E_{d^r, π}[A^r] subject to E_{d^r}[KL(π‖π_k)] ≤ δ; returns c.

    The solution is π ∝ π_k·exp(A^r/τ) with one τ for all states.
    """
    return _along(tilts, jnp.zeros(len(tilts.features)).at[0].set(1.0), delta)


def project(tilts: Tilts, c: Float[Array, " n"]) -> Update:
    """Equation (16): min E_{d^r}[KL(π‖π_c)] subject to the linearised constraints.

    The constraint is V_i + E_{d^i, π}[A^i]/(1−γ) ≥ d_i: the paper's (16) drops the factor 1/(1−γ),
    which its own (8) has.
    """
    multipliers, met = multipliers_of(tilts, c, tilts.needed)
    c = c.at[1:].add(multipliers)
    return Update(tilts.policy(c), c, met)


def improve_within(tilts: Tilts, delta: Float[Array, ""], accuracy: float = 1e-11) -> Update:
    """Equation (8), CPO's update: improvement and constraints in one problem.

    For each weight η on the reward the best policy under the constraints alone is a projection; its
    KL grows with η, so η is found as in the improvement, to a KL within `accuracy` of δ, relative.
    Where even η = 0 is too far from π_k, constraints and trust region do not meet.
    """
    if len(tilts.needed) == 0:
        c = improve(tilts, delta)
        return Update(tilts.policy(c), c, jnp.array(True))
    start, met = multipliers_of(tilts, jnp.zeros(len(tilts.features)), tilts.needed)
    nearest = jnp.zeros(len(tilts.features)).at[1:].set(start)
    met = met & (tilts.moments(nearest).kl <= delta * (1 + MET))

    def kl_and_slope(eta: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        c = jnp.zeros(len(tilts.features)).at[0].set(eta)
        multipliers, kept_within = multipliers_of(tilts, c, tilts.needed)
        c = c.at[1:].set(multipliers)
        moments = tilts.moments(c)
        # Along the path the active constraints stay met, which leaves dKL = η·dE[A^r].
        active = c[1:] > 0
        cross = jnp.where(active, moments.covariance[0, 1:], 0.0)
        inner = jnp.where(
            active[:, None] & active[None, :], moments.covariance[1:, 1:], jnp.eye(len(active))
        )
        kept = jnp.linalg.lstsq(inner, cross)[0]
        slope = eta * jnp.maximum(moments.covariance[0, 0] - cross @ kept, 0.0)
        return moments.kl, slope, (c, kept_within)

    size = span(tilts, tilts.features[0])
    variance = jnp.maximum(tilts.moments(nearest).covariance[0, 0], jnp.finfo(delta.dtype).tiny)
    guess = jnp.where(met & (size > 0), jnp.sqrt(2 * delta / variance), 0.0)
    root = increasing_root(
        kl_and_slope,
        delta,
        guess,
        quadratic=True,
        absolute=accuracy * delta,
        limit=_STRONGEST_TILT / jnp.where(size > 0, size, 1.0),
        max_steps=60,
    )
    c, kept_within = root.aux
    c = jnp.where(guess > 0, c, nearest)
    return Update(tilts.policy(c), c, met & (kept_within | (guess <= 0)))


def recover(tilts: Tilts, delta: Float[Array, ""]) -> Update:
    """Maximise the smallest violated linearised margin subject to E_{d^r}[KL(π‖π_k)] ≤ δ.

    The solution tilts along the violated constraints alone, Σν = η; for each η the best division of it
    is a concave problem, and the KL grows with η.
    """
    if len(tilts.needed) == 1:
        c = _along(tilts, jnp.array([0.0, 1.0]), delta)
        return Update(tilts.policy(c), c, tilts.moments(c).mean[1] >= tilts.needed[0])
    needed = jnp.where(tilts.needed > 0, tilts.needed, -jnp.inf)

    def kl_and_slope(eta: Array) -> tuple[Array, Array, Array]:
        nu = several_multipliers(tilts, jnp.zeros(len(tilts.features)), needed, eta)[0]
        c = jnp.zeros(len(tilts.features)).at[1:].set(nu)
        moments = tilts.moments(c)
        # The margins of the violated constraints that count rise together, by dt; dKL = η·dt.
        used = nu > 0
        inner = jnp.where(
            used[:, None] & used[None, :], moments.covariance[1:, 1:], jnp.eye(len(nu))
        )
        inverse = jnp.linalg.lstsq(inner, jnp.where(used, 1.0, 0.0))[0]
        rise = 1 / jnp.where(inverse.sum() > 0, inverse.sum(), jnp.inf)
        return moments.kl, eta * rise, c

    worst = jnp.argmax(tilts.needed)
    tiny = jnp.finfo(delta.dtype).tiny
    sizes = jax.vmap(lambda feature: span(tilts, feature))(tilts.features[1:])
    size = jnp.where(tilts.needed > 0, sizes, 0.0).max()
    variance = jnp.maximum(tilts.curvature[1:, 1:][worst, worst], tiny)
    guess = jnp.where(size > 0, jnp.sqrt(2 * delta / variance), 0.0)
    limit = _STRONGEST_TILT / jnp.where(size > 0, size, 1.0) if tilts.step == "exact" else jnp.inf
    root = increasing_root(
        kl_and_slope,
        delta,
        guess,
        quadratic=True,
        absolute=1e-11 * delta,
        limit=limit,
        max_steps=60,
    )
    met = jnp.all(tilts.moments(root.aux).mean[1:] >= needed)
    return Update(tilts.policy(root.aux), root.aux, met)


def _along(tilts: Tilts, direction: Float[Array, " n"], delta: Float[Array, ""]) -> Array:
    """The multiple of a direction at which E_{d^r}[KL(π‖π_k)] is δ."""
    size = span(tilts, jnp.einsum("n,nsa->sa", direction, tilts.features))
    direction = direction / jnp.where(size > 0, size, 1.0)

    def kl_and_slope(x: Array) -> tuple[Array, Array, None]:
        moments = tilts.moments(x * direction)
        return moments.kl, x * (direction @ moments.covariance @ direction), None

    variance = direction @ tilts.curvature @ direction
    start = jnp.sqrt(2 * delta / jnp.maximum(variance, jnp.finfo(delta.dtype).tiny))
    start = jnp.where(size > 0, start, 0.0)
    limit = _STRONGEST_TILT if tilts.step == "exact" else jnp.inf
    x = increasing_root(kl_and_slope, delta, start, quadratic=True, limit=limit).x
    return x * direction
