"""The paper's Algorithm 1: projected gradient descent on the kernel."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import Outlook, certified_under, per_signal, targets


@eqx.filter_jit
def by_projected_gradient(
    table: Table,
    policy: Float[Array, "S A"],
    *,
    geometry: Literal["euclidean", "kl"],
    step_size: float,
    growth: float,
    scaled: bool,
    tolerance: float,
    max_iterations: int,
) -> Outlook:
    """The worst case of every signal, starting at the nominal kernel."""
    p, uncertainty = table.probabilities, table.uncertainty

    def step(outlook: Outlook, signal: Array, length: Array) -> Array:
        y = targets(table, signal, outlook.values)
        y = y - y.min(-1, keepdims=True)
        gradient = y / jnp.maximum(y.max(), jnp.finfo(y.dtype).tiny)
        if not scaled:
            visits = outlook.occupancy[:, None] * policy / (1 - table.discount)
            gradient = visits[..., None] * gradient
        assert outlook.kernel is not None
        if geometry == "euclidean":
            return uncertainty.project(p, outlook.kernel - length * gradient)
        # In logarithms, since q̂ ∝ q·exp(−β∇V) itself would underflow as the steps grow.
        drift = jnp.log(jnp.maximum(outlook.kernel, 1e-300) / jnp.where(p > 0, p, 1.0))
        return uncertainty.tilt(p, drift - length * gradient)  # type: ignore[attr-defined]

    def evaluate_signal(signal: Array) -> Outlook:
        def body(state: tuple[Outlook, Array, Array]) -> tuple[Outlook, Array, Array]:
            outlook, length, count = state
            kernel = step(outlook, signal, length)
            moved = certified_under(table, signal, policy, kernel, outlook.multipliers)
            return moved, jnp.minimum(length * growth, 1e12), count + 1

        def unfinished(state: tuple[Outlook, Array, Array]) -> Array:
            outlook, _, count = state
            accepted = tolerance * jnp.maximum(1.0, jnp.abs(outlook.values).max())
            return (outlook.error > accepted) & (count < max_iterations)

        nominal = certified_under(table, signal, policy, p, jnp.zeros_like(policy))
        start = (nominal, jnp.asarray(step_size, p.dtype), jnp.array(0))
        return lax.while_loop(unfinished, body, start)[0]

    return per_signal(evaluate_signal, table)
