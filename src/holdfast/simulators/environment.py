"""The protocol of a simulator: pure functions, with the disturbance as an argument of the step.

A step is s' = f(s, a, w). A *kernel* of a simulator is a distribution of w given (s, a); the nominal one
belongs to the environment. By the data-processing inequality
KL(p(s'|s,a)‖p₀(s'|s,a)) ≤ KL(q(w|s,a)‖q₀(w|s,a)): a bound on the disturbance bounds the kernel.
"""

from __future__ import annotations

import abc
import contextlib
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
    """A space of action vectors.

    Arguments:
        low: lowest usual value of each entry; the environment decides what it enforces.
        high: highest usual value of each entry. With infinite bounds actions have no scale.

    Example:
        >>> import holdfast as hf
        >>> hf.environments.Box((-1.0, 0.0), (1.0, 2.0)).size
        2
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """The length of an action."""
        return len(self.low)

    @property
    def is_bounded(self) -> bool:
        """Whether all bounds are finite."""
        return all(map(math.isfinite, (*self.low, *self.high)))


@dataclasses.dataclass(frozen=True)
class Discrete:
    """A space of actions 0, …, `count` − 1.

    Example:
        >>> import holdfast as hf
        >>> hf.environments.Discrete(2).count
        2
    """

    count: int


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """A nominal disturbance of `size` independent standard normal numbers.

    Arguments:
        size: length of the disturbance.
        channel: where the disturbance enters, in words. Every run records it.
        scale: change caused by one unit of each entry; it defines the nominal kernel.

    Example:
        >>> import holdfast as hf
        >>> hf.environments.PointGather().disturbance.size
        3
    """

    size: int
    channel: str
    scale: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """A disturbance that is the index of one of `count` outcomes with probabilities given by (s, a).

    Example:
        >>> import holdfast as hf
        >>> hf.environments.TableSimulator(hf.environments.gambler()).disturbance
        Outcomes(count=2)
    """

    count: int


class Step(NamedTuple):
    """The result of a step.

    Attributes:
        state: next state.
        observation: next observation of the policy.
        reward: reward of the step.
        costs: costs of the step.
        terminated: whether the episode ended; later rewards and costs are ignored.

    Example:
        >>> import jax, jax.numpy as jnp, holdfast as hf
        >>> env = hf.environments.PointGather()
        >>> state, _ = env.reset(jax.random.PRNGKey(0))
        >>> env.step(state, jnp.zeros(2), jnp.zeros(3)).costs.shape
        (1,)
    """

    state: State
    observation: Float[Array, " observation"]
    reward: Float[Array, ""]
    costs: Float[Array, " costs"]
    terminated: Bool[Array, ""]


class Environment(eqx.Module):
    """A simulator: pure functions of one state, which training maps over thousands of episodes.

    Every array of an environment is a pytree leaf: environments that differ only in physical parameters
    share a compiled program. Subclasses define the abstract properties and functions below. Training
    keeps the time and cuts episodes after `horizon` steps.

    Example:
        >>> import holdfast as hf
        >>> env = hf.environments.PointGather(horizon=20)
        >>> env.horizon, env.cost_names
        (20, ('bombs',))
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name used in run folders and messages."""

    @property
    @abc.abstractmethod
    def horizon(self) -> int:
        """The number of steps after which an episode is cut."""

    @property
    @abc.abstractmethod
    def observation_size(self) -> int:
        """The length of an observation of the policy."""

    @property
    @abc.abstractmethod
    def feature_size(self) -> int:
        """The length of the features of critics and adversaries."""

    @property
    def nature_feature_size(self) -> int:
        """The length of `nature_features`."""
        space = self.action_space
        if isinstance(space, Box):
            return 2 * self.feature_size + space.size
        return self.feature_size * space.count

    @property
    @abc.abstractmethod
    def action_space(self) -> Box | Discrete:
        """The action space."""

    @property
    @abc.abstractmethod
    def disturbance(self) -> GaussianNoise | Outcomes:
        """The nominal disturbance."""

    @property
    @abc.abstractmethod
    def cost_names(self) -> tuple[str, ...]:
        """The names of the costs, in the order of `Step.costs`."""

    @property
    def cost_limits(self) -> tuple[float, ...] | None:
        """The environment's own limits, or None."""
        return None

    @property
    def signal_ranges(self) -> tuple[tuple[float, float], ...] | None:
        """The lowest and highest value of a step's reward, then of each cost, or None if unknown."""
        return None

    @property
    def discount(self) -> float | None:
        """The environment's own discount, or None."""
        return None

    @property
    def training_settings(self) -> dict[str, Any]:
        """Settings of `train` that suit this environment, in place of their general defaults."""
        return {}

    @property
    def is_one_hot(self) -> bool:
        """Whether observations and features are one-hot; they are then not normalised."""
        return False

    @property
    def is_hosted(self) -> bool:
        """Whether steps run outside JAX, at thousands per second and without derivatives."""
        return False

    @property
    def is_replayable(self) -> bool:
        """Whether a saved state can be stepped again, as the tilted kernel's lookahead requires."""
        return True

    @property
    def draws_once(self) -> bool:
        """Whether only the first step of an episode depends on its disturbance."""
        return False

    @property
    def failure(self) -> BaseException | None:
        """The exception raised outside JAX, or None."""
        return None

    def forget_failure(self) -> None:
        """Clear `failure` after it was reported."""
        return

    def close(self) -> None:
        """Stop processes outside JAX; the next step starts them again."""
        return

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an interrupt also ends a step outside JAX that does not return."""
        return contextlib.nullcontext()

    @property
    def most_copies(self) -> int | None:
        """The largest number of episodes side by side, or None for no limit."""
        return None

    @abc.abstractmethod
    def reset(self, key: PRNGKeyArray) -> tuple[State, Float[Array, " observation"]]:
        """Return the initial state and observation of an episode."""

    @abc.abstractmethod
    def step(self, state: State, action: Action, disturbance: Disturbance) -> Step:
        """Return the result of one step under the given disturbance."""

    def reset_rows(self, keys: PRNGKeyArray) -> tuple[State, Float[Array, "rows observation"]]:
        """Return one initial state and observation per key."""
        return jax.vmap(self.reset)(keys)

    def step_rows(self, states: State, actions: Array, disturbances: Array) -> Step:
        """Return the result of one step of every row."""
        return jax.vmap(self.step)(states, actions, disturbances)

    def listens(self, state: State) -> Bool[Array, ""]:
        """Return whether the next step depends on its disturbance.

        It does not if the disturbance is drawn once per episode, after the first step.
        """
        del state
        return jnp.array(True)

    @abc.abstractmethod
    def features(self, state: State) -> Float[Array, " features"]:
        """Return the full state as a vector, for critics and adversaries; training adds the clock."""

    def nature_features(self, state: State, action: Action) -> Float[Array, " nature"]:
        """Return the state and the action as a vector, for adversaries.

        For continuous actions the vector also contains the features of the undisturbed next state. For
        discrete actions each action has its own copy of the features: on a table a linear function of
        the vector is a table over (s, a).
        """
        features, space = self.features(state), self.action_space
        if isinstance(space, Box):
            assert isinstance(self.disturbance, GaussianNoise)
            undisturbed = self.step(state, action, jnp.zeros(self.disturbance.size)).state
            return jnp.concatenate([features, self.features(undisturbed), action])
        return jnp.outer(jax.nn.one_hot(action, space.count), features).ravel()

    def outcome_probabilities(self, state: State, action: Action) -> Float[Array, " outcomes"]:
        """Return the nominal distribution of the disturbance, if it is `Outcomes`."""
        del state, action
        raise TypeError(f"{self.name}: the disturbance is not the index of an outcome")

    @property
    def parameters(self) -> dict[str, float]:
        """The physical parameters that `with_parameters` can change."""
        return {}

    def with_parameters(self, **changes: float) -> Self:
        """Return the same environment with other physical parameters.

        Raises:
            ValueError: there is no parameter of this name.
        """
        for name in changes:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(f"{name}: not a parameter of {self.name}, which has {known}")
        values = [jnp.asarray(value, jnp.float32) for value in changes.values()]
        return eqx.tree_at(lambda env: [getattr(env, name) for name in changes], self, values)

    def __repr__(self) -> str:
        costs = ", ".join(self.cost_names) or "none"
        return (
            f"<{self.name}: {self.observation_size} observations, actions {self.action_space}, "
            f"costs {costs}, horizon {self.horizon}>"
        )

    def description(self) -> dict[str, Any]:
        """Return JSON values that identify the environment; runs record them."""
        return {
            "name": self.name,
            "horizon": self.horizon,
            "disturbance": {
                "kind": type(self.disturbance).__name__,
                **dataclasses.asdict(self.disturbance),
            },
            "parameters": {name: float(jax.device_get(v)) for name, v in self.parameters.items()},
        }


class TrainingError(RuntimeError):
    """Training or evaluation cannot continue; the last checkpoint stays valid.

    A value was not finite, or a simulator outside JAX failed.

    Example:
        >>> import holdfast as hf
        >>> issubclass(hf.TrainingError, RuntimeError)
        True
    """
