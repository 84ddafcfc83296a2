"""The worst response of a KL ball in columns: a few Newton steps from a good guess.

Everything is elementwise over rows, so that a compiler keeps a row's numbers in registers. The result
is a proposal: `KL.bracket` certifies it.
"""

from __future__ import annotations

import functools
import operator

import jax.numpy as jnp
from jaxtyping import Array

from holdfast.uncertainty.rows import Columns, PerRow, Proposal

# Passes over the outcomes of a row. From the multiplier of similar targets one Newton step leaves an
# error that is negligible beside that of the targets.
PASSES = 2
# Largest factor by which a Newton step changes β: from a poor guess a longer step may overshoot.
_LEAP = 8.0


def kl_proposal(p: Columns, y: Columns, radius: PerRow, guess: PerRow) -> Proposal:
    """Return the tilt q ∝ p·exp(−βy) at nearly the β at which KL(q‖p) equals the radius.

    The value is the dual value at the last β that was tried, whose error is of second order in that of
    β. The returned multiplier is one Newton step closer.

    Arguments:
        p: nominal probabilities, one array over all rows for each outcome.
        y: targets.
        radius: radius of every row.
        guess: first β; where it is not positive, the search starts at the β of a small radius.
    """
    tiny = jnp.finfo(radius.dtype).tiny
    low = functools.reduce(
        jnp.minimum, [jnp.where(a > 0, b, jnp.inf) for a, b in zip(p, y, strict=True)]
    )
    u = [jnp.where(a > 0, b - low, 0.0) for a, b in zip(p, y, strict=True)]
    mass_at_minimum = _sum([jnp.where(b > 0, 0.0, a) for a, b in zip(p, u, strict=True)])
    mean = _sum([a * b for a, b in zip(p, u, strict=True)])
    # Nature reaches the minimum itself with a radius of at least −log p(argmin y).
    pointed = (mass_at_minimum >= jnp.exp(-radius)) & (radius > 0)
    trivial = pointed | (radius <= 0)
    room = jnp.where(trivial, 1.0, radius)
    variance = jnp.maximum(_sum([a * b * b for a, b in zip(p, u, strict=True)]) - mean * mean, tiny)
    # KL ≈ β²·variance/2 for small β.
    beta = jnp.where(guess > 0, guess, jnp.sqrt(2 * room / variance))
    beta = jnp.where(trivial, 1.0, beta)
    for _ in range(PASSES):
        tried = beta
        weight = [a * jnp.exp(-tried * b) for a, b in zip(p, u, strict=True)]
        mass = _sum(weight)
        tilted = _sum([a * b for a, b in zip(weight, u, strict=True)]) / mass
        square = _sum([a * b * b for a, b in zip(weight, u, strict=True)]) / mass
        log_mass = jnp.log(mass)
        root = jnp.sqrt(jnp.maximum(-tried * tilted - log_mass, tiny))
        slope = tried * jnp.maximum(square - tilted * tilted, tiny)
        # Newton's method on √KL, which is nearly linear in β.
        step = tried + 2 * root * (jnp.sqrt(room) - root) / slope
        beta = jnp.clip(step, tried / _LEAP, tried * _LEAP)
    dual = -(log_mass + room) / tried
    value = jnp.where(pointed, 0.0, jnp.where(trivial, mean, dual))
    share, plain = 1 / mass, jnp.where(pointed, 0.0, 1.0)
    at_minimum = jnp.where(pointed, 1 / mass_at_minimum, 0.0)
    kernel = [
        jnp.where(trivial, a * jnp.where(b > 0, plain, plain + at_minimum), w * share)
        for a, b, w in zip(p, u, weight, strict=True)
    ]
    return Proposal(kernel, low + value, jnp.where(trivial, 0.0, beta))


def _sum(terms: list[Array]) -> Array:
    return functools.reduce(operator.add, terms)
