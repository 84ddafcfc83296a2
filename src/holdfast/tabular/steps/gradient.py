"""Gradient steps on a table: natural, projected, and in the logits.

With d_i the occupancy and A_i the advantages under the worst-case kernel of signal i, the gradient
of its worst-case value is ∂V_i/∂π(a|s) = d_i(s)·A_i(s, a)/(1−γ), up to a constant in every state
that does not change the policy. By the envelope theorem, nature's own choice adds nothing to first
order if it is unique.

The papers have signals in [0, 1] and values up to 1/(1−γ). Here every value is divided by its range
(`Run.units`). Margins and multipliers of all signals then have one unit, and a step size means the
same on every model.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from holdfast._support.compilation import compiled
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.run import Run
from holdfast.tabular.steps.tilted_policy import keep_support
from holdfast.uncertainty.simplex import project_simplex


def scaled_margins(run: Run, values: PolicyValues) -> Float[np.ndarray, " m"]:
    """Return the margin of every constraint, in units of the constraint's range."""
    return run.units[1:] * (np.asarray(values.value)[1:] - run.thresholds)


def natural_step(
    run: Run, values: PolicyValues, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """Return π ∝ π_k·exp(Σ_i w_i·A_i/(1−γ)), a natural gradient step of a softmax table."""
    return _natural(run.policy, values.advantages, _scaled(run, weights))


def projected_step(
    run: Run, values: PolicyValues, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """Return the projection of π_k + Σ_i w_i·d_i·A_i/(1−γ) onto the simplex, row by row."""
    actions = jnp.asarray(run.layout.model.actions)
    return _projected(run.policy, _direction(values, _scaled(run, weights)), actions)


def softmax_step(
    run: Run, values: PolicyValues, weights: Float[np.ndarray, " n"]
) -> Float[Array, "S A"]:
    """Return π_k with each logit moved by π_k·Σ_i w_i·d_i·A_i/(1−γ), a plain gradient step."""
    return _softmax(run.policy, _direction(values, _scaled(run, weights)))


def _scaled(run: Run, weights: np.ndarray) -> Float[Array, " n"]:
    return jnp.asarray(run.units * weights) / run.table.step_share


@compiled
def _direction(values: PolicyValues, weights: Float[Array, " n"]) -> Float[Array, "S A"]:
    return jnp.einsum("n,ns,nsa->sa", weights, values.occupancy, values.advantages)


@compiled
def _natural(policy: Array, advantages: Array, weights: Array) -> Array:
    return _tilted(policy, jnp.einsum("n,nsa->sa", weights, advantages))


@compiled
def _softmax(policy: Array, direction: Array) -> Array:
    centred = direction - (policy * direction).sum(-1, keepdims=True)
    return _tilted(policy, policy * centred)


@compiled
def _projected(policy: Array, direction: Array, actions: Int[Array, ""]) -> Array:
    own = jnp.broadcast_to(jnp.arange(policy.shape[1]) < actions, policy.shape)
    return project_simplex(policy + direction, own)


def _tilted(policy: Array, shift: Array) -> Array:
    top = jnp.where(policy > 0, shift, -jnp.inf).max(-1, keepdims=True)
    weight = jnp.where(policy > 0, policy * jnp.exp(shift - top), 0.0)
    return keep_support(weight / weight.sum(-1, keepdims=True), policy > 0)
