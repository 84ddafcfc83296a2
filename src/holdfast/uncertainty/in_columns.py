"""The response of any set to rows that are held in columns."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from holdfast.uncertainty.rows import Columns, PerRow, Proposal, Response


def respond_in_columns(ball: Any, p: Columns, y: Columns, guess: PerRow) -> Proposal:
    """Return a set's `respond`, mapped over rows in columns.

    Arguments:
        ball: the set, an `UncertaintySet`; its arrays over entries have the outcomes first.
        p: nominal probabilities, one array over all rows for each outcome.
        y: targets.
        guess: multipliers of a similar problem.
    """
    own, shared = _flat(ball, p).by_row()
    flat = [jnp.stack([column.ravel() for column in columns]) for columns in (p, y)]

    def respond(own: Any, p: Array, y: Array, guess: Array) -> Response:
        return eqx.combine(own, shared).respond(p, y, guess)

    mapped: Any = jax.vmap(respond, -1, -1)
    found = mapped(own, *flat, guess.ravel())
    *kernel, value, multiplier = (
        each.reshape(guess.shape) for each in (*found.kernel, found.value, found.multiplier)
    )
    return Proposal(kernel, value, multiplier)


def _flat(ball: Any, p: Columns) -> Any:
    """Return the set with its fields on all rows of p, on the last axis."""
    changes = {}
    for name in ball._own_arrays():
        value = jnp.asarray(getattr(ball, name), p[0].dtype)
        if name in ball.per_entry:
            changes[name] = jnp.stack([jnp.broadcast_to(v, p[0].shape).ravel() for v in value])
        else:
            changes[name] = jnp.broadcast_to(value, p[0].shape).ravel()
    return ball._with(**changes)
