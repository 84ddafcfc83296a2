"""One root finder for every one-dimensional dual in the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

# Newton is trusted for this many steps; after them every second step bisects the bracket, so that
# the worst case is that of bisection in the logarithm.
_TRUSTED_STEPS = 8
# How far one step may go where the bracket is still open on that side.
_LEAP = 1e3


class Root(NamedTuple):
    """Where the search ended.

    Attributes:
        x: the last point that was looked at.
        aux: what the function returned there besides its value and slope; zeros in rows that were
            marked as done from the start.
        converged: whether the row is done: the tolerance was met, x is at the limit, or the bracket
            cannot shrink any more.
        steps: how many points were looked at.
    """

    x: Float[Array, "*rows"]
    aux: Any
    converged: Bool[Array, "*rows"]
    steps: Int[Array, ""]


class _Search(NamedTuple):
    root: Root
    next_x: Float[Array, "*rows"]
    low: Float[Array, "*rows"]
    high: Float[Array, "*rows"]


def increasing_root(
    function: Callable[[Float[Array, "*rows"]], tuple[Any, ...]],
    target: Float[Array, "*rows"],
    guess: Float[Array, "*rows"],
    *,
    quadratic: bool,
    tolerance: float = 1e-13,
    absolute: Float[Array, ""] | float = 0.0,
    limit: Float[Array, ""] | float = float("inf"),
    max_steps: int = 200,
) -> Root:
    """Solves f(x) = target for x > 0, for all rows at once, where f increases from f(0) = 0.

    Safeguarded Newton: a Newton step where it stays inside the bracket, the geometric mean of the
    bracket where it does not. The roots that come up here are Lagrange multipliers and span some
    thirty orders of magnitude, so the bracket lives on a logarithmic scale.

    Arguments:
        function: x → (f(x), f'(x), aux), where aux is anything that is wanted at the root.
        target: positive; rows that need no root are given a guess of zero and left alone.
        guess: where to start; zero marks a row as done.
        quadratic: whether f grows like x² near zero, as a divergence does. Then Newton works on √f,
            which is nearly linear there.
        tolerance: a row is done when |f(x) − target| ≤ tolerance·x + absolute. For f the divergence
            reached with multiplier x, (target − f(x))/x *is* the primal–dual gap, so this bounds
            the gap.
        absolute: the other part of that bound.
        limit: where x stops if f has not reached the target there.
        max_steps: after so many the search stops, converged or not.
    """
    eps, tiny = jnp.finfo(guess.dtype).eps, jnp.finfo(guess.dtype).tiny

    def newton_step(x: Array, value: Array, slope: Array) -> Array:
        slope = jnp.maximum(slope, tiny)
        if quadratic:
            root = jnp.sqrt(jnp.maximum(value, 0.0))
            step = x + 2 * root * (jnp.sqrt(target) - root) / slope
            # Too far left to see anything of f: leap.
            return jnp.where(root > 0, step, jnp.inf)
        return x + (target - value) / slope

    def is_close(x: Array, value: Array) -> Array:
        close = jnp.abs(value - target) <= tolerance * x + absolute
        if quadratic:
            # Beyond the target the answer has to be scaled back by target/value, which costs this.
            excess = (value - target) * jnp.minimum(x, 1.0)
            close = close & (excess <= tolerance * target + absolute)
        return close | ((x >= limit) & (value <= target))

    def body(search: _Search) -> _Search:
        root, x = search.root, search.next_x
        value, slope, aux = function(x)
        low = jnp.where(value <= target, x, search.low)
        high = jnp.where(value > target, x, search.high)
        proposal = newton_step(x, value, slope)
        # Where one end is unknown, the leap that is allowed stands in for it.
        floor = jnp.maximum(low, x / _LEAP)
        ceiling = jnp.minimum(high, jnp.minimum(x * _LEAP, limit))
        bisect = (root.steps >= _TRUSTED_STEPS) & (root.steps % 2 == 1) & jnp.isfinite(high)
        inside = (proposal > floor) & (proposal < ceiling) & ~bisect
        middle = jnp.sqrt(floor) * jnp.sqrt(ceiling)
        beyond = jnp.isinf(high) & (proposal >= ceiling)
        moved = jnp.where(inside, proposal, jnp.where(beyond, ceiling, middle))
        # A bracket of neighbouring floats cannot shrink: there is nothing left to find.
        exhausted = (moved == x) | (high <= low * (1 + 4 * eps))
        done = root.converged | is_close(x, value) | exhausted
        keep = root.converged
        aux = jax.tree.map(lambda old, new: jnp.where(_like(keep, old), old, new), root.aux, aux)
        looked = Root(jnp.where(keep, root.x, x), aux, done, root.steps + 1)
        return _Search(looked, jnp.where(done, x, moved), low, high)

    def unfinished(search: _Search) -> Array:
        return (search.root.steps < max_steps) & ~jnp.all(search.root.converged)

    guess = jnp.minimum(guess, limit)
    shapes = jax.eval_shape(function, guess)[2]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = _Search(
        Root(guess, nothing, guess <= 0, jnp.array(0)),
        next_x=guess,
        low=jnp.zeros_like(guess),
        high=jnp.full_like(guess, jnp.inf),
    )
    return lax.while_loop(unfinished, body, start).root


def _like(rows: Array, leaf: Array) -> Array:
    """Rows, with axes of length one added until they broadcast against a leaf."""
    return rows.reshape(rows.shape + (1,) * (leaf.ndim - rows.ndim))
