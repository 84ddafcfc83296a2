"""The steps of a policy update: improve, project, both at once, recover; exact and by Taylor expansion.

All of them live in one family of policies, tilts of the current one,

    π_c(a|s) ∝ π_k(a|s)·exp(Σ_j c_j Φ_j(s, a)),   Φ_0 = A^r,   Φ_i = (d^i/d^r)·A^i/(1−γ),

because every one of these problems is linear in π but for a KL term weighted by d^r. A step is then a
search for a handful of numbers c: the improvement moves c_0 until E_{d^r}[KL(π‖π_k)] is δ, the
projection moves c_1 … c_m until the linearised constraints hold. What differs between exact and Taylor
is only how the means of Φ and the KL depend on c: exactly, or to second order at c = 0. For a softmax
table H⁻¹g is the advantage itself, so the Taylor step is the paper's update with no matrix formed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from holdfast._roots import increasing_root
from holdfast.tabular.values import Outlook

Step = Literal["exact", "taylor"]

# Where the reward's worst case never goes, the constraint's tilt is divided by this instead.
_SMALLEST_OCCUPANCY = 1e-10
# Linearised constraints count as met within this share of their scale.
_MET = 1e-9
# Tilts stop at this many times the span of the feature: where δ lets the policy condition on the
# maximisers there is no finite tilt, and this one is that limit to the ninth digit.
_STRONGEST_TILT = 1e9


class Moments(NamedTuple):
    """Of the features under π_c: E_{d^r}[E_π Φ], its derivative in c, and E_{d^r}[KL(π_c‖π_k)]."""

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"]
    kl: Float[Array, ""]


class Tilts(eqx.Module):
    """The family of tilts of a policy along its advantages.

    Attributes:
        log_policy: log π_k.
        features: Φ, the reward's advantage first.
        weights: d^r.
        needed: how much E_{d^r}[E_π Φ_i] has to be for each linearised constraint to hold.
        curvature: the features' covariance under π_k, which is H in these coordinates.
        step: whether moments are exact or of second order.
    """

    log_policy: Float[Array, "S A"]
    features: Float[Array, "n S A"]
    weights: Float[Array, " S"]
    needed: Float[Array, " m"]
    curvature: Float[Array, "n n"]
    step: Step = eqx.field(static=True)

    @classmethod
    def at(
        cls,
        policy: Float[Array, "S A"],
        outlook: Outlook,
        thresholds: Float[Array, " m"],
        discount: Float[Array, ""],
        step: Step,
    ) -> Tilts:
        """The tilts of a policy, linearised at its own outlook."""
        # The floor goes into the weights too, so that Σ d^r·Φ_i stays Σ d^i·A^i/(1−γ).
        reached = outlook.occupancy.max(0) > 0
        weights = jnp.where(reached, jnp.maximum(outlook.occupancy[0], _SMALLEST_OCCUPANCY), 0.0)
        ratio = outlook.occupancy[1:] / jnp.where(reached, weights, 1.0)
        constraint = ratio[..., None] * outlook.advantages[1:] / (1 - discount)
        # E_π A is zero under the policy itself; taking out what rounding leaves keeps c = 0 neutral.
        features = jnp.concatenate([outlook.advantages[:1], constraint])
        features = features - (policy * features).sum(-1, keepdims=True)
        return cls(
            log_policy=jnp.log(policy),
            features=features,
            weights=weights,
            needed=thresholds - outlook.value[1:],
            curvature=_covariance(weights, policy, features),
            step=step,
        )

    def policy(self, c: Float[Array, " n"]) -> Float[Array, "S A"]:
        """π_c."""
        logits = self._logits(c)
        weight = jnp.exp(logits - logits.max(-1, keepdims=True))
        return weight / weight.sum(-1, keepdims=True)

    def moments(self, c: Float[Array, " n"]) -> Moments:
        """Means of the features, their covariance and the KL at c."""
        if self.step == "taylor":
            return Moments(self.curvature @ c, self.curvature, 0.5 * c @ self.curvature @ c)
        policy = self.policy(c)
        mean = jnp.einsum("s,sa,nsa->n", self.weights, policy, self.features)
        log_ratio = jnp.where(policy > 0, jnp.log(jnp.where(policy > 0, policy, 1.0)), 0.0)
        log_ratio = jnp.where(policy > 0, log_ratio - self.log_policy, 0.0)
        kl = jnp.maximum(self.weights @ (policy * log_ratio).sum(-1), 0.0)
        return Moments(mean, _covariance(self.weights, policy, self.features), kl)

    def potential(self, c: Float[Array, " n"]) -> Float[Array, ""]:
        """The function of c whose gradient is the mean of the features."""
        if self.step == "taylor":
            return self.moments(c).kl
        logits = self._logits(c)
        top = logits.max(-1)
        return self.weights @ (top + jnp.log(jnp.exp(logits - top[:, None]).sum(-1)))

    def _logits(self, c: Array) -> Array:
        # A zero of the policy stays a zero whatever the feature is there.
        shift = jnp.einsum("n,nsa->sa", c, self.features)
        return jnp.where(jnp.isneginf(self.log_policy), -jnp.inf, self.log_policy + shift)


def _covariance(
    weights: Float[Array, " S"], policy: Float[Array, "S A"], features: Float[Array, "n S A"]
) -> Float[Array, "n n"]:
    """Of the features under the policy in each state, weighted over states."""
    centred = features - (policy * features).sum(-1, keepdims=True)
    return jnp.einsum("s,sa,nsa,jsa->nj", weights, policy, centred, centred)


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
    multipliers, met = _multipliers(tilts, c, tilts.needed)
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
    start, met = _multipliers(tilts, jnp.zeros(len(tilts.features)), tilts.needed)
    nearest = jnp.zeros(len(tilts.features)).at[1:].set(start)
    met = met & (tilts.moments(nearest).kl <= delta * (1 + _MET))

    def coefficients(eta: Array) -> Array:
        c = nearest.at[0].set(eta)
        multipliers, _ = _multipliers(tilts, c.at[1:].set(0.0), tilts.needed)
        return c.at[1:].set(multipliers)

    def kl_and_slope(eta: Array) -> tuple[Array, Array, Array]:
        c = coefficients(eta)
        moments = tilts.moments(c)
        # Along the path the active constraints stay met, which leaves dKL = η·dE[A^r].
        active = c[1:] > 0
        cross = jnp.where(active, moments.covariance[0, 1:], 0.0)
        inner = jnp.where(
            active[:, None] & active[None, :], moments.covariance[1:, 1:], jnp.eye(len(active))
        )
        kept = jnp.linalg.lstsq(inner, cross)[0]
        slope = eta * jnp.maximum(moments.covariance[0, 0] - cross @ kept, 0.0)
        return moments.kl, slope, c

    size = _span(tilts, tilts.features[0])
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
    c = jnp.where(guess > 0, root.aux, nearest)
    return Update(tilts.policy(c), c, met)


def recover(tilts: Tilts, delta: Float[Array, ""]) -> Update:
    """Maximise the smallest violated linearised margin subject to E_{d^r}[KL(π‖π_k)] ≤ δ.

    With t the share of the violation that is made good, the nearest policy that makes good t is a
    projection of π_k, and its KL grows with t.
    """
    violated = tilts.needed > 0
    if len(violated) == 1:
        c = _along(tilts, jnp.array([0.0, 1.0]), delta)
        return Update(tilts.policy(c), c, tilts.moments(c).mean[1] >= tilts.needed[0])
    worst = jnp.max(tilts.needed)

    def coefficients(lift: Array) -> Array:
        # Every violated margin is to be at least −worst + lift.
        needed = jnp.where(violated, tilts.needed - worst + lift, -jnp.inf)
        multipliers, _ = _multipliers(tilts, jnp.zeros(len(tilts.features)), needed)
        return jnp.zeros(len(tilts.features)).at[1:].set(multipliers)

    def kl_and_slope(lift: Array) -> tuple[Array, Array, Array]:
        c = coefficients(lift)
        # The projection's optimal value changes with what is asked by its multipliers.
        return tilts.moments(c).kl, c[1:].sum(), c

    root = increasing_root(
        kl_and_slope,
        delta,
        jnp.maximum(worst, 0.0) / 16,
        quadratic=True,
        absolute=1e-9 * delta,
        limit=worst,
        max_steps=60,
    )
    return Update(tilts.policy(root.aux), root.aux, root.x >= worst)


def _along(tilts: Tilts, direction: Float[Array, " n"], delta: Float[Array, ""]) -> Array:
    """The multiple of a direction at which E_{d^r}[KL(π‖π_k)] is δ."""
    size = _span(tilts, jnp.einsum("n,nsa->sa", direction, tilts.features))
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


def _span(tilts: Tilts, feature: Float[Array, "S A"]) -> Float[Array, ""]:
    """The largest difference that a feature makes in a state that counts."""
    supported = ~jnp.isneginf(tilts.log_policy)
    high = jnp.where(supported, feature, -jnp.inf).max(-1)
    low = jnp.where(supported, feature, jnp.inf).min(-1)
    return jnp.where(tilts.weights > 0, high - low, 0.0).max()


def _multipliers(
    tilts: Tilts, c: Float[Array, " n"], needed: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """ν ≥ 0 of the projection of π_c, by its concave dual; and whether the constraints are then met."""
    count = len(needed)
    if count == 0:
        return jnp.zeros(0), jnp.array(True)
    solver = _one_multiplier if count == 1 else _several_multipliers
    multipliers, mean = solver(tilts, c, needed)
    tolerance = _MET * jnp.where(jnp.isfinite(needed), jnp.maximum(jnp.abs(needed), 1.0), 1.0)
    return multipliers, jnp.all(mean >= needed - tolerance)


def _one_multiplier(tilts: Tilts, c: Array, needed: Array) -> tuple[Array, Array]:
    """The multiplier, and the mean of the constraint's feature there."""
    at_zero = tilts.moments(c)
    missing = needed[0] - at_zero.mean[1]

    def gain_and_slope(x: Array) -> tuple[Array, Array, Array]:
        moments = tilts.moments(c.at[1].add(x))
        return moments.mean[1] - at_zero.mean[1], moments.covariance[1, 1], moments.mean[1]

    slope = jnp.maximum(at_zero.covariance[1, 1], jnp.finfo(missing.dtype).tiny)
    start = jnp.where(missing > 0, jnp.clip(missing / slope, 1e-150, 1e100), 0.0)
    if tilts.step == "exact":
        # Where even the constraint's own best policy falls short there is no root to look for.
        supported = ~jnp.isneginf(tilts.log_policy)
        best = jnp.where(supported, tilts.features[1], -jnp.inf).max(-1)
        start = jnp.where(tilts.weights @ best >= needed[0], start, 0.0)
    accuracy = 1e-13 * (1 + jnp.abs(needed[0]) + jnp.abs(at_zero.mean[1]))
    root = increasing_root(
        gain_and_slope, missing, start, quadratic=False, tolerance=0.0, absolute=accuracy
    )
    mean = jnp.where(start > 0, root.aux, at_zero.mean[1])
    return root.x[None], mean[None]


def _several_multipliers(tilts: Tilts, c: Array, needed: Array) -> tuple[Array, Array]:
    """Projected Newton on the dual, ν·needed − log-partition, over ν ≥ 0; and the means there."""
    count = len(needed)
    asked = jnp.isfinite(needed)
    target = jnp.where(asked, needed, 0.0)

    def look(nu: Array) -> _DualPoint:
        moved = c.at[1:].add(nu)
        moments = tilts.moments(moved)
        gradient = jnp.where(asked, target - moments.mean[1:], -1.0)
        free = asked & ((nu > 0) | (gradient > 0))
        return _DualPoint(
            nu=nu,
            mean=moments.mean[1:],
            value=nu @ target - tilts.potential(moved),
            gradient=jnp.where(free, gradient, 0.0),
            curvature=moments.covariance[1:, 1:],
            free=free,
        )

    def body(
        state: tuple[_DualPoint, Array, Array, Array],
    ) -> tuple[_DualPoint, Array, Array, Array]:
        point, damping, _, step = state
        free = point.free
        ridge = damping * jnp.maximum(jnp.diag(point.curvature), jnp.finfo(point.nu.dtype).tiny)
        hessian = jnp.where(free[:, None] & free[None, :], point.curvature, 0.0)
        hessian = hessian + jnp.diag(jnp.where(free, ridge, 1.0))
        move = jnp.linalg.solve(hessian, point.gradient)
        move = jnp.where(free & jnp.isfinite(move), move, 0.0)
        proposal = look(jnp.maximum(point.nu + move, 0.0))
        slope, new_slope = jnp.abs(point.gradient).max(), jnp.abs(proposal.gradient).max()
        # Close to the optimum the dual is flat to rounding; there the gradient decides.
        flat = proposal.value >= point.value - 1e-14 * (1 + jnp.abs(point.value))
        better = (proposal.value > point.value) | (flat & (new_slope <= 0.5 * slope))
        done = (jnp.minimum(slope, new_slope) <= accuracy) | (damping > 1e12)
        better = better & (slope > accuracy)
        damping = jnp.where(better, jnp.maximum(damping / 10, 1e-12), damping * 30)
        point = _DualPoint(*(jnp.where(better, a, b) for a, b in zip(proposal, point, strict=True)))
        return point, damping, done, step + 1

    def unfinished(state: tuple[_DualPoint, Array, Array, Array]) -> Array:
        return ~state[2] & (state[3] < 200)

    accuracy = 1e-13 * (1 + jnp.abs(target).max())
    start = (look(jnp.zeros(count)), jnp.array(1e-12), jnp.array(False), jnp.array(0))
    point = lax.while_loop(unfinished, body, start)[0]
    return point.nu, point.mean


class _DualPoint(NamedTuple):
    """Multipliers, and the projection's dual there; the gradient is zero where it points outside."""

    nu: Float[Array, " m"]
    mean: Float[Array, " m"]
    value: Float[Array, ""]
    gradient: Float[Array, " m"]
    curvature: Float[Array, "m m"]
    free: Bool[Array, " m"]
