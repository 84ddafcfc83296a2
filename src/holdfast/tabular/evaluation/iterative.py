"""Linear systems of large chains, x = b + Gx with G = γP_π or its transpose, without a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

# How many earlier directions a sweep is combined with. Each is two numbers a state.
_DIRECTIONS = 10
# A direction that is this small beside what it was before the others were taken out is rounding.
_NOTHING_NEW = 1e-12


class Solved(NamedTuple):
    """Where the sweeps ended.

    Attributes:
        x: the solution.
        sweeps: how many times the operator was applied.
    """

    x: Float[Array, " S"]
    sweeps: Int[Array, ""]


class _Sweeps(NamedTuple):
    """Where the solution is, what is missing, and directions x may move in with what each removes."""

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
) -> Solved:
    """Solves x = constant + operator(x), for a linear operator that contracts in the norm.

    A sweep x ← x + r, where r is what is missing, leaves operator(r) missing, which is smaller by the
    contraction. Together with the last sweeps' directions it does far better: taking out of r its
    part along everything that they remove is the generalised conjugate residual method, which on a
    chain that mixes needs a few dozen sweeps where the contraction alone needs thousands. A step that
    leaves more missing than as many plain sweeps are bound to is replaced by a sweep, so it is never
    slower than they, and it always ends.

    Arguments:
        operator: the contraction.
        constant: what is added to it.
        start: a first guess.
        slow: a direction that the operator hardly shortens; it is kept throughout.
        contraction: the factor by which the operator shortens every x, at least.
        norm: the norm in which it does.
        target: what may be missing at the end, in the norm, given what is missing at the start.
    """

    def body(now: _Sweeps) -> _Sweeps:
        swept = operator(now.residual)
        move, removed = _beside(now.residual, now.residual - swept, now.moves, now.removes)
        slot = 1 + now.sweeps % (_DIRECTIONS - 1)
        moves, removes = now.moves.at[slot].set(move), now.removes.at[slot].set(removed)
        share = removes @ now.residual
        residual = now.residual - share @ removes
        bound = now.bound * contraction
        combined = norm(residual) <= bound
        residual = jnp.where(combined, residual, swept)
        return _Sweeps(
            x=now.x + jnp.where(combined, share @ moves, now.residual),
            residual=residual,
            size=norm(residual),
            bound=bound,
            moves=moves,
            removes=removes,
            sweeps=now.sweeps + 1,
        )

    residual = constant + operator(start) - start
    size = norm(residual)
    enough = target(size)
    nothing = jnp.zeros((_DIRECTIONS, len(start)))
    move, removed = _beside(slow, slow - operator(slow), nothing, nothing)
    moves, removes = nothing.at[0].set(move), nothing.at[0].set(removed)
    first = _Sweeps(start, residual, size, size, moves, removes, jnp.array(0))
    last = lax.while_loop(lambda now: now.size > enough, body, first)
    return Solved(last.x, last.sweeps + 2)


def _beside(move: Array, removed: Array, moves: Array, removes: Array) -> tuple[Array, Array]:
    """A direction, less what the others remove already, at unit length; zero where nothing is left."""
    length = jnp.sqrt(removed @ removed)
    share = removes @ removed
    move, removed = move - share @ moves, removed - share @ removes
    left = jnp.sqrt(removed @ removed)
    fresh = left > _NOTHING_NEW * length
    scale = jnp.where(fresh, 1 / jnp.where(fresh, left, 1.0), 0.0)
    return scale * move, scale * removed
