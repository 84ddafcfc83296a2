"""The worst response of a KL ball in columns: two safeguarded Newton steps from a good guess.

Everything is elementwise over rows, so that a compiler keeps a row's numbers in registers. The result
is a proposal: `KL.bracket` certifies it.
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from holdfast.uncertainty.rows import Columns, PerRow, Proposal

# Largest factors by which a Newton step changes β, down and up: a longer step overshoots where KL is
# nearly constant in β.
_SHRINK, _GROW = 0.25, 8.0
# Two β on both sides of the root that differ by more than this share are a bracket to be halved. Closer
# ones are left to Newton's method.
_APART = 0.2


class TiltStep(NamedTuple):
    """The tilt p·exp(−βu) at one β: its dual value, its divergence, and Newton's next β."""

    dual: PerRow
    divergence: PerRow
    following: PerRow


class _Trial(NamedTuple):
    """The weights p·exp(−βu) at one β, and the step from there."""

    beta: PerRow
    weight: list[PerRow]
    mass: PerRow
    step: TiltStep


def kl_proposal(p: Columns, y: Columns, radius: PerRow, guess: PerRow) -> Proposal:
    """Return the tilt q ∝ p·exp(−βy) at nearly the β at which KL(q‖p) equals the radius.

    Two β are tried. The value is the larger dual value, whose error is of second order in that of β.
    The returned multiplier is one step closer: repeated calls converge, in rows of any kind in about
    eight.

    Arguments:
        p: nominal probabilities, one array over all rows for each outcome.
        y: targets.
        radius: radius of every row.
        guess: first β; where it is not positive, the search starts at the β of a small radius.
    """
    tiny = jnp.finfo(radius.dtype).tiny
    targets = [jnp.where(a > 0, b, jnp.inf) for a, b in zip(p, y, strict=True)]
    low = functools.reduce(jnp.minimum, targets)
    u = [jnp.where(a > 0, b - low, 0.0) for a, b in zip(p, y, strict=True)]
    mass_at_minimum = _sum([jnp.where(b > 0, 0.0, a) for a, b in zip(p, u, strict=True)])
    mean = _sum([a * b for a, b in zip(p, u, strict=True)])
    # Nature reaches the minimum itself with a radius of at least −log p(argmin y).
    pointed = (mass_at_minimum >= jnp.exp(-radius)) & (radius > 0)
    trivial = pointed | (radius <= 0)
    room = jnp.where(trivial, 1.0, radius)
    square = _sum([a * b * b for a, b in zip(p, u, strict=True)])
    # KL ≈ β²·variance/2 for small β.
    start = jnp.sqrt(2 * room / jnp.maximum(square - mean * mean, tiny))
    start = jnp.where(trivial, 1.0, jnp.where(guess > 0, guess, start))
    first = _tried(p, u, room, start)
    second = _tried(p, u, room, first.step.following)
    crossed = (first.step.divergence - room) * (second.step.divergence - room) < 0
    apart = jnp.abs(second.beta - first.beta) > _APART * first.beta
    halved = jnp.sqrt(first.beta) * jnp.sqrt(second.beta)
    beta = jnp.where(crossed & apart, halved, second.step.following)
    better = second.step.dual >= first.step.dual
    dual = jnp.where(better, second.step.dual, first.step.dual)
    value = jnp.where(pointed, 0.0, jnp.where(trivial, mean, dual))
    share = 1 / jnp.where(better, second.mass, first.mass)
    plain = jnp.where(pointed, 0.0, 1.0)
    at_minimum = jnp.where(pointed, 1 / mass_at_minimum, 0.0)
    kernel = [
        jnp.where(
            trivial,
            a * jnp.where(b > 0, plain, plain + at_minimum),
            jnp.where(better, other, one) * share,
        )
        for a, b, one, other in zip(p, u, first.weight, second.weight, strict=True)
    ]
    return Proposal(kernel, low + value, jnp.where(trivial, 0.0, beta))


def _tried(p: Columns, u: Columns, room: PerRow, beta: PerRow) -> _Trial:
    weight = [a * jnp.exp(-beta * b) for a, b in zip(p, u, strict=True)]
    mass = _sum(weight)
    mean = _sum([a * b for a, b in zip(weight, u, strict=True)]) / mass
    square = _sum([a * b * b for a, b in zip(weight, u, strict=True)]) / mass
    return _Trial(beta, weight, mass, tilt_step(room, beta, mass, mean, square))


def tilt_step(room: PerRow, beta: PerRow, mass: PerRow, mean: PerRow, square: PerRow) -> TiltStep:
    """Return the step of Newton's method from β > 0 towards the β at which KL equals the radius.

    Arguments:
        room: positive radius.
        beta: β.
        mass: Σ p·exp(−βu).
        mean: mean of u under the tilt.
        square: mean of u² under the tilt.
    """
    tiny = jnp.finfo(room.dtype).tiny
    log_mass = jnp.log(mass)
    divergence = -beta * mean - log_mass
    root = jnp.sqrt(jnp.maximum(divergence, tiny))
    slope = beta * jnp.maximum(square - mean * mean, tiny)
    # Newton's method on √KL, which is nearly linear in β.
    step = beta + 2 * root * (jnp.sqrt(room) - root) / slope
    following = jnp.clip(step, beta * _SHRINK, beta * _GROW)
    return TiltStep(-(log_mass + room) / beta, divergence, following)


def _sum(terms: list[Array]) -> Array:
    return functools.reduce(operator.add, terms)
