"""The root finder of the compiled code, for all one-dimensional duals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

# Newton's method runs alone for this many steps, enough from a good start. Afterwards every second step
# bisects the bracket, so that the worst case is bisection in the logarithm.
_TRUSTED_STEPS = 8
# Largest factor by which one step changes x while the bracket is open on that side. Roots span thirty
# orders of magnitude, so that ten such steps cover them.
_LEAP = 1e3


class Root(NamedTuple):
    """The result of a search.

    Attributes:
        x: the last point of each row.
        aux: the auxiliary output of the function there; zeros in rows that needed no search.
        converged: whether a row is done: the tolerance is met, x is at the limit, or the bracket
            cannot shrink.
        steps: number of function evaluations.
    """

    x: Float[Array, "*rows"]
    aux: Any
    converged: Bool[Array, "*rows"]
    steps: Int[Array, ""]


class _RootSearch(NamedTuple):
    """State of the search: the bracket, and the next point."""

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
    """Solve f(x) = target for x > 0, for all rows at once, with f increasing from f(0) = 0.

    The search takes a Newton step if it stays inside the bracket, and otherwise the geometric mean of
    the bracket. The roots are Lagrange multipliers of any order of magnitude, hence the logarithmic
    scale.

    Arguments:
        function: x → (f(x), f'(x), aux), where aux is any output that is needed at the root.
        target: positive values, one per row.
        guess: starting points; zero marks a row that needs no search.
        quadratic: whether f grows like x² near zero, as a divergence does. Newton's method then works
            on √f, which is nearly linear there.
        tolerance: a row is done when |f(x) − target| ≤ tolerance·x + absolute. If f is the divergence
            at multiplier x, (target − f(x))/x is the primal–dual gap, so this bounds the gap.
        absolute: the absolute part of that bound.
        limit: largest x; the search ends there if f has not reached the target.
        max_steps: limit on the function evaluations.

    Example:
        >>> import jax.numpy as jnp
        >>> square = lambda x: (x**2, 2 * x, ())
        >>> root = increasing_root(square, jnp.array([4.0]), jnp.array([1.0]), quadratic=True)
        >>> print(root.x)
        [2.]
    """
    eps, tiny = jnp.finfo(guess.dtype).eps, jnp.finfo(guess.dtype).tiny

    def newton_step(x: Array, value: Array, slope: Array) -> Array:
        slope = jnp.maximum(slope, tiny)
        if quadratic:
            root = jnp.sqrt(jnp.maximum(value, 0.0))
            step = x + 2 * root * (jnp.sqrt(target) - root) / slope
            # f underflows to zero here: take the largest step.
            return jnp.where(root > 0, step, jnp.inf)
        return x + (target - value) / slope

    def is_close(x: Array, value: Array) -> Array:
        close = jnp.abs(value - target) <= tolerance * x + absolute
        if quadratic:
            # Above the target the caller moves back by target/value, which costs this much.
            excess = (value - target) * jnp.minimum(x, 1.0)
            close = close & (excess <= tolerance * target + absolute)
        return close | ((x >= limit) & (value <= target))

    def body(search: _RootSearch) -> _RootSearch:
        root, x = search.root, search.next_x
        value, slope, aux = function(x)
        low = jnp.where(value <= target, x, search.low)
        high = jnp.where(value > target, x, search.high)
        proposal = newton_step(x, value, slope)
        # An open end of the bracket is replaced by the largest allowed step.
        floor = jnp.maximum(low, x / _LEAP)
        ceiling = jnp.minimum(high, jnp.minimum(x * _LEAP, limit))
        bisect = (root.steps >= _TRUSTED_STEPS) & (root.steps % 2 == 1) & jnp.isfinite(high)
        inside = (proposal > floor) & (proposal < ceiling) & ~bisect
        middle = jnp.sqrt(floor) * jnp.sqrt(ceiling)
        beyond = jnp.isinf(high) & (proposal >= ceiling)
        moved = jnp.where(inside, proposal, jnp.where(beyond, ceiling, middle))
        # A bracket of neighbouring floats cannot shrink.
        exhausted = (moved == x) | (high <= low * (1 + 4 * eps))
        done = root.converged | is_close(x, value) | exhausted
        keep = root.converged
        aux = select_rows(keep, root.aux, aux)
        looked = Root(jnp.where(keep, root.x, x), aux, done, root.steps + 1)
        return _RootSearch(looked, jnp.where(done, x, moved), low, high)

    def unfinished(search: _RootSearch) -> Array:
        return (search.root.steps < max_steps) & ~jnp.all(search.root.converged)

    guess = jnp.minimum(guess, limit)
    shapes = jax.eval_shape(function, guess)[2]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    start = _RootSearch(
        Root(guess, nothing, guess <= 0, jnp.array(0)),
        next_x=guess,
        low=jnp.zeros_like(guess),
        high=jnp.full_like(guess, jnp.inf),
    )
    return lax.while_loop(unfinished, body, start).root


def select_rows(chosen: Bool[Array, "*rows"], first: Any, second: Any) -> Any:
    """Return, row by row, the leaves of the first tree where chosen, else those of the second."""

    def select(a: Array, b: Array) -> Array:
        axes = (1,) * (a.ndim - chosen.ndim)
        return jnp.where(chosen.reshape(chosen.shape + axes), a, b)

    return jax.tree.map(select, first, second)
