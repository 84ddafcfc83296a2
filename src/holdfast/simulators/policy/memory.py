"""The memory of a policy: past observations and actions as further inputs.

With memory k the input is the current observation, followed by the k last pairs of an observation and
the action taken there, the most recent first. Before the start of an episode they are zero. An action
is remembered as the environment enforces it: clipped to its bounds, in units in which they are ±1; a
discrete one as its one-hot vector. A policy that sees what its actions did can identify the physics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from holdfast.simulators.environment import (
    Action,
    Box,
    Discrete,
    Disturbance,
    Environment,
    State,
    Step,
)
from holdfast.simulators.wrapped import Wrapped


class RememberedState(NamedTuple):
    """A state, the observation in it, and the remembered pairs before it."""

    inner: State
    observation: Float[Array, "*rows observation"]
    past: Float[Array, "*rows past"]


def pair_size(observation: int, space: Box | Discrete) -> int:
    """Return the length of a remembered observation and action."""
    return observation + (space.size if isinstance(space, Box) else space.count)


def remembered(space: Box | Discrete, action: Any, numpy: Any = jnp) -> Any:
    """Return an action, or rows of them, as it is remembered.

    Example:
        >>> remembered(Box((0.0,), (4.0,)), np.array([5.0]), np)
        array([1.])
        >>> remembered(Discrete(2), np.array(1), np)
        array([0., 1.])
    """
    if isinstance(space, Discrete):
        return numpy.eye(space.count)[action]
    low, high = numpy.asarray(space.low), numpy.asarray(space.high)
    action = numpy.clip(action, low, high)
    return (2 * action - low - high) / (high - low) if space.is_bounded else action


class Remembering(Wrapped):
    """An environment whose observations include the last observations and actions.

    Critics and adversaries see the state of the inner environment.

    Arguments:
        inner: the environment.
        memory: number of remembered pairs.
    """

    memory: int = eqx.field(static=True)

    @property
    def observation_size(self) -> int:
        """The length of an observation with the remembered pairs."""
        size = self.inner.observation_size
        return size + self.memory * pair_size(size, self.action_space)

    def reset(self, key: PRNGKeyArray) -> tuple[RememberedState, Float[Array, " observation"]]:
        """Return an initial state without a past."""
        return self._begun(*self.inner.reset(key))

    def reset_rows(
        self, keys: PRNGKeyArray
    ) -> tuple[RememberedState, Float[Array, "rows observation"]]:
        """Return initial states without a past."""
        return self._begun(*self.inner.reset_rows(keys))

    def _begun(self, inner: State, observation: Array) -> tuple[RememberedState, Array]:
        size = self.observation_size - self.inner.observation_size
        past = jnp.zeros((*observation.shape[:-1], size), observation.dtype)
        return RememberedState(inner, observation, past), jnp.concatenate([observation, past], -1)

    def step(self, state: RememberedState, action: Action, disturbance: Disturbance) -> Step:
        """Return a step of the inner environment, and remember observation and action."""
        return self._after(state, action, self.inner.step(state.inner, action, disturbance))

    def step_rows(self, states: RememberedState, actions: Array, disturbances: Array) -> Step:
        """Return steps of the inner environment, and remember observations and actions."""
        there = self.inner.step_rows(states.inner, actions, disturbances)
        return self._after(states, actions, there)

    def _after(self, state: RememberedState, action: Array, there: Step) -> Step:
        now = (state.observation, remembered(self.action_space, action), state.past)
        past = jnp.concatenate(now, -1)[..., : state.past.shape[-1]].astype(state.past.dtype)
        kept = RememberedState(there.state, there.observation, past)
        return there._replace(
            state=kept, observation=jnp.concatenate([there.observation, past], -1)
        )

    def features(self, state: RememberedState) -> Float[Array, " features"]:
        """Return the features of the inner state."""
        return self.inner.features(state.inner)

    def nature_features(self, state: RememberedState, action: Action) -> Float[Array, " nature"]:
        """Return the adversary's features of the inner state."""
        return self.inner.nature_features(state.inner, action)

    def listens(self, state: RememberedState) -> Bool[Array, ""]:
        """Return whether the inner environment's next step depends on its disturbance."""
        return self.inner.listens(state.inner)

    def outcome_probabilities(
        self, state: RememberedState, action: Action
    ) -> Float[Array, " outcomes"]:
        """Return the inner environment's distribution of the disturbance."""
        return self.inner.outcome_probabilities(state.inner, action)


def remembering(env: Environment, memory: int) -> Environment:
    """Return an environment with a memory, or the environment itself if the memory is zero."""
    return Remembering(env, memory) if memory else env  # type: ignore[abstract]


class PolicyHistory:
    """The memory of a policy that is used outside a simulator: `Agent.predict` keeps one.

    Arguments:
        memory: number of remembered pairs.
        observation: length of an observation.
        space: action space.

    Example:
        >>> history = PolicyHistory(1, 2, Discrete(2))
        >>> history.extended(np.array([3.0, 4.0])).tolist()
        [3.0, 4.0, 0.0, 0.0, 0.0, 0.0]
        >>> history.remember(np.array([3.0, 4.0]), np.array(1))
        >>> history.extended(np.array([5.0, 6.0])).tolist()
        [5.0, 6.0, 3.0, 4.0, 0.0, 1.0]
    """

    def __init__(self, memory: int, observation: int, space: Box | Discrete) -> None:
        self._space, self._size = space, memory * pair_size(observation, space)
        self._past: np.ndarray | None = None

    def reset(self) -> None:
        """Forget everything, as at the start of an episode."""
        self._past = None

    def extended(self, observation: np.ndarray) -> np.ndarray:
        """Return an observation, or rows of them, with the remembered pairs.

        Raises:
            ValueError: the number of rows has changed since the last `reset`.
        """
        rows = observation.shape[:-1]
        if self._past is None:
            self._past = np.zeros((*rows, self._size), observation.dtype)
        if self._past.shape[:-1] != rows:
            raise ValueError(
                f"observation: expected rows {self._past.shape[:-1]} as before, got {rows}; "
                "call reset() at the start of an episode"
            )
        return np.concatenate([observation, self._past], -1)

    def remember(self, observation: np.ndarray, action: np.ndarray) -> None:
        """Add an observation and the action taken there, in the environment's units."""
        assert self._past is not None
        pair = (observation, remembered(self._space, action, np), self._past)
        self._past = np.concatenate(pair, -1)[..., : self._size].astype(self._past.dtype)
