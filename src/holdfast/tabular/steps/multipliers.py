"""Multipliers of the linearised constraints: the concave dual of the projection."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.roots import increasing_root
from holdfast.tabular.steps.tilted_policy import Tilts, span, spans

# Linearised constraints count as met within this share of their scale.
MET = 1e-8


def multipliers_of(
    tilts: Tilts, c: Float[Array, " n"], needed: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """ν ≥ 0 of the projection of π_c, by its concave dual; and whether the constraints are then met."""
    count = len(needed)
    if count == 0:
        return jnp.zeros(0), jnp.array(True)
    solver = _one_multiplier if count == 1 else several_multipliers
    multipliers, mean = solver(tilts, c, needed)
    sizes = jax.vmap(lambda feature: span(tilts, feature))(tilts.features[1:])
    scale = jnp.where(jnp.isfinite(needed), jnp.maximum(jnp.abs(needed), sizes), sizes)
    tolerance = MET * jnp.maximum(scale, 1.0)
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


def several_multipliers(
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
    widths = jax.vmap(lambda feature: spans(tilts, feature))(features)
    widths = jnp.where(asked[:, None], widths, 0.0)
    # A multiplier's unit is the one that moves some logit by one.
    unit = 1 / jnp.maximum(widths.max(-1), tiny)
    if total is None:
        typical = jnp.maximum(widths @ tilts.weights, tiny)[:, None]
        origin = jnp.zeros(count)
        sharpness = jnp.maximum((widths / typical).max(0), spans(tilts, tilts.shift(c)))
    else:
        origin = jnp.zeros(count).at[jnp.argmax(needed)].set(total)
        sharpness = widths.max(0) * total
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
