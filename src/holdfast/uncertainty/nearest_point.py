"""Wolfe's method: the nearest point of a polytope of which only worst responses can be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.roots import select_rows


class _Corral(NamedTuple):
    """Members whose mixture is the nearest point so far; empty places have weight zero."""

    points: Float[Array, "N K K"]
    used: Bool[Array, "N K"]
    weights: Float[Array, "N K"]
    newest: Int[Array, " N"]
    done: Bool[Array, " N"]

    def mixture(self) -> Float[Array, "N K"]:
        return jnp.einsum("nm,nmk->nk", self.weights, self.points)


def nearest_member(
    worst: Callable[[Float[Array, "N K"]], Float[Array, "N K"]],
    p: Float[Array, "N K"],
    z: Float[Array, "N K"],
) -> Float[Array, "N K"]:
    """Return argmin ‖q − z‖ over a polytope of distributions, for all rows at once.

    Wolfe, "Finding the nearest point in a polytope", Mathematical Programming 1976. The worst response
    to q − z joins a corral of at most K members. If the nearest point of the corral's affine hull is a
    mixture of its members, q moves there. Otherwise q moves towards it until a member has weight zero,
    and that member leaves. The search ends when no response is nearer to z.

    Arguments:
        worst: function that returns the member minimising q·y, in every row.
        p: the member where the search starts.
        z: any vectors.
    """
    rows, width = p.shape
    places = jnp.arange(width)
    eps = jnp.finfo(p.dtype).eps
    # All members have sum one, so the mean of z does not matter.
    z = z - z.mean(-1, keepdims=True) + 1 / width

    def body(state: tuple[_Corral, Array]) -> tuple[_Corral, Array]:
        corral, step = state
        target = _affine_weights(corral, z)
        leaving = corral.used & (target <= eps)
        drop = jnp.where(leaving, corral.weights - target, 1.0)
        room = jnp.where(leaving, corral.weights / jnp.where(drop > 0, drop, 1.0), jnp.inf)
        length = jnp.clip(room.min(-1, keepdims=True), 0.0, 1.0)
        gone = leaving & (room <= length)
        used = corral.used & ~gone
        weights = corral.weights + length * (target - corral.weights)
        weights = jnp.where(used, jnp.maximum(weights, 0.0), 0.0)
        weights = weights / weights.sum(-1, keepdims=True)
        q = jnp.einsum("nm,nmk->nk", weights, corral.points)
        # If the newest member leaves at once, its gain was a rounding error, and the search ends.
        joined = (places == corral.newest[:, None]) & (corral.weights == 0)
        stuck = (gone & joined).any(-1)

        away = q - z
        member = worst(away)
        gap = (away * (q - member)).sum(-1)
        # The gap is a difference of sums of K terms; 16 eps of their span covers its rounding error.
        close = gap <= 16 * eps * (away.max(-1) - away.min(-1)) + eps
        settled = ~gone.any(-1)
        done = stuck | (settled & (close | used.all(-1)))
        place = jnp.argmin(used, axis=-1)
        joins = (settled & ~done)[:, None] & (places == place[:, None])
        new = _Corral(
            points=jnp.where(joins[..., None], member[:, None], corral.points),
            used=used | joins,
            weights=weights,
            newest=jnp.where(joins.any(-1), place, corral.newest),
            done=done,
        )
        return select_rows(corral.done, corral, new), step + 1

    def unfinished(state: tuple[_Corral, Array]) -> Array:
        # In exact arithmetic the method ends by itself. The limit stops cycles that rounding may cause.
        corral, step = state
        return ~corral.done.all() & (step < 100 + 20 * width)

    first = jnp.broadcast_to(places == 0, (rows, width))
    start = _Corral(
        points=jnp.where(first[..., None], p[:, None], 0.0),
        used=first,
        weights=first.astype(p.dtype),
        newest=jnp.zeros(rows, places.dtype),
        done=jnp.zeros(rows, bool),
    )
    return lax.while_loop(unfinished, body, (start, jnp.array(0)))[0].mixture()


def _affine_weights(corral: _Corral, z: Float[Array, "N K"]) -> Float[Array, "N K"]:
    """Return the weights, of any sign, of the point of the corral's affine hull nearest to z."""
    places = jnp.arange(z.shape[-1])
    heaviest = jnp.argmax(corral.weights, axis=-1)[:, None]
    # Differences from one member keep the digits of a small set far from z. Empty places come last,
    # and the newest member just before them: only it can depend linearly on the others.
    base = jnp.take_along_axis(corral.points, heaviest[..., None], axis=1)
    free = corral.used & (places != heaviest)
    order = jnp.argsort(jnp.where(free, places == corral.newest[:, None], 2), axis=-1)
    directions = jnp.where(free[..., None], corral.points - base, 0.0)
    directions = jnp.take_along_axis(directions, order[..., None], axis=1)
    free = jnp.take_along_axis(free, order, axis=-1)
    basis, triangle = jnp.linalg.qr(jnp.swapaxes(directions, -1, -2))
    diagonal = jnp.abs(jnp.diagonal(triangle, axis1=-2, axis2=-1))
    size = jnp.sqrt((directions**2).sum(-1))
    # A direction counts as dependent if QR leaves less than 1e3 eps of it, ten times the rounding
    # error of a factorisation with K = 100.
    free = free & (diagonal > 1e3 * jnp.finfo(z.dtype).eps * size)
    aim = jnp.einsum("nkj,nk->nj", basis, z - base[:, 0])
    keep = free[:, :, None] & free[:, None, :]
    solved = jax.scipy.linalg.solve_triangular(
        jnp.where(keep, triangle, jnp.eye(len(places))), jnp.where(free, aim, 0.0)[..., None]
    )[..., 0]
    weights = jnp.take_along_axis(solved, jnp.argsort(order, axis=-1), axis=-1)
    return jnp.where(places == heaviest, 1 - weights.sum(-1, keepdims=True), weights)
