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
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._roots import increasing_root
from holdfast.tabular.values import Outlook

Step = Literal["exact", "taylor"]

# Where the reward's worst case never goes, the constraint's tilt is divided by this instead. A smaller
# floor makes logits so large that floating point cannot place their multipliers.
_SMALLEST_OCCUPANCY = 1e-8
# Linearised constraints count as met within this share of their scale.
_MET = 1e-8
# Tilts stop at this many times one over the span of the feature's mean: where δ lets the policy
# condition on the maximisers there is no finite tilt, and this one is that limit to the seventh digit.
_STRONGEST_TILT = 1e7


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

    def shift(self, c: Float[Array, " n"]) -> Float[Array, "S A"]:
        """What c adds to the logits of the policy."""
        return jnp.einsum("n,nsa->sa", c, self.features)

    def cooled(
        self, c: Float[Array, " n"], cold: Float[Array, " S"]
    ) -> tuple[Moments, Float[Array, ""]]:
        """Moments and potential where each state's logits are multiplied by a share `cold` ≤ 1."""
        if self.step == "taylor":
            moments = self.moments(c)
            return moments, moments.kl
        logits = self._logits(c)
        top = logits.max(-1, keepdims=True)
        weight = jnp.exp(cold[:, None] * (logits - top))
        mass = weight.sum(-1, keepdims=True)
        policy = weight / mass
        mean = jnp.einsum("s,sa,nsa->n", self.weights, policy, self.features)
        centred = self.features - (policy * self.features).sum(-1, keepdims=True)
        covariance = jnp.einsum("s,sa,nsa,jsa->nj", self.weights * cold, policy, centred, centred)
        potential = self.weights @ (top + jnp.log(mass) / cold[:, None])[:, 0]
        return Moments(mean, covariance, jnp.zeros(())), potential

    def _logits(self, c: Array) -> Array:
        # A zero of the policy stays a zero whatever the feature is there.
        tilted = self.log_policy + self.shift(c)
        return jnp.where(jnp.isneginf(self.log_policy), -jnp.inf, tilted)


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

    def kl_and_slope(eta: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        c = jnp.zeros(len(tilts.features)).at[0].set(eta)
        multipliers, kept_within = _multipliers(tilts, c, tilts.needed)
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
        nu = _several_multipliers(tilts, jnp.zeros(len(tilts.features)), needed, eta)[0]
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
    sizes = jax.vmap(lambda feature: _span(tilts, feature))(tilts.features[1:])
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
    """How much the mean of a feature can differ between policies."""
    return tilts.weights @ _spans(tilts, feature)


def _spans(tilts: Tilts, feature: Float[Array, "S A"]) -> Float[Array, " S"]:
    """The largest difference that a feature makes in each state that counts."""
    supported = ~jnp.isneginf(tilts.log_policy)
    high = jnp.where(supported, feature, -jnp.inf).max(-1)
    low = jnp.where(supported, feature, jnp.inf).min(-1)
    return jnp.where(tilts.weights > 0, high - low, 0.0)


def _multipliers(
    tilts: Tilts, c: Float[Array, " n"], needed: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """ν ≥ 0 of the projection of π_c, by its concave dual; and whether the constraints are then met."""
    count = len(needed)
    if count == 0:
        return jnp.zeros(0), jnp.array(True)
    solver = _one_multiplier if count == 1 else _several_multipliers
    multipliers, mean = solver(tilts, c, needed)
    spans = jax.vmap(lambda feature: _span(tilts, feature))(tilts.features[1:])
    scale = jnp.where(jnp.isfinite(needed), jnp.maximum(jnp.abs(needed), spans), spans)
    tolerance = _MET * jnp.maximum(scale, 1.0)
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
    else:
        start = jnp.where(at_zero.covariance[1, 1] > 0, start, 0.0)
    accuracy = 1e-13 * (1 + jnp.abs(needed[0]) + jnp.abs(at_zero.mean[1]))
    root = increasing_root(
        gain_and_slope, missing, start, quadratic=False, tolerance=0.0, absolute=accuracy
    )
    mean = jnp.where(start > 0, root.aux, at_zero.mean[1])
    return root.x[None], mean[None]


def _several_multipliers(
    tilts: Tilts, c: Array, needed: Array, total: Array | None = None
) -> tuple[Array, Array]:
    """ν ≥ 0 that maximises ν·needed − log-partition, and the means of the features there.

    With a total, among the ν ≥ 0 with Σν = total.

    Where a state hardly counts, or its policy is nearly settled, its log-partition is nearly a maximum
    of linear functions, and Newton's method would jump from side to side of its kinks. Those states
    are warmed up, to logits of moderate size, and cooled down in stages.
    """
    count = len(needed)
    asked, tiny = jnp.isfinite(needed), jnp.finfo(c.dtype).tiny
    target = jnp.where(asked, needed, 0.0)
    features = tilts.features[1:]
    spans = jax.vmap(lambda feature: _spans(tilts, feature))(features)
    spans = jnp.where(asked[:, None], spans, 0.0)
    # A multiplier's unit is the one that moves some logit by one.
    unit = 1 / jnp.maximum(spans.max(-1), tiny)
    if total is None:
        typical = jnp.maximum(spans @ tilts.weights, tiny)[:, None]
        origin = jnp.zeros(count)
        sharpness = jnp.maximum((spans / typical).max(0), _spans(tilts, tilts.shift(c)))
    else:
        origin = jnp.zeros(count).at[jnp.argmax(needed)].set(total)
        sharpness = spans.max(0) * total
    accuracy = 1e-13 * (1 + jnp.abs(target).max())

    def look(nu: Array, heat: Array) -> _DualPoint:
        cold = jnp.minimum(1.0, heat / jnp.maximum(sharpness, tiny))
        moments, potential = tilts.cooled(c.at[1:].add(nu), cold)
        gradient = jnp.where(asked, target - moments.mean[1:], -1.0)
        if total is not None:
            # What a multiplier gains over those that it takes from.
            gradient = jnp.where(asked, gradient - nu @ gradient / total, -1.0)
        free = asked & ((nu > 0) | (gradient > 0))
        return _DualPoint(
            nu=nu,
            mean=moments.mean[1:],
            value=nu @ target - potential,
            gradient=jnp.where(free, gradient, 0.0),
            curvature=moments.covariance[1:, 1:],
            free=free,
        )

    def step_from(point: _DualPoint, reach: Array) -> Array:
        """Levenberg's step, no longer than `reach`, in logits; as reach grows it becomes Newton's."""
        free = point.free
        gradient = point.gradient * unit
        ridge = jnp.maximum(jnp.abs(gradient).max() / reach, tiny)
        hessian = jnp.where(free[:, None] & free[None, :], point.curvature, 0.0)
        hessian = hessian * unit[:, None] * unit[None, :] + jnp.diag(jnp.where(free, ridge, 1.0))
        move = jnp.linalg.solve(hessian, gradient) * unit
        if total is not None:
            level = jnp.linalg.solve(hessian, jnp.where(free, unit, 0.0)) * unit
            move = move - level * (move.sum() / level.sum())
        move = jnp.where(free & jnp.isfinite(move), move, 0.0)
        moved = jnp.maximum(point.nu + move, 0.0)
        return moved if total is None else moved * (total / moved.sum())

    def body(search: _DualSearch) -> _DualSearch:
        point, last = search.point, jnp.all(sharpness <= search.heat)
        goal = jnp.where(last, accuracy, 1e-3 * (1 + jnp.abs(target).max()))
        proposal = look(step_from(point, search.reach), search.heat)
        slope, new_slope = jnp.abs(point.gradient).max(), jnp.abs(proposal.gradient).max()
        # Close to the optimum the dual is flat to rounding; there the gradient decides.
        flat = proposal.value >= point.value - 1e-14 * (1 + jnp.abs(point.value))
        better = (proposal.value > point.value) | (flat & (new_slope <= 0.5 * slope))
        better = better & (slope > goal)
        point = _DualPoint(*(jnp.where(better, a, b) for a, b in zip(proposal, point, strict=True)))
        length = (jnp.abs(proposal.nu - search.point.nu) / unit).max()
        reach = jnp.where(better, search.reach * 10, jnp.minimum(search.reach, length) / 8)
        reach = jnp.clip(reach, 1e-30, 1e200)
        settled = (jnp.minimum(slope, new_slope) <= goal) | (reach < 1e-20)
        settled = settled | (~last & (search.steps >= 20))
        done = settled & last
        cooler = settled & ~last
        heat = jnp.where(cooler, search.heat * 8, search.heat)
        point = lax.cond(cooler, lambda: look(point.nu, heat), lambda: point)
        return _DualSearch(
            point,
            jnp.where(cooler, 1e3, reach),
            heat,
            done | (last & (search.steps >= 300)),
            jnp.where(cooler, 0, search.steps + 1),
        )

    heat = jnp.array(1e2)
    zero = jnp.array(0)
    start = _DualSearch(look(origin, heat), jnp.array(1e3), heat, jnp.array(False), zero)
    found = lax.while_loop(lambda search: ~search.done, body, start)
    return found.point.nu, found.point.mean


class _DualPoint(NamedTuple):
    """Multipliers, and the projection's dual there; the gradient is zero where it points outside."""

    nu: Float[Array, " m"]
    mean: Float[Array, " m"]
    value: Float[Array, ""]
    gradient: Float[Array, " m"]
    curvature: Float[Array, "m m"]
    free: Bool[Array, " m"]


class _DualSearch(NamedTuple):
    """Where the search for multipliers is: how far a step may go, and how warm the states still are."""

    point: _DualPoint
    reach: Float[Array, ""]
    heat: Float[Array, ""]
    done: Bool[Array, ""]
    steps: Int[Array, ""]
