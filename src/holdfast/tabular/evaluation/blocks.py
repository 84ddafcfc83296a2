"""Worst responses of all rows of a table, block by block, and device by device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from holdfast._support.devices import in_parts
from holdfast.model.table import Table

# Worst responses are computed for blocks of states with at most this many entries. 2¹⁴ doubles are
# 128 KiB, so that a block's rows and their temporaries stay in the second-level cache.
BLOCK_ENTRIES = 1 << 14
# On an accelerator blocks only limit memory: a temporary of 2²³ doubles has 64 MiB.
_DEVICE_ENTRIES = 1 << 23


def by_blocks(
    respond: Callable[..., Any],
    table: Table,
    signal: Array,
    values: Array,
    policy: Array,
    multipliers: Array,
    most_entries: int = BLOCK_ENTRIES,
) -> Any:
    """Return respond(set, p, y, signal, policy, multipliers, size) for all states, block by block.

    The size of a row is the largest |signal| + γ|V| that members may meet. A block has at most
    `most_entries` entries. On several devices each has blocks of its own states.
    """
    own, shared = table.uncertainty.by_row()
    most = most_entries if jax.default_backend() == "cpu" else _DEVICE_ENTRIES

    def answer(rows: tuple, values: Array, discount: Array, shared: Any) -> Any:
        p, successors, own, (c, pi, guess) = rows
        uncertainty = eqx.combine(own, shared)
        following = discount * (values if successors is None else values[successors])
        y = jnp.broadcast_to(c + following, p.shape)
        size = jnp.where(uncertainty.reach(p), jnp.abs(c) + jnp.abs(following), 0.0).max(-1)
        return respond(uncertainty, p, y, c, pi, guess, size)

    def answer_all(rows: tuple, *others: Any) -> Any:
        states = block = len(rows[0])
        while block > 1 and block % 2 == 0 and block * rows[0].size > most * states:
            block //= 2
        if block == states:
            return answer(rows, *others)
        split = jax.tree.map(lambda a: a.reshape(states // block, block, *a.shape[1:]), rows)
        merged = lax.map(lambda each: answer(each, *others), split)
        return jax.tree.map(lambda a: a.reshape(states, *a.shape[2:]), merged)

    rows = table.probabilities, table.successors, own, (signal, policy, multipliers)
    axes = jax.tree.map(lambda _: 0, rows)
    shared_by_all = values, table.discount, shared
    return in_parts(answer_all, rows, axes, *shared_by_all, result_axis=0)
