"""`check_environment`: does a simulator keep the protocol that training relies on?"""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from holdfast._support.arguments import check_whole_number
from holdfast.simulators.environment import (
    Box,
    Environment,
    GaussianNoise,
    Outcomes,
    State,
    Step,
    TrainingError,
)
from holdfast.simulators.failures import host_failures


def check_environment(environment: Environment, *, steps: int = 20, seed: int = 0) -> None:
    """Raise a ValueError for the first rule that an environment breaks.

    Sizes and types of the results of reset and step are compared with the declared ones. Two copies
    then take random actions under the nominal disturbance: equal seeds must give equal resets, and all
    numbers must be finite. Observations of a Gymnasium environment must also lie in its observation
    space, its rewards must be numbers and `terminated` a boolean.

    `train` makes the same checks: of the declared sizes before it starts, of the first reset and step
    of every copy exactly, and of the sizes of every later step.

    Arguments:
        environment: a registered name, an `Environment`, the result of `hf.disturb`, or a Gymnasium
            environment or its id.
        steps: number of steps to play; 0 only compares sizes and types.
        seed: seed of the episodes and of the actions.

    Raises:
        ValueError: the environment breaks a rule, raised an exception or did not return.

    Example:
        >>> import gymnasium, numpy as np, holdfast as hf
        >>> hf.check_environment("point-gather")
        >>> class Scalar(gymnasium.Env):
        ...     observation_space = gymnasium.spaces.Box(-1, 1, (3,))
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     def reset(self, *, seed=None, options=None):
        ...         return np.zeros(1, np.float32), {}
        >>> hf.check_environment(hf.disturb(Scalar, cost={}, horizon=10))
        Traceback (most recent call last):
        ...
        ValueError: environment: Scalar: the first observation has shape (1,), expected (3,)
    """
    check_whole_number("steps", steps, least=0)
    check_whole_number("seed", seed, least=0)
    check_shapes(environment)
    if not steps:
        return
    try:
        with host_failures(environment):
            _play(environment, steps, seed)
    except TrainingError as error:
        raise ValueError(f"environment: {error}") from error
    finally:
        environment.close()


def _play(env: Environment, steps: int, seed: int) -> None:
    keys = jax.random.split(jax.random.PRNGKey(seed), steps + 1)
    reset, step = eqx.filter_jit(_reset), eqx.filter_jit(_step)
    state, observation = reset(env, keys[0])
    _, again = reset(env, keys[0])
    if not np.array_equal(observation, again, equal_nan=True):
        raise ValueError(
            f"environment: {env.name}: two resets with the same seed give different observations, "
            f"{np.asarray(observation)[0]} and {np.asarray(again)[0]}"
        )
    state, observation = reset(env, keys[0])
    _check_finite(env, "the first observation", observation)
    over = np.zeros(2, bool)
    for i, key in enumerate(keys[1:]):
        found = step(env, state, key)
        for name in ("observation", "reward", "costs"):
            _check_finite(env, f"{name} of step {i}", np.asarray(getattr(found, name))[~over])
        over |= np.asarray(found.terminated)
        state = found.state
        if over.all():
            state, _ = reset(env, key)
            over[:] = False


def _reset(env: Environment, key: Array) -> tuple[State, Array]:
    return env.reset_rows(jax.random.split(key))


def _step(env: Environment, state: State, key: Array) -> Step:
    """Step two copies with random actions under the nominal disturbance."""
    to_action, to_noise = jax.random.split(key)
    space, noise = env.action_space, env.disturbance
    if isinstance(space, Box):
        actions = jax.random.uniform(to_action, (2, space.size))
        if space.is_bounded:
            low, high = jnp.asarray(space.low), jnp.asarray(space.high)
            actions = low + (high - low) * actions
    else:
        actions = jax.random.randint(to_action, (2,), 0, space.count)
    if isinstance(noise, GaussianNoise):
        drawn = jax.random.normal(to_noise, (2, noise.size))
    else:
        rows = jax.vmap(env.outcome_probabilities)(state, actions)
        drawn = jax.random.categorical(to_noise, jnp.log(rows)).astype(jnp.int32)
    return env.step_rows(state, actions, drawn)


def _check_finite(env: Environment, what: str, values: Any) -> None:
    if not np.isfinite(values).all():
        shown = np.asarray(values)[~np.isfinite(values)][0]
        raise ValueError(f"environment: {env.name}: {what} is not finite, got {shown}")


def check_disturbed(env: Environment, radius: float) -> None:
    """Raise a ValueError if a simulator outside JAX has no disturbance or cannot use this device."""
    if not env.is_hosted:
        return
    noise = env.disturbance
    if radius > 0 and isinstance(noise, GaussianNoise) and not any(noise.scale):
        raise ValueError(
            f"radius: {env.name} has no disturbance, got radius {radius:g}; choose a channel, as in "
            "hf.disturb(…, channel=hf.Parameters(mass=0.3))"
        )
    if not env.is_replayable and jax.default_backend() != "cpu":
        raise ValueError(
            f"environment: {env.name} must be stepped in order; set JAX_PLATFORMS=cpu for it"
        )


def check_shapes(env: Environment) -> None:
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
        if not (jnp.issubdtype(found.dtype, jnp.floating) or what == "step gives terminated"):
            raise ValueError(
                f"environment: {env.name}: {what} of type {found.dtype}, expected floating point"
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
