"""One robust sweep as a single GPU kernel (NVIDIA) that keeps each row in registers.

The compiler of JAX divides a sweep into some forty passes over memory. Here every number is read and
written once. The worst response is the set's own `propose`, called on the rows of a block.
"""

from __future__ import annotations

import functools
from typing import Any

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
    lists: Any,
    values: Float[Array, " S"],
    multipliers: Float[Array, "S A"],
    *,
    block: int = BLOCK,
    warps: int = 4,
    interpret: bool = False,
) -> tuple[Float[Array, " S"], Float[Array, "S A"], Float[Array, "S A K"]]:
    """Return the fields of `columns.Swept` after one robust sweep over all states.

    Arguments:
        lists: the lists in rows, `columns.Lists`.
        values: V of all states; the lists may be those of some states only.
        multipliers: dual variables from which the search starts.
        block: number of states of a block, a power of two.
        warps: number of groups of 32 threads that share a block.
        interpret: whether to run the kernel without a GPU, for tests.
    """
    states, actions, width = lists.probabilities.shape
    lists_fields, structure = jax.tree.flatten(lists.uncertainty)
    # A kernel reads arrays only, so that one number for all rows becomes a block of equal ones.
    fields = [
        field if field.ndim else jnp.full(block, field, values.dtype) for field in lists_fields
    ]
    arrays = (
        *(multipliers, values, lists.discount[None], lists.probabilities, lists.successors),
        *(lists.signal, lists.policy, *fields),
    )

    def kernel(*refs: Any) -> None:
        inputs, (total_ref, multiplier_ref, flow_ref) = refs[:-3], refs[-3:]
        guess, values_ref, discount, p_ref, successors, signal, policy_ref, *rows = inputs
        here = pl.ds(pl.program_id(0) * block, block)
        gamma, total = discount[0], jnp.zeros(block, values.dtype)
        for a in range(actions):
            p = [p_ref[here, a, k] for k in range(width)]
            y = [
                signal[here, a, k % lists.signal.shape[-1]]
                + gamma * values_ref[successors[here, a, k]]
                for k in range(width)
            ]
            own = [
                row[here, a] if field.ndim > 1 else row[pl.ds(0, block)]
                for row, field in zip(rows, lists_fields, strict=True)
            ]
            start = guess[here, a].astype(values.dtype)
            found = jax.tree.unflatten(structure, own).propose(p, y, start)
            policy = policy_ref[here, a]
            total = total + policy * found.value
            multiplier_ref[here, a] = found.multiplier.astype(multipliers.dtype)
            for k, q in enumerate(found.kernel):
                flow_ref[here, a, k] = (policy * q).astype(jnp.float32)
        total_ref[here] = total

    call = functools.partial(
        pl.pallas_call,
        kernel,
        grid=(states // block,),
        out_shape=[
            jax.ShapeDtypeStruct((states,), values.dtype),
            jax.ShapeDtypeStruct(multipliers.shape, multipliers.dtype),
            jax.ShapeDtypeStruct(lists.probabilities.shape, jnp.float32),
        ],
        input_output_aliases={0: 1},  # each multiplier is read before it is written
        interpret=interpret,
        name="robust_sweep",
    )
    if interpret:
        return tuple(call()(*arrays))
    # Imported here: the module exists only where JAX was built for GPUs.
    from jax.experimental.pallas import triton

    return tuple(call(compiler_params=triton.CompilerParams(num_warps=warps))(*arrays))
