"""The check that a simulator follows the protocol of `Environment`, by tracing a reset and a step."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp

from holdfast.simulators.environment import Box, Environment, GaussianNoise, Outcomes, State


def check_environment(env: Environment) -> None:
    """Trace a reset and a step, and raise a ValueError if a shape or type breaks the protocol."""
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    state, observation = jax.eval_shape(env.reset, key)
    space, noise = env.action_space, env.disturbance
    action = _vector(space.size if isinstance(space, Box) else None)
    drawn = _vector(noise.size if isinstance(noise, GaussianNoise) else None)
    step = jax.eval_shape(env.step, state, action, drawn)
    expected = [
        ("reset gives an observation", observation, (env.observation_size,)),
        ("features", jax.eval_shape(env.features, state), (env.feature_size,)),
        ("step gives an observation", step.observation, (env.observation_size,)),
        ("step gives a reward", step.reward, ()),
        ("step gives costs", step.costs, (len(env.cost_names),)),
        ("step gives terminated", step.terminated, ()),
    ]
    if isinstance(noise, Outcomes):
        rows = jax.eval_shape(env.outcome_probabilities, state, action)
        expected.append(("outcome_probabilities", rows, (noise.count,)))
    for what, found, shape in expected:
        if tuple(found.shape) != shape:
            raise ValueError(
                f"environment: {env.name}: {what} of shape {tuple(found.shape)}, expected {shape}"
            )
    if step.terminated.dtype != bool:
        raise ValueError(
            f"environment: {env.name}: terminated is {step.terminated.dtype}, expected bool"
        )
    before, after = _shapes(state), _shapes(step.state)
    for old, new in itertools.zip_longest(before, after, fillvalue="nothing"):
        if old != new:
            raise ValueError(
                f"environment: {env.name}: step changes the form of the state, from {old} to {new}"
            )


def _vector(size: int | None) -> jax.ShapeDtypeStruct:
    """Return the shape of a vector, or of a whole number if there is no size."""
    shape, kind = ((), jnp.int32) if size is None else ((size,), jnp.float32)
    return jax.ShapeDtypeStruct(shape, kind)


def _shapes(state: State) -> list[str]:
    return [
        f"{jax.tree_util.keystr(path) or 'the state'} {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    ]
