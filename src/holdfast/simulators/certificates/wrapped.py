"""Environments that change one thing about another environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from holdfast.simulators.environment import (
    Action,
    Box,
    Disturbance,
    Environment,
    GaussianNoise,
    State,
    Step,
)


def _forwarded(name: str) -> property | Callable[..., Any]:
    """Return a property or method that forwards to the one of the same name of `inner`."""
    if isinstance(vars(Environment)[name], property):
        return property(lambda self: getattr(self.inner, name))

    def method(self: Any, *args: Any) -> Any:
        return getattr(self.inner, name)(*args)

    return method


class Wrapped(Environment):
    """An environment that forwards everything to `inner`; subclasses change some of it."""

    inner: Environment

    # `with_parameters` would return the inner environment without its wrapper.
    locals().update(
        {
            name: _forwarded(name)
            for name in vars(Environment)
            if not name.startswith("_") and name != "with_parameters"
        }
    )


class Prolonged(Wrapped):
    """An environment whose episodes are cut after `steps` steps."""

    steps: int = eqx.field(static=True)

    @property
    def horizon(self) -> int:
        """The number of steps after which an episode is cut."""
        return self.steps


class Noisier(Wrapped):
    """An environment with scaled Gaussian noise, and normal noise added to every action.

    The action noise is drawn as further entries of the disturbance. The environment treats the changed
    action like any other.

    Arguments:
        inner: the environment.
        factor: factor on its noise; 1 is nominal.
        action_std: standard deviation of the noise added to vector actions.
    """

    factor: Float[Array, ""]
    action_std: Float[Array, ""]

    @property
    def disturbance(self) -> GaussianNoise:
        """The inner disturbance, with one more number for each entry of a vector action."""
        inner, space = self._noise, self.action_space
        extra = space.size if isinstance(space, Box) else 0
        scale: Any = (self.action_std,) * extra
        channel = f"{inner.channel} and action" if extra else inner.channel
        return GaussianNoise(inner.size + extra, channel, (*inner.scale, *scale))

    @property
    def _noise(self) -> GaussianNoise:
        noise = self.inner.disturbance
        assert isinstance(noise, GaussianNoise)
        return noise

    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """Return a step of the inner environment with the changed action and disturbance."""
        return self.inner.step(state, *self._changed(action, disturbance))

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """Return steps of the inner environment with the changed actions and disturbances."""
        return self.inner.step_rows(states, *self._changed(actions, disturbances))

    def _changed(self, action: Array, disturbance: Array) -> tuple[Array, Array]:
        size = self._noise.size
        if isinstance(self.action_space, Box):
            action = action + self.action_std * disturbance[..., size:]
        return action, self.factor * disturbance[..., :size]
