"""The paper's projected gradient descent on the kernel: equations (9) and (14).

These are lines 3 to 8 of Algorithm 1, counting its input as line 1:

    p^{t+1} = Proj(p^t − β_t ∇_p V_{p^t}(ρ)),   ∇_p V(ρ)(s, a, s') = d(s)·π(a|s)·y(s, a, s')/(1−γ),

with y = signal + γV and the projection onto the set, row by row.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import (
    PolicyValues,
    certified_values,
    targets,
)

# Steps grow up to this length, in units of one over the span of the targets. There the Euclidean step is
# 10¹² times longer than a row, and its projection is the worst response up to rounding.
_LONGEST_STEP = 1e12
# Smallest probability whose logarithm is taken: just above the smallest normal double.
_SMALLEST_PROBABILITY = 1e-300


@dataclasses.dataclass(frozen=True)
class ProjectedGradient:
    """The paper's projected gradient descent on the kernel, (9) and (14).

    The set is rectangular, so that every row may have a step length of its own. If `scaled`, the
    default, the factor d(s)·π(a|s)/(1−γ) of the gradient (9) is left out, and all rows use one step
    length. With the factor, which is the paper's gradient, rows that are seldom visited hardly move. In
    both forms no step raises the value, since the projection lowers q·y in every row. Steps may
    therefore grow.

    Arguments:
        geometry: "euclidean", or "kl" for the mirror step q̂ ∝ p·exp(−β∇V) with KL projection.
        step_size: β_0, in units of one over the largest span of the targets.
        growth: β_{t+1}/β_t.
        scaled: whether all rows have the same step length.
        tolerance: certified error to reach, relative to max(1, largest |V|).
        max_iterations: limit on the number of steps; if it is reached, the error may exceed `tolerance`.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.environments.gambler()
        >>> paper = hf.evaluate(model, np.zeros(17, int), worst_case=hf.ProjectedGradient())
        >>> exact = hf.evaluate(model, np.zeros(17, int))
        >>> abs(paper.reward.worst - exact.reward.worst) < 1e-6
        True
    """

    geometry: Literal["euclidean", "kl"] = "euclidean"
    step_size: float = 1.0
    growth: float = 2.0
    scaled: bool = True
    tolerance: float = 1e-9
    max_iterations: int = 200


@compiled
def by_projected_gradient(
    table: Table, policy: Float[Array, "S A"], method: ProjectedGradient
) -> PolicyValues:
    """Return the worst case of a table's only signal by descent from the nominal kernel."""
    p, uncertainty = table.probabilities, table.uncertainty

    def step(found: PolicyValues, length: Array) -> Array:
        """Equation (9), and (14) for a constraint."""
        y = targets(table, table.signals[0], found.values)
        y = y - y.min(-1, keepdims=True)
        gradient = y / jnp.maximum(y.max(), jnp.finfo(y.dtype).tiny)
        if not method.scaled:
            visits = found.occupancy[:, None] * policy / table.step_share
            gradient = visits[..., None] * gradient
        assert found.kernel is not None
        if method.geometry == "euclidean":
            return uncertainty.project(p, found.kernel - length * gradient)
        # In logarithms: q·exp(−β∇V) itself would underflow as the steps grow.
        floored = jnp.maximum(found.kernel, _SMALLEST_PROBABILITY)
        drift = jnp.log(floored / jnp.where(p > 0, p, 1.0))
        return uncertainty.tilt(p, drift - length * gradient)  # type: ignore[attr-defined]

    def body(state: tuple[PolicyValues, Array, Array]) -> tuple[PolicyValues, Array, Array]:
        found, length, count = state
        kernel = step(found, length)
        assert found.multipliers is not None
        moved = certified_values(table, policy, kernel, found.multipliers)
        return moved, jnp.minimum(length * method.growth, _LONGEST_STEP), count + 1

    def unfinished(state: tuple[PolicyValues, Array, Array]) -> Array:
        found, _, count = state
        accepted = method.tolerance * jnp.maximum(1.0, jnp.abs(found.values).max())
        return (found.error > accepted) & (count < method.max_iterations)

    nominal = certified_values(table, policy, p, jnp.zeros_like(policy))
    start = (nominal, jnp.asarray(method.step_size, p.dtype), jnp.array(0))
    return lax.while_loop(unfinished, body, start)[0]
