"""The protocol of a simulator: pure functions, with the disturbance an argument of the step.

A step is s' = f(s, a, w). A *kernel* is a distribution of w given (s, a); the nominal one is part of the
environment. By data processing KL(p(s'|s,a)‖p₀(s'|s,a)) ≤ KL(q(w|s,a)‖q₀(w|s,a)), so whoever bounds the
disturbance has bounded the kernel.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

State = PyTree[Array]
Action = Float[Array, " action"] | Int[Array, ""]
Disturbance = Float[Array, " disturbance"] | Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Box:
    """Actions are vectors; `low` and `high` say what is usual, and the environment what it enforces.

    Infinite bounds are allowed: then actions have no scale of their own.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Length of an action."""
        return len(self.low)

    @property
    def is_bounded(self) -> bool:
        """Whether all bounds are finite."""
        return all(map(math.isfinite, (*self.low, *self.high)))


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Actions are whole numbers from 0 to `count` - 1."""

    count: int


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """The nominal disturbance is a vector of `size` independent standard normal numbers.

    `channel` and `scale` say where it enters and how far one unit moves what it moves: that choice is
    the nominal kernel, and it is written into every run.
    """

    size: int
    channel: str
    scale: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """The disturbance is the index of one of `count` outcomes; their probabilities depend on (s, a)."""

    count: int


class Step(NamedTuple):
    """What a step gives back. After `terminated` nothing is paid any more."""

    state: State
    observation: Float[Array, " observation"]
    reward: Float[Array, ""]
    costs: Float[Array, " costs"]
    terminated: Bool[Array, ""]


class Environment(eqx.Module):
    """A simulator as pure functions of one state; whoever samples it maps them over thousands.

    Every array in it (its `parameters`) is a leaf of a pytree, so that an environment with other physics
    is another argument of the same compiled program.

    Subclasses give the properties and functions below. Time is kept outside: an episode that reaches
    `horizon` steps is cut, and that is no business of the environment's.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What runs and messages call it."""

    @property
    @abc.abstractmethod
    def horizon(self) -> int:
        """Steps after which an episode is cut."""

    @property
    @abc.abstractmethod
    def observation_size(self) -> int:
        """Length of what the policy sees."""

    @property
    @abc.abstractmethod
    def feature_size(self) -> int:
        """Length of what critics and adversaries see."""

    @property
    def nature_feature_size(self) -> int:
        """Length of what `nature_features` gives."""
        space = self.action_space
        if isinstance(space, Box):
            return 2 * self.feature_size + space.size
        return self.feature_size * space.count

    @property
    @abc.abstractmethod
    def action_space(self) -> Box | Discrete:
        """What the policy chooses from."""

    @property
    @abc.abstractmethod
    def disturbance(self) -> GaussianNoise | Outcomes:
        """The nominal disturbance."""

    @property
    @abc.abstractmethod
    def cost_names(self) -> tuple[str, ...]:
        """The costs, in the order in which a step returns them."""

    @property
    def cost_limits(self) -> tuple[float, ...] | None:
        """The limits that belong to the environment, if it has any."""
        return None

    @property
    def discount(self) -> float | None:
        """The discount that belongs to the environment, if it has one."""
        return None

    @property
    def is_one_hot(self) -> bool:
        """Whether observations and features are indicators of a state, to be left as they are."""
        return False

    @property
    def is_hosted(self) -> bool:
        """Whether steps are taken outside JAX: some thousands a second, and without derivatives."""
        return False

    @property
    def is_replayable(self) -> bool:
        """Whether a step can be taken again from a saved state, as nature's lookahead does."""
        return True

    @property
    def failure(self) -> BaseException | None:
        """What went wrong outside JAX, if anything did."""
        return None

    def forget_failure(self) -> None:
        """What went wrong has been told."""
        return

    def close(self) -> None:
        """Ends what runs outside JAX, until it is needed again."""
        return

    @property
    def most_copies(self) -> int | None:
        """How many episodes may run side by side; None for any number."""
        return None

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " observation"]]:
        """The beginning of an episode."""

    @abc.abstractmethod
    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """One step under a given disturbance."""

    def reset_rows(self, keys: PRNGKeyArray) -> tuple[State, Float[Array, "rows observation"]]:
        """As many beginnings as keys; simulators outside JAX make them all at once."""
        return jax.vmap(self.reset)(keys)

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """A step of each; simulators outside JAX take them all at once."""
        return jax.vmap(self.step)(states, actions, disturbances)

    def listens(self, state: State) -> Bool[Array, ""]:
        """Whether the next step depends on its disturbance at all.

        It does not where what is drawn stays through an episode and has been drawn.
        """
        del state
        return jnp.array(True)

    @abc.abstractmethod
    def features(self, state: State) -> Float[Array, " features"]:
        """The whole state as a vector: critics and adversaries see all of it, and the clock besides."""

    def nature_features(self, state: State, action: Action) -> Float[Array, " nature"]:
        """What an adversary sees: the state and the action, in a form that is easy to learn from.

        With continuous actions that is also where the step would lead if nothing disturbed it. With
        discrete ones each action has a copy of the features to itself, so that on a table a linear
        function of them is a table over (s, a).
        """
        features, space = self.features(state), self.action_space
        if isinstance(space, Box):
            assert isinstance(self.disturbance, GaussianNoise)
            undisturbed = self.step(state, action, jnp.zeros(self.disturbance.size)).state
            return jnp.concatenate([features, self.features(undisturbed), action])
        return jnp.outer(jax.nn.one_hot(action, space.count), features).ravel()

    def outcome_probabilities(self, state: State, action: Action) -> Float[Array, " outcomes"]:
        """The nominal distribution of the disturbance, where that is `Outcomes`."""
        del state, action
        raise TypeError(f"{self.name}: its disturbance is not an outcome's index")

    @property
    def parameters(self) -> dict[str, float]:
        """The physical parameters that `with_parameters` can change, by name."""
        return {}

    def with_parameters(self, **changes: float) -> Self:
        """The same environment with other physics.

        Raises:
            ValueError: there is no parameter of that name.
        """
        for name in changes:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(f"{name}: not a parameter of {self.name}, which has {known}")
        names = list(changes)
        return eqx.tree_at(
            lambda env: [getattr(env, name) for name in names],
            self,
            [jnp.asarray(changes[name], jnp.float32) for name in names],
        )

    def description(self) -> dict[str, Any]:
        """All that defines it, as values that JSON can hold."""
        return {
            "name": self.name,
            "horizon": self.horizon,
            "disturbance": {
                "kind": type(self.disturbance).__name__,
                **dataclasses.asdict(self.disturbance),
            },
            "parameters": {name: float(jax.device_get(v)) for name, v in self.parameters.items()},
        }
