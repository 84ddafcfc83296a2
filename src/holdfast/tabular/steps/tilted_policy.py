"""The family of policies that contains every trust-region step.

The improvement (13), the projection (16), CPO's problem (8) and the recovery step are linear in π except
for a KL term weighted by d^r. Their solutions are therefore tilts of the current policy,

    π_c(a|s) ∝ π_k(a|s)·exp(Σ_j c_j Φ_j(s, a)),   Φ_0 = A^r,   Φ_i = (d^i/d^r)·A^i/(1−γ),

and a step is a search for the few coefficients c: the improvement moves c_0 until
E_{d^r}[KL(π‖π_k)] = δ, and the projection moves c_1 … c_m until the linearised constraints hold.
Exact and Taylor steps differ only in how the means of Φ and the KL depend on c: exactly, or to
second order at c = 0. For the logits θ of a table the natural gradients H⁻¹g and H⁻¹h are the
features Φ themselves, so that no matrix is formed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from holdfast._support.compilation import compiled
from holdfast.tabular.evaluation.values import PolicyValues

StepKind = Literal["exact", "taylor"]

# Least occupancy that a constraint's feature is divided by, in states that the reward's worst case
# hardly visits. With a smaller floor the logits grow beyond 1e8, and double precision cannot
# resolve their multipliers to the accuracy of the projection.
_LEAST_OCCUPANCY = 1e-8
# Least probability of an action after a step. A zero would never come back under multiplicative steps;
# 1e-12 changes no value by more than the accuracy of the evaluation.
_LEAST_PROBABILITY = 1e-12


class Moments(NamedTuple):
    """Moments of the features under π_c.

    Attributes:
        mean: E_{d^r}[E_π Φ].
        covariance: derivative of the mean in c.
        kl: E_{d^r}[KL(π_c‖π_k)].
    """

    mean: Float[Array, " n"]
    covariance: Float[Array, "n n"]
    kl: Float[Array, ""]


class PolicyUpdate(NamedTuple):
    """A step within the family.

    Attributes:
        policy: π_c.
        coefficients: c.
        met: whether π_c meets the linearised constraints.
    """

    policy: Float[Array, "S A"]
    coefficients: Float[Array, " n"]
    met: Bool[Array, ""]


class TiltedPolicies(eqx.Module):
    """The tilts of a policy along its advantages.

    Attributes:
        log_policy: log π_k.
        features: Φ, with the reward's advantages first. They are H⁻¹g and H⁻¹h of (20) and (21).
        weights: d^r.
        needed: b = d − V_c, the mean of each Φ_i at which the linearised constraint holds.
        curvature: covariance of the features under π_k: gᵀH⁻¹g, hᵀH⁻¹g and hᵀH⁻¹h.
        step: "exact", or "taylor" for moments of second order.
    """

    log_policy: Float[Array, "S A"]
    features: Float[Array, "n S A"]
    weights: Float[Array, " S"]
    needed: Float[Array, " m"]
    curvature: Float[Array, "n n"]
    step: StepKind = eqx.field(static=True)

    @classmethod
    @compiled
    def at(
        cls,
        policy: Float[Array, "S A"],
        values: PolicyValues,
        thresholds: Float[Array, " m"],
        step_share: Float[Array, ""],
        step: StepKind,
    ) -> TiltedPolicies:
        """Return the tilts of a policy, linearised at its own values.

        Arguments:
            policy: π_k, (S, A).
            values: advantages and occupancies of π_k, each signal under its own kernel.
            thresholds: d, (m,).
            step_share: 1−γ, or 1/Σ_t γ^t with a horizon (`Table.step_share`).
            step: "exact" or "taylor".
        """
        # The floor is in the weights too, so that Σ d^r·Φ_i remains Σ d^i·A^i/(1−γ).
        reached = values.occupancy.max(0) > 0
        weights = jnp.where(reached, jnp.maximum(values.occupancy[0], _LEAST_OCCUPANCY), 0.0)
        ratio = values.occupancy[1:] / jnp.where(reached, weights, 1.0)
        constraint = ratio[..., None] * values.advantages[1:] / step_share
        features = jnp.concatenate([values.advantages[:1], constraint])
        # E_π A is zero under π itself. Removing its rounding error makes c = 0 neutral.
        features = features - (policy * features).sum(-1, keepdims=True)
        return cls(
            log_policy=jnp.log(policy),
            features=features,
            weights=weights,
            needed=thresholds - values.value[1:],
            curvature=_covariance(weights, policy, features),
            step=step,
        )

    def policy(self, c: Float[Array, " n"]) -> Float[Array, "S A"]:
        """Return π_c, with a positive probability of every action that π_k takes."""
        return keep_support(self._distribution(c), ~jnp.isneginf(self.log_policy))

    def moments(self, c: Float[Array, " n"]) -> Moments:
        """Return the means of the features, their covariance, and the KL at c."""
        if self.step == "taylor":
            return Moments(self.curvature @ c, self.curvature, 0.5 * c @ self.curvature @ c)
        policy = self._distribution(c)
        mean = jnp.einsum("s,sa,nsa->n", self.weights, policy, self.features)
        log_ratio = jnp.where(policy > 0, jnp.log(jnp.where(policy > 0, policy, 1.0)), 0.0)
        log_ratio = jnp.where(policy > 0, log_ratio - self.log_policy, 0.0)
        kl = jnp.maximum(self.weights @ (policy * log_ratio).sum(-1), 0.0)
        return Moments(mean, _covariance(self.weights, policy, self.features), kl)

    def smoothed(
        self, c: Float[Array, " n"], scale: Float[Array, " S"]
    ) -> tuple[Moments, Float[Array, ""]]:
        """Return moments and log-partition with each state's logits multiplied by a scale ≤ 1."""
        if self.step == "taylor":
            moments = self.moments(c)
            return moments, moments.kl
        logits = self._logits(c)
        top = logits.max(-1, keepdims=True)
        weight = jnp.exp(scale[:, None] * (logits - top))
        mass = weight.sum(-1, keepdims=True)
        policy = weight / mass
        mean = jnp.einsum("s,sa,nsa->n", self.weights, policy, self.features)
        centred = self.features - (policy * self.features).sum(-1, keepdims=True)
        covariance = jnp.einsum("s,sa,nsa,jsa->nj", self.weights * scale, policy, centred, centred)
        potential = self.weights @ (top + jnp.log(mass) / scale[:, None])[:, 0]
        return Moments(mean, covariance, jnp.zeros(())), potential

    def shift(self, c: Float[Array, " n"]) -> Float[Array, "S A"]:
        """Return Σ_j c_j Φ_j, the change of the logits of π_k."""
        return jnp.einsum("n,nsa->sa", c, self.features)

    def spans(self, feature: Float[Array, "S A"]) -> Float[Array, " S"]:
        """Return the largest difference of a feature between actions of π_k, in states with weight."""
        supported = ~jnp.isneginf(self.log_policy)
        high = jnp.where(supported, feature, -jnp.inf).max(-1)
        low = jnp.where(supported, feature, jnp.inf).min(-1)
        return jnp.where(self.weights > 0, high - low, 0.0)

    def span(self, feature: Float[Array, "S A"]) -> Float[Array, ""]:
        """Return the largest difference of a feature's mean between policies."""
        return self.weights @ self.spans(feature)

    def _distribution(self, c: Array) -> Array:
        logits = self._logits(c)
        weight = jnp.exp(logits - logits.max(-1, keepdims=True))
        return weight / weight.sum(-1, keepdims=True)

    def _logits(self, c: Array) -> Array:
        # Actions outside the support stay there, whatever their features are.
        tilted = self.log_policy + self.shift(c)
        return jnp.where(jnp.isneginf(self.log_policy), -jnp.inf, tilted)


def keep_support(policy: Float[Array, "S A"], support: Bool[Array, "S A"]) -> Float[Array, "S A"]:
    """Return the policy with at least 1e-12 on every action of the support, and zero elsewhere."""
    floored = jnp.where(support, jnp.maximum(policy, _LEAST_PROBABILITY), 0.0)
    return floored / floored.sum(-1, keepdims=True)


def _covariance(
    weights: Float[Array, " S"], policy: Float[Array, "S A"], features: Float[Array, "n S A"]
) -> Float[Array, "n n"]:
    """Return the covariance of the features under the policy in each state, averaged over states."""
    centred = features - (policy * features).sum(-1, keepdims=True)
    return jnp.einsum("s,sa,nsa,jsa->nj", weights, policy, centred, centred)
