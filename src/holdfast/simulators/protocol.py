"""Whether a simulator keeps to the protocol, found out from shapes alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from holdfast.simulators.environment import Box, Environment, GaussianNoise, Outcomes


def check_environment(env: Environment) -> None:
    """Traces a reset and a step without running them.

    Raises:
        ValueError: something has another shape or type than the environment itself says; the message
            names both.
    """
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    state, observation = jax.eval_shape(env.reset, key)
    _expect(env, "reset gives an observation", observation, (env.observation_size,))
    _expect(env, "features", jax.eval_shape(env.features, state), (env.feature_size,))
    space, noise = env.action_space, env.disturbance
    action = _struct((space.size,), jnp.float32) if isinstance(space, Box) else _struct((), "int32")
    drawn = (
        _struct((noise.size,), jnp.float32)
        if isinstance(noise, GaussianNoise)
        else _struct((), "int32")
    )
    step = jax.eval_shape(env.step, state, action, drawn)
    _expect(env, "step gives an observation", step.observation, (env.observation_size,))
    _expect(env, "step gives a reward", step.reward, ())
    _expect(env, "step gives costs", step.costs, (len(env.cost_names),))
    _expect(env, "step gives terminated", step.terminated, ())
    if step.terminated.dtype != bool:
        raise ValueError(
            f"environment: {env.name}: terminated is {step.terminated.dtype}, not bool"
        )
    before, after = (jax.tree_util.tree_leaves_with_path(each) for each in (state, step.state))
    if [_kind(leaf) for leaf in before] != [_kind(leaf) for leaf in after]:
        changed = next(
            (
                f"from {_text(a)} to {_text(b)}"
                for a, b in zip(before, after, strict=False)
                if _kind(a) != _kind(b)
            ),
            f"from {len(before)} arrays to {len(after)}",
        )
        raise ValueError(f"environment: {env.name}: step changes the form of the state, {changed}")
    if isinstance(noise, Outcomes):
        rows = jax.eval_shape(env.outcome_probabilities, state, action)
        _expect(env, "outcome_probabilities", rows, (noise.count,))


def _struct(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _kind(leaf: tuple[Any, Any]) -> tuple[str, Any, Any]:
    return jax.tree_util.keystr(leaf[0]), leaf[1].shape, leaf[1].dtype


def _text(leaf: tuple[Any, Any]) -> str:
    name, shape, dtype = _kind(leaf)
    return f"{name or 'the state'} {dtype}{list(shape)}"


def _expect(env: Environment, what: str, found: Any, shape: tuple[int, ...]) -> None:
    if tuple(found.shape) != shape:
        raise ValueError(
            f"environment: {env.name}: {what} of shape {tuple(found.shape)}, expected {shape}"
        )
