"""One robust sweep as a single kernel of an NVIDIA GPU, with the numbers of a row in registers.

The compiler of JAX divides a sweep into some forty passes over memory. Here every number is read and
written once. The worst response is the set's own `propose`, called on the rows of a block.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

# States of one block: one for each thread of four warps. Tables are padded to multiples of 128 states.
BLOCK = 128


def serves(uncertainty: Any, states: int) -> bool:
    """Return whether the kernel serves the device, the set and this number of states."""
    elementwise = uncertainty is not None and uncertainty.elementwise
    return jax.default_backend() == "gpu" and elementwise and states % BLOCK == 0


def sweep(
    columns: Any,
    values: Float[Array, " S"],
    multipliers: Float[Array, "A S"],
    *,
    block: int = BLOCK,
    warps: int = 4,
    interpret: bool = False,
) -> tuple[Float[Array, " S"], Float[Array, "A S"], Float[Array, "K A S"]]:
    """Return the fields of `columns.Swept` after one robust sweep over all states.

    Arguments:
        columns: the lists, `columns.Columns`.
        values: V.
        multipliers: dual variables from which the search starts.
        block: number of states of a block, a power of two.
        warps: number of groups of 32 threads that share a block.
        interpret: whether to run the kernel without a GPU, for tests.
    """
    own, shared = columns.uncertainty.by_row()
    fields, structure = jax.tree.flatten(own)
    fields = [jnp.broadcast_to(field, multipliers.shape) for field in fields]
    width = len(columns.probabilities)
    arrays = (columns.discount[None], *columns[:4], values, multipliers, *fields)

    def kernel(*refs: Any) -> None:
        inputs, (total_ref, multiplier_ref, flow_ref) = refs[:-3], refs[-3:]
        discount, p_ref, successors, signal, policy_ref, values_ref, guess, *rows = inputs
        here = pl.ds(pl.program_id(0) * block, block)
        gamma, total = discount[0], jnp.zeros(block, values.dtype)
        for a in range(len(multipliers)):
            p = [p_ref[k, a, here] for k in range(width)]
            y = [
                signal[k % len(columns.signal), a, here]
                + gamma * values_ref[successors[k, a, here]]
                for k in range(width)
            ]
            ball = eqx.combine(jax.tree.unflatten(structure, [r[a, here] for r in rows]), shared)
            found, policy = ball.propose(p, y, guess[a, here]), policy_ref[a, here]
            total = total + policy * found.value
            multiplier_ref[a, here] = found.multiplier
            for k, q in enumerate(found.kernel):
                flow_ref[k, a, here] = (policy * q).astype(jnp.float32)
        total_ref[here] = total

    shapes = (values, multipliers, jax.ShapeDtypeStruct(columns.probabilities.shape, jnp.float32))
    call = functools.partial(
        pl.pallas_call,
        kernel,
        grid=(len(values) // block,),
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in shapes],
        interpret=interpret,
        name="robust_sweep",
    )
    if interpret:
        return tuple(call()(*arrays))
    # Imported here: the module exists only where JAX was built for GPUs.
    from jax.experimental.pallas import triton

    return tuple(call(compiler_params=triton.CompilerParams(num_warps=warps))(*arrays))
