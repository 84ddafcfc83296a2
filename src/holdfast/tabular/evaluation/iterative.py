"""Iterative solution of x = b + Gx for a linear contraction G, such as γP_π or its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

# Number of directions that a sweep is combined with. Each takes two numbers a state: ten of them take as
# much memory as one kernel with 20 entries a state.
_DIRECTIONS = 6
# A direction is dropped if orthogonalisation leaves less than this share of it: the rest is rounding.
_NOTHING_NEW = 1e-12
# The largest number that a count of sweeps can hold.
_NO_LIMIT = 2**31 - 1


class FixedPoint(NamedTuple):
    """The solution of x = b + Gx.

    Attributes:
        x: the solution, (S,).
        sweeps: number of applications of G.
        settled: whether the residual is as small as asked for.
    """

    x: Float[Array, " S"]
    sweeps: Int[Array, ""]
    settled: Bool[Array, ""]


class _Sweeps(NamedTuple):
    """The current x, its residual, and the stored directions with the change of residual each makes."""

    x: Float[Array, " S"]
    residual: Float[Array, " S"]
    size: Float[Array, ""]
    bound: Float[Array, ""]
    moves: Float[Array, "m S"]
    removes: Float[Array, "m S"]
    sweeps: Int[Array, ""]


def fixed_point(
    operator: Callable[[Float[Array, " S"]], Float[Array, " S"]],
    constant: Float[Array, " S"],
    start: Float[Array, " S"],
    slow: Float[Array, " S"],
    contraction: Float[Array, ""],
    norm: Callable[[Float[Array, " S"]], Float[Array, ""]],
    target: Callable[[Float[Array, ""]], Float[Array, ""]],
    most: Any = _NO_LIMIT,
) -> FixedPoint:
    """Return the solution of x = constant + operator(x) for a linear contraction.

    A plain sweep x ← x + r with residual r leaves the residual operator(r), which is smaller by the
    contraction factor. The sweep is combined with the directions of earlier sweeps by the generalised
    conjugate residual method, which on a mixing chain needs a few dozen sweeps instead of thousands. A
    combined step that reduces the residual by less than a plain sweep is guaranteed to is replaced by a
    plain sweep. The method is therefore never slower than plain sweeps, and always ends.

    Arguments:
        operator: the linear contraction.
        constant: b, (S,).
        start: first guess, (S,).
        slow: a direction that the operator hardly shortens; it is kept among the directions.
        contraction: upper bound on the factor by which the operator changes the norm of any x.
        norm: the norm in which this bound holds.
        target: the residual to reach, as a function of the first residual; both in the norm.
        most: limit on the sweeps. By default there is none: plain sweeps always end.
    """

    def body(now: _Sweeps) -> _Sweeps:
        swept = operator(now.residual)
        # One pass over the stored directions serves the new direction and the residual.
        pair = jnp.stack([now.residual - swept, now.residual])
        shares = pair @ now.removes.T
        removable, moved = shares @ now.removes, shares @ now.moves
        length = jnp.sqrt(pair[0] @ pair[0])
        move, removed = _unit(now.residual - moved[0], pair[0] - removable[0], length)
        slot = 1 + now.sweeps % (_DIRECTIONS - 1)
        share = removed @ now.residual
        residual = now.residual - removable[1] - share * removed
        bound = now.bound * contraction
        combined = norm(residual) <= bound
        residual = jnp.where(combined, residual, swept)
        return _Sweeps(
            x=now.x + jnp.where(combined, moved[1] + share * move, now.residual),
            residual=residual,
            size=norm(residual),
            bound=bound,
            moves=now.moves.at[slot].set(move),
            removes=now.removes.at[slot].set(removed),
            sweeps=now.sweeps + 1,
        )

    residual = constant + operator(start) - start
    size = norm(residual)
    enough = target(size)
    nothing = jnp.zeros((_DIRECTIONS, len(start)), start.dtype)
    removed = slow - operator(slow)
    move, removed = _unit(slow, removed, jnp.sqrt(removed @ removed))
    moves, removes = nothing.at[0].set(move), nothing.at[0].set(removed)
    first = _Sweeps(start, residual, size, size, moves, removes, jnp.array(0))
    last = lax.while_loop(lambda now: (now.size > enough) & (now.sweeps < most), body, first)
    return FixedPoint(last.x, last.sweeps + 2, last.size <= enough)


def _unit(move: Array, removed: Array, length: Array) -> tuple[Array, Array]:
    """Return a direction scaled to unit length; zero if little of the original length is left."""
    left = jnp.sqrt(removed @ removed)
    fresh = left > _NOTHING_NEW * length
    scale = jnp.where(fresh, 1 / jnp.where(fresh, left, 1.0), 0.0)
    return scale * move, scale * removed
