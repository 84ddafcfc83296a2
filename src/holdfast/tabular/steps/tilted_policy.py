"""The family of policies in which every step is a search for a handful of numbers.

Improvement, projection, both at once and recovery: all live among the tilts of the current policy,

    π_c(a|s) ∝ π_k(a|s)·exp(Σ_j c_j Φ_j(s, a)),   Φ_0 = A^r,   Φ_i = (d^i/d^r)·A^i/(1−γ),

because each of these problems is linear in π but for a KL term weighted by d^r. A step is then a
search for a handful of numbers c: the improvement moves c_0 until E_{d^r}[KL(π‖π_k)] is δ, the
projection moves c_1 … c_m until the linearised constraints hold. What differs between exact and Taylor
is only how the means of Φ and the KL depend on c: exactly, or to second order at c = 0. For a softmax
table H⁻¹g is the advantage itself, so the Taylor step is the paper's update with no matrix formed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from holdfast.tabular.evaluation.values import Outlook

Step = Literal["exact", "taylor"]

# Where the reward's worst case never goes, the constraint's tilt is divided by this instead. A smaller
# floor makes logits so large that floating point cannot place their multipliers.
_SMALLEST_OCCUPANCY = 1e-8


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


def span(tilts: Tilts, feature: Float[Array, "S A"]) -> Float[Array, ""]:
    """How much the mean of a feature can differ between policies."""
    return tilts.weights @ spans(tilts, feature)


def spans(tilts: Tilts, feature: Float[Array, "S A"]) -> Float[Array, " S"]:
    """The largest difference that a feature makes in each state that counts."""
    supported = ~jnp.isneginf(tilts.log_policy)
    high = jnp.where(supported, feature, -jnp.inf).max(-1)
    low = jnp.where(supported, feature, jnp.inf).min(-1)
    return jnp.where(tilts.weights > 0, high - low, 0.0)
