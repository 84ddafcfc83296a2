"""The worst response of a KL ball in dense rows: one Newton step from a good guess.

A row of a dense model is long, so that exponentials take nearly all of the time: they are computed once.
The result is a proposal: `KL.bracket` certifies it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from holdfast.uncertainty.kl_columns import tilt_step
from holdfast.uncertainty.rows import PerRow, RowProposal, Rows

# With this β a tilt has mass at the smallest target only: exp(−βu) is zero for every other u in double
# precision, and βu is not NaN.
_POINTED = 1e300


def kl_row_proposal(p: Rows, y: Rows, radius: PerRow, guess: PerRow) -> RowProposal:
    """Return the tilt q ∝ p·exp(−βy) at the guess of β, its dual value, and a better β.

    The error of the dual value is of second order in that of β, and that of q of first order.

    Arguments:
        p: nominal rows, in double precision.
        y: targets.
        radius: radius of every row.
        guess: β; where it is not positive, the β of a small radius is taken.
    """
    tiny = jnp.finfo(radius.dtype).tiny
    low = jnp.where(p > 0, y, jnp.inf).min(-1)
    u = jnp.maximum(y - low[..., None], 0.0)  # a smaller target has no probability
    mass_at_minimum = jnp.where(u > 0, 0.0, p).sum(-1)
    # Nature reaches the minimum itself with a radius of at least −log p(argmin y).
    pointed = (mass_at_minimum >= jnp.exp(-radius)) & (radius > 0)
    trivial = pointed | (radius <= 0)
    room = jnp.where(trivial, 1.0, radius)
    known = trivial | (guess > 0)

    def expansion() -> Array:
        mean, square = (p * u).sum(-1), (p * u * u).sum(-1)
        # KL ≈ β²·variance/2 for small β.
        start = jnp.sqrt(2 * room / jnp.maximum(square - mean * mean, tiny))
        return jnp.where(known, guess, start)

    start = lax.cond(known.all(), lambda: guess, expansion)
    beta = jnp.where(trivial, jnp.where(pointed, _POINTED, 0.0), start)
    weight = p * jnp.exp(-beta[..., None] * u)
    first = weight * u
    mass = weight.sum(-1)
    mean = first.sum(-1) / mass
    square = (first * u).sum(-1) / mass
    step = tilt_step(room, jnp.where(trivial, 1.0, beta), mass, mean, square)
    return RowProposal(
        kernel=weight * (1 / mass)[..., None],
        value=low + jnp.where(trivial, mean, step.dual),
        multiplier=jnp.where(trivial, 0.0, step.following),
    )
