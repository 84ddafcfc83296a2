"""What the policy-gradient methods share: one unit for all signals, exact gradients, three ways to step.

With d_i the occupancy and A_i the advantages under the worst case of signal i, the gradient of its
worst-case value is ∂V_i/∂π(a|s) = d_i(s)·A_i(s, a)/(1−γ), but for a constant in every state that no
policy feels (the envelope theorem: nature's own choice adds nothing to first order, where it is
unique).

The papers take signals in [0, 1] and values up to 1/(1−γ); the models here pay what they pay. So
values are divided by their range, the largest less the smallest that policies make of the signal
under the nominal kernel (`Run.units`): margins and multipliers of all signals then have one unit,
and a step size means the same on every model.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.evaluation.values import Outlook
from holdfast.uncertainty.simplex import project_simplex

# Multiplicative steps never bring back a zero, so no action's probability falls below this.
_LEAST_PROBABILITY = 1e-12


def margins(run: Run, outlook: Outlook) -> Float[np.ndarray, " m"]:
    """Every constraint's margin, in units of the constraint's range."""
    return run.units[1:] * (np.asarray(outlook.value)[1:] - run.thresholds)


def natural_step(
    run: Run, outlook: Outlook, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """π ∝ π_k·exp(Σ_i w_i·A_i/(1−γ)): a step along the natural gradient of a softmax table."""
    return _natural(
        run.policy, outlook.advantages, jnp.asarray(run.units * weights) / (1 - run.table.discount)
    )


def projected_step(
    run: Run, outlook: Outlook, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """Row by row the projection of π_k + Σ_i w_i·d_i·A_i/(1−γ) onto the simplex."""
    actions = jnp.asarray(run.layout.model.actions)
    return _projected(run.policy, _direction(run, outlook, weights), actions)


def softmax_step(
    run: Run, outlook: Outlook, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """The plain gradient in the logits: each moves by π_k·Σ_i w_i·d_i·A_i/(1−γ)."""
    return _softmax(run.policy, _direction(run, outlook, weights))


def kept_alive(policy: Float[Array, "S A"], before: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """The policy with no action's probability at zero, but where it was zero before: padding."""
    floored = jnp.where(before > 0, jnp.maximum(policy, _LEAST_PROBABILITY), 0.0)
    return floored / floored.sum(-1, keepdims=True)


def _direction(run: Run, outlook: Outlook, weights: np.ndarray) -> Float[Array, "S A"]:
    return _weighted(outlook, jnp.asarray(run.units * weights) / (1 - run.table.discount))


@eqx.filter_jit
def _weighted(outlook: Outlook, weights: Float[Array, " n"]) -> Float[Array, "S A"]:
    return jnp.einsum("n,ns,nsa->sa", weights, outlook.occupancy, outlook.advantages)


@eqx.filter_jit
def _natural(policy: Array, advantages: Array, weights: Array) -> Array:
    return _tilted(policy, jnp.einsum("n,nsa->sa", weights, advantages))


@eqx.filter_jit
def _softmax(policy: Array, direction: Array) -> Array:
    centred = direction - (policy * direction).sum(-1, keepdims=True)
    return _tilted(policy, policy * centred)


@eqx.filter_jit
def _projected(policy: Array, direction: Array, actions: Int[Array, ""]) -> Array:
    own = jnp.broadcast_to(jnp.arange(policy.shape[1]) < actions, policy.shape)
    return project_simplex(policy + direction, own)


def _tilted(policy: Array, shift: Array) -> Array:
    top = jnp.where(policy > 0, shift, -jnp.inf).max(-1, keepdims=True)
    weight = jnp.where(policy > 0, policy * jnp.exp(shift - top), 0.0)
    return kept_alive(weight / weight.sum(-1, keepdims=True), policy)
