"""The projection (16) onto the linearised constraints, and its multipliers."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.compilation import compiled
from holdfast._support.roots import increasing_root
from holdfast.tabular.steps.tilted_policy import PolicyUpdate, TiltedPolicies

# Tolerance of linearised constraints, relative to their scale. A state that only the kernel of a
# constraint reaches has logits of up to 1e9. Their rounding moves its row by 1e-7, and the constraint by
# some 2e-8 of its scale.
CONSTRAINT_TOLERANCE = 1e-7
# Accuracy of the multipliers' gradients, relative to 1 + |needed|: a few hundred rounding errors.
_ACCURACY = 1e-13
# The dual is flat within this relative difference, some 50 rounding errors; there the gradient decides.
_FLAT = 1e-14
# Range of a first guess of one multiplier, far from the ends of the range of doubles.
_LEAST_GUESS, _LARGEST_GUESS = 1e-150, 1e100
# Continuation: logits above `_FIRST_SCALE` are scaled down to it at first, and each stage multiplies
# this limit by `_GROWTH`. exp(−100) is 4e-44: beyond, a state's log-partition is a maximum of linear
# functions to all digits.
_FIRST_SCALE, _GROWTH = 1e2, 8
# A stage that is not the last ends at this accuracy, or after this many steps.
_STAGE_ACCURACY, _STAGE_STEPS = 1e-3, 20
# Limit on the steps of the last stage. Newton takes about ten; nearly dependent constraints take more.
_MOST_STEPS = 300
# Bounds on the length of a step, in logits: the first one, the factors after success and failure,
# and the length below which a step can no longer change a multiplier.
_FIRST_REACH, _LENGTHEN, _SHORTEN, _LEAST_REACH = 1e3, 10, 8, 1e-20
_REACH_RANGE = 1e-30, 1e200


@compiled
def project(tilts: TiltedPolicies, c: Float[Array, " n"]) -> PolicyUpdate:
    """Return π_{k+1}, the projection of equation (16).

    min over π of E_{d^r}[KL(π‖π_c)] subject to V_i + E_{d^i, π}[A^i]/(1−γ) ≥ d_i. The solution is
    π ∝ π_c·exp(Σ_i ν_i Φ_i), Φ_i = (d^i/d^r)·A^i/(1−γ), with multipliers ν ≥ 0 from the concave dual
    problem. The paper's (16) drops the factor 1/(1−γ), which its own (8) has.

    Arguments:
        tilts: the family π_c around π_k.
        c: coefficients of π_{k+½}.
    """
    multipliers, met = projection_multipliers(tilts, c)
    c = c.at[1:].add(multipliers)
    return PolicyUpdate(tilts.policy(c), c, met)


def projection_multipliers(
    tilts: TiltedPolicies, c: Float[Array, " n"]
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """Return the multipliers ν ≥ 0 of the projection of π_c, and whether they meet the constraints."""
    count = len(tilts.needed)
    if count == 0:
        return jnp.zeros(0), jnp.array(True)
    solver = _one_multiplier if count == 1 else several_multipliers
    multipliers, mean = solver(tilts, c, tilts.needed)
    return multipliers, are_met(tilts, mean)


def are_met(tilts: TiltedPolicies, mean: Float[Array, " m"]) -> Bool[Array, ""]:
    """Return whether means of the features Φ_1 … Φ_m meet the linearised constraints."""
    sizes = jax.vmap(tilts.span)(tilts.features[1:])
    finite = jnp.isfinite(tilts.needed)
    scale = jnp.where(finite, jnp.maximum(jnp.abs(tilts.needed), sizes), sizes)
    return jnp.all(mean >= tilts.needed - CONSTRAINT_TOLERANCE * jnp.maximum(scale, 1.0))


def _one_multiplier(tilts: TiltedPolicies, c: Array, needed: Array) -> tuple[Array, Array]:
    """Return the multiplier of one constraint, and the mean of its feature there."""
    at_zero = tilts.moments(c)
    missing = needed[0] - at_zero.mean[1]

    def gain_and_slope(x: Array) -> tuple[Array, Array, Array]:
        moments = tilts.moments(c.at[1].add(x))
        return moments.mean[1] - at_zero.mean[1], moments.covariance[1, 1], moments.mean[1]

    slope = jnp.maximum(at_zero.covariance[1, 1], jnp.finfo(missing.dtype).tiny)
    start = jnp.clip(missing / slope, _LEAST_GUESS, _LARGEST_GUESS)
    start = jnp.where(missing > 0, start, 0.0)
    if tilts.step == "exact":
        # There is no root if even the best policy for the constraint does not meet it.
        supported = ~jnp.isneginf(tilts.log_policy)
        best = jnp.where(supported, tilts.features[1], -jnp.inf).max(-1)
        start = jnp.where(tilts.weights @ best >= needed[0], start, 0.0)
    else:
        start = jnp.where(at_zero.covariance[1, 1] > 0, start, 0.0)
    accuracy = _ACCURACY * (1 + jnp.abs(needed[0]) + jnp.abs(at_zero.mean[1]))
    root = increasing_root(
        gain_and_slope, missing, start, quadratic=False, tolerance=0.0, absolute=accuracy
    )
    mean = jnp.where(start > 0, root.aux, at_zero.mean[1])
    return root.x[None], mean[None]


class _DualPoint(NamedTuple):
    """Multipliers, and the dual of the projection there.

    The gradient is zero in the directions that would make a multiplier negative.
    """

    nu: Float[Array, " m"]
    mean: Float[Array, " m"]
    value: Float[Array, ""]
    gradient: Float[Array, " m"]
    curvature: Float[Array, "m m"]
    free: Bool[Array, " m"]


class _DualSearch(NamedTuple):
    """State of the search: the point, the longest step allowed, and the largest logits left unscaled."""

    point: _DualPoint
    reach: Float[Array, ""]
    limit: Float[Array, ""]
    done: Bool[Array, ""]
    steps: Int[Array, ""]


def several_multipliers(
    tilts: TiltedPolicies, c: Array, needed: Array, total: Array | None = None
) -> tuple[Array, Array]:
    """Return the ν ≥ 0 that maximises ν·needed − log-partition, and the means of the features there.

    With a total, the maximum is over the ν ≥ 0 with Σν = total. Constraints that need −inf are ignored.

    In states with little weight, or whose policy is nearly deterministic, the log-partition is nearly a
    maximum of linear functions, and Newton's method would jump between the sides of its kinks. The
    logits of those states are scaled down at first and restored in stages.
    """
    count = len(needed)
    asked, tiny = jnp.isfinite(needed), jnp.finfo(c.dtype).tiny
    target = jnp.where(asked, needed, 0.0)
    widths = jax.vmap(tilts.spans)(tilts.features[1:])
    widths = jnp.where(asked[:, None], widths, 0.0)
    # The unit of a multiplier moves some logit by one.
    unit = 1 / jnp.maximum(widths.max(-1), tiny)
    if total is None:
        typical = jnp.maximum(widths @ tilts.weights, tiny)[:, None]
        origin = jnp.zeros(count)
        sharpness = jnp.maximum((widths / typical).max(0), tilts.spans(tilts.shift(c)))
    else:
        origin = jnp.zeros(count).at[jnp.argmax(needed)].set(total)
        sharpness = widths.max(0) * total
    scale = 1 + jnp.abs(target).max()

    def look(nu: Array, limit: Array) -> _DualPoint:
        shrink = jnp.minimum(1.0, limit / jnp.maximum(sharpness, tiny))
        moments, potential = tilts.smoothed(c.at[1:].add(nu), shrink)
        gradient = jnp.where(asked, target - moments.mean[1:], -1.0)
        if total is not None:
            # The gain of a multiplier over those that it takes from.
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
        """Return Levenberg's step, no longer than `reach` in logits; a long reach makes it Newton's."""
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
        # Written such that features that are not finite end in the last stage, and not never.
        point, last = search.point, ~jnp.any(sharpness > search.limit)
        goal = jnp.where(last, _ACCURACY, _STAGE_ACCURACY) * scale
        proposal = look(step_from(point, search.reach), search.limit)
        slope, new_slope = jnp.abs(point.gradient).max(), jnp.abs(proposal.gradient).max()
        flat = proposal.value >= point.value - _FLAT * (1 + jnp.abs(point.value))
        better = (proposal.value > point.value) | (flat & (new_slope <= 0.5 * slope))
        better = better & (slope > goal)
        point = _DualPoint(*(jnp.where(better, a, b) for a, b in zip(proposal, point, strict=True)))
        length = (jnp.abs(proposal.nu - search.point.nu) / unit).max()
        shorter = jnp.minimum(search.reach, length) / _SHORTEN
        reach = jnp.clip(jnp.where(better, search.reach * _LENGTHEN, shorter), *_REACH_RANGE)
        settled = (jnp.minimum(slope, new_slope) <= goal) | (reach < _LEAST_REACH)
        settled = settled | (~last & (search.steps >= _STAGE_STEPS))
        next_stage = settled & ~last
        limit = jnp.where(next_stage, search.limit * _GROWTH, search.limit)
        point = lax.cond(next_stage, lambda: look(point.nu, limit), lambda: point)
        return _DualSearch(
            point,
            jnp.where(next_stage, _FIRST_REACH, reach),
            limit,
            last & (settled | (search.steps >= _MOST_STEPS)),
            jnp.where(next_stage, 0, search.steps + 1),
        )

    limit, reach = jnp.array(_FIRST_SCALE), jnp.array(_FIRST_REACH)
    start = _DualSearch(look(origin, limit), reach, limit, jnp.array(False), jnp.array(0))
    found = lax.while_loop(lambda search: ~search.done, body, start)
    return found.point.nu, found.point.mean
