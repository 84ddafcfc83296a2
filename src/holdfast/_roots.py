"""One root finder for every one-dimensional dual in the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

# Newton is trusted for this many steps; after them every second step bisects the bracket, so that
# the worst case is that of bisection in the logarithm.
_TRUSTED_STEPS = 8
# How far one step may go where the bracket is still open on that side.
_LEAP = 1e3

_State = tuple[Array, Array, Array, Array, Array]


class Root(NamedTuple):
    """Where the search ended: `converged` says whether the tolerance was met."""

    x: Float[Array, "*rows"]
    converged: Bool[Array, "*rows"]
    steps: Int[Array, ""]


def increasing_root(
    function: Callable[
        [Float[Array, "*rows"]], tuple[Float[Array, "*rows"], Float[Array, "*rows"]]
    ],
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
        function: x → (f(x), f'(x)).
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

    def newton_step(x: Array, value: Array, slope: Array) -> Array:
        slope = jnp.maximum(slope, jnp.finfo(x.dtype).tiny)
        if quadratic:
            root = jnp.sqrt(jnp.maximum(value, 0.0))
            step = x + 2 * root * (jnp.sqrt(target) - root) / slope
            # Too far left to see anything of f: leap.
            return jnp.where(root > 0, step, jnp.inf)
        return x + (target - value) / slope

    def body(state: _State) -> _State:
        x, low, high, done, step = state
        value, slope = function(x)
        close = jnp.abs(value - target) <= tolerance * x + absolute
        if quadratic:
            # Beyond the target the answer has to be scaled back by target/value, which costs this.
            excess = (value - target) * jnp.minimum(x, 1.0)
            close = close & (excess <= tolerance * target + absolute)
        done = done | close
        done = done | ((x >= limit) & (value <= target))
        low = jnp.where(value <= target, x, low)
        high = jnp.where(value > target, x, high)
        proposal = newton_step(x, value, slope)
        # Where one end is unknown, the leap that is allowed stands in for it.
        floor = jnp.maximum(low, x / _LEAP)
        ceiling = jnp.minimum(high, jnp.minimum(x * _LEAP, limit))
        bisect = (step >= _TRUSTED_STEPS) & (step % 2 == 1) & jnp.isfinite(high)
        inside = (proposal > floor) & (proposal < ceiling) & ~bisect
        middle = jnp.sqrt(floor) * jnp.sqrt(ceiling)
        open_ended = jnp.where(jnp.isinf(high) & (proposal >= ceiling), ceiling, middle)
        moved = jnp.where(inside, proposal, open_ended)
        # A bracket of neighbouring floats cannot shrink: there is nothing left to find.
        done = done | (moved == x) | (high <= low * (1 + 4 * jnp.finfo(x.dtype).eps))
        return jnp.where(done, x, moved), low, high, done, step + 1

    def unfinished(state: _State) -> Array:
        *_, done, step = state
        return (step < max_steps) & ~jnp.all(done)

    guess = jnp.minimum(guess, limit)
    start = (guess, jnp.zeros_like(guess), jnp.full_like(guess, jnp.inf), guess <= 0, jnp.array(0))
    x, _, _, done, steps = lax.while_loop(unfinished, body, start)
    return Root(x, done, steps)
