"""An algorithm for simulators: an iteration of PCPO, with a metric of its own."""

import jax.numpy as jnp

from holdfast.registry import SIMULATOR_ALGORITHMS, Algorithm


def iterate(plan, environment, state):
    """Perform one iteration and return the new state and its metrics; JAX traces this function."""
    state, metrics = SIMULATOR_ALGORITHMS["pcpo"].function(plan, environment, state)
    return state, metrics | {"example": jnp.array(7.0)}


EXAMPLE_PCPO = Algorithm("example-pcpo", iterate, robust=False)
