"""The one wrapper through which every disturbance reaches a Gymnasium environment."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast.gym.hosts.costs import Costs, Transition
from holdfast.gym.hosts.layout import Layout
from holdfast.gym.hosts.physics import Physics, body_ids, body_names


@dataclasses.dataclass(frozen=True)
class Untimed:
    """Makes an environment without Gymnasium's own time limit: whoever steps it keeps the time."""

    make: Callable[[], gymnasium.Env]
    horizon: int

    def __call__(self) -> gymnasium.Env:
        """One environment."""
        return _Uncut(_without_time_limit(self.make()), self.horizon)


def _without_time_limit(env: gymnasium.Env) -> gymnasium.Env:
    if isinstance(env, gymnasium.wrappers.TimeLimit):
        return _without_time_limit(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_time_limit(env.env)
    return env


class _Uncut(gymnasium.Wrapper):
    """An environment that counts its own steps: what it cuts at the horizon, others cut too.

    Only what it cuts before that is an end.
    """

    def __init__(self, env: gymnasium.Env, horizon: int) -> None:
        super().__init__(env)
        self._horizon, self._steps = horizon, 0

    def reset(self, **given: Any) -> Any:
        self._steps = 0
        return self.env.reset(**given)

    def step(self, action: Any) -> Any:
        found = self.env.step(action)
        self._steps += 1
        if self._steps >= self._horizon:
            *first, _, info = found
            return (*first, False, info)
        return found


class BoxActions(NamedTuple):
    """Actions are vectors, those of the environment laid out flat.

    Attributes:
        low: the smallest of each number; may be infinite.
        high: the largest.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Length of an action."""
        return len(self.low)


class DiscreteActions(NamedTuple):
    """Actions are whole numbers from 0 to `choices` - 1.

    Attributes:
        choices: how many.
        start: what the environment calls the first.
    """

    choices: int
    start: int = 0


class Disturbed(gymnasium.Wrapper):
    """An environment that takes, with each action, a command that says how it is disturbed.

    Observations are laid out flat, in float32: entries of a dict or tuple one after the other, a whole
    number as an indicator. A step of five values is taken, and one of six with the cost in the third
    place. `info["costs"]` has all costs. A reset is nominal, and so is a plain `step`.

    Arguments:
        env: without its time limit: whoever steps it keeps the time.
        layout: what the numbers of a command are.
        costs: where the costs are; `Costs.resolve(None)` if left out.

    Attributes:
        name: of the environment, for messages.
        layout: of commands.
        action_kind: `BoxActions` or `DiscreteActions`.
        observation_size: length of an observation.
        physics: of an environment that is MuJoCo's; None elsewhere.

    Raises:
        ValueError: its actions are neither a box nor discrete, its observations have no fixed size, or
            it cannot be disturbed in this way.

    Example:
        >>> env = Disturbed(gymnasium.make("CartPole-v1"), Layout(state=4), Costs.resolve({}))
        >>> seen, _ = env.reset(seed=0)
        >>> calm = env.step_under(1, np.zeros(4))[0]
        >>> _ = env.reset(seed=0)
        >>> pushed = env.step_under(1, np.array([0.5, 0, 0, 0]))[0]
        >>> print((pushed - calm).round(3))
        [0.5 0.  0.  0. ]
    """

    def __init__(
        self, env: gymnasium.Env, layout: Layout | None = None, costs: Costs | None = None
    ) -> None:
        super().__init__(env)
        self._inner: Any = env.unwrapped
        self.name = name_of(env)
        self.layout = Layout() if layout is None else layout
        self.costs = Costs.resolve(None, self.name) if costs is None else costs
        self.action_kind = _action_kind(env.action_space, self.name)
        self._inner_observations, self._inner_actions = env.observation_space, env.action_space
        self.observation_space = _flat(env.observation_space, self.name)
        self.observation_size = int(self.observation_space.shape[0])
        self.physics = physics_of(env, self.name)
        self._state = _state_of(env)
        if self._state is None and self.layout.state and self.physics is None:
            env.reset(seed=0)  # some have no state before
            self._state = _state_of(env)
        self._nominal = np.zeros(self.layout.size, np.float32)
        self._nominal[self.layout.of_parameters] = 1
        self._parts = (self.layout.of_state, self.layout.of_forces, self.layout.of_parameters)
        self._rounds = np.issubdtype(env.action_space.dtype, np.integer)
        self._seen: Any = None
        self._factors = b""
        self._check_layout()

    def _check_layout(self) -> None:
        layout, physics = self.layout, self.physics
        if physics is not None:
            self._bodies = body_ids(physics.model, layout.bodies, self.name)
            physics.check_parameters(layout.parameters)
        elif layout.bodies:
            raise ValueError(f"channel: {self.name} is not MuJoCo's, so no force can push it")
        elif layout.parameters:
            raise ValueError(
                f"channel: {self.name} is not MuJoCo's, so {', '.join(layout.parameters)} "
                "cannot be changed from outside"
            )
        if layout.state and layout.state != self.state_size:
            if not self.state_size:
                raise ValueError(
                    f"channel: the state of {self.name} cannot be set: it is not MuJoCo's, and the "
                    "environment has neither get_state and set_state nor a vector called state"
                )
            raise ValueError(
                f"channel: {self.state_size} numbers push the state of {self.name}, got {layout.state}"
            )

    @property
    def state_size(self) -> int:
        """How many numbers push the state; 0 where it cannot be set."""
        if self.physics is not None:
            return 2 * self.physics.model.nv
        if self._state is None:
            return 0
        if self._seen is None:
            # Many have no state before their first episode.
            self.reset(seed=0)
        return _size(self._state.get())

    @property
    def body_names(self) -> tuple[str, ...]:
        """The bodies that a force can push."""
        return () if self.physics is None else body_names(self.physics.model)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The physical parameters that can be changed."""
        return () if self.physics is None else self.physics.adjustable

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " observation"], dict[str, Any]]:
        """The beginning of an episode, under nominal physics."""
        if self.physics is not None:
            self.physics.reset()
            self._factors = b""
        self._seen, info = self.env.reset(seed=seed, options=options)
        self._seen = self._kept(self._seen)
        self._state = self._state or _state_of(self.env)
        if self.physics is not None and self._inner.model is not self.physics.model:
            # Some build their world anew for each episode.
            self.physics = physics_of(self.env, self.name)
        return self._flattened(self._seen), info

    def step(
        self, action: ArrayLike
    ) -> tuple[Float[np.ndarray, " observation"], float, bool, bool, dict[str, Any]]:
        """A step that nothing disturbs."""
        return self.step_under(action, self._nominal)

    def step_under(
        self, action: ArrayLike, command: Float[np.ndarray, " command"]
    ) -> tuple[Float[np.ndarray, " observation"], float, bool, bool, dict[str, Any]]:
        """A step under a command.

        Arguments:
            action: numbers laid out flat; or a whole number from 0 on.
            command: as the layout says.
        """
        layout, taken = self.layout, self._action(action)
        state, forces, parameters = self._parts
        # Without a force or push nothing is touched at all, so that a nominal step is that of the
        # environment to the last bit.
        if layout.parameters:
            numbers = command[parameters]
            # Mostly nothing has changed, and to see that in the bytes takes no time.
            if numbers.tobytes() != self._factors:
                assert self.physics is not None
                self.physics.set_factors(layout.parameters, numbers)
                self._factors = numbers.tobytes()
        if layout.state and command[state].any():
            self._push(command[state])
        if layout.bodies and command[forces].any():
            found = self._step_under_force(taken, command[forces])
        else:
            found = self.env.step(taken)
        return self._paid(taken, found)

    def _push(self, numbers: np.ndarray) -> None:
        if self.physics is None:
            assert self._state is not None
            before = self._state.get()
            pushed = np.asarray(before, np.float64).ravel() + numbers
            self._state.set(_like(before, pushed))
            return
        import mujoco

        model, data = self.physics.model, self._inner.data
        self.physics.push(data, numbers)
        # The environment may look at where its bodies are before it steps.
        mujoco.mj_forward(model, data)

    def _step_under_force(self, action: Any, forces: np.ndarray) -> tuple[Any, ...]:
        applied = self._inner.data.xfrc_applied
        before = applied[self._bodies, :3]
        applied[self._bodies, :3] = before + forces.reshape(-1, 3)
        try:
            return self.env.step(action)
        finally:
            applied[self._bodies, :3] = before

    def _paid(
        self, action: Any, found: tuple[Any, ...]
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if len(found) == 6:
            observation, reward, cost, terminated, truncated, info = found
            info = {**info, "cost": cost}
        else:
            observation, reward, terminated, truncated, info = found
            info = dict(info)
        step = Transition(self._seen, action, reward, observation, terminated, info)
        info["costs"] = self.costs.of(step)
        self._seen = self._kept(observation)
        return self._flattened(observation), float(reward), bool(terminated), bool(truncated), info

    def _kept(self, observation: Any) -> Any:
        """What a user's cost is shown after the next step, when the environment may have changed it."""
        return copy.deepcopy(observation) if self.costs.need_observations else observation

    def _flattened(self, observation: Any) -> np.ndarray:
        space = self._inner_observations
        if isinstance(space, spaces.Box):
            # A copy: some environments go on to write into what they gave.
            return np.array(observation, np.float32).ravel()
        return np.asarray(spaces.flatten(space, observation), np.float32).ravel()

    def _action(self, action: ArrayLike) -> Any:
        if isinstance(self.action_kind, DiscreteActions):
            return np.int64(int(np.asarray(action)) + self.action_kind.start)
        # A copy too: the caller's memory is written again before the next step.
        space = self._inner_actions
        numbers = np.rint(action) if self._rounds else action
        return np.array(numbers, space.dtype).reshape(space.shape)


def name_of(env: gymnasium.Env) -> str:
    """What messages call an environment: the name it is registered by, or that of its class."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def physics_of(env: gymnasium.Env, name: str) -> Physics | None:
    """The physics that an environment steps with, to be changed in place; None where not MuJoCo's."""
    # Whoever has a MuJoCo model has imported it; nobody else should wait for it.
    mujoco: Any = sys.modules.get("mujoco")
    inner = env.unwrapped
    model, data = getattr(inner, "model", None), getattr(inner, "data", None)
    if mujoco is None or not isinstance(model, mujoco.MjModel):
        return None
    if not isinstance(data, mujoco.MjData):
        return None
    # Physics that has gone astray must show, and not begin again as if nothing had been.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
    return Physics(model, name, in_place=True)


class _State(Protocol):
    """Where an environment that is not MuJoCo's keeps its state."""

    def get(self) -> Any: ...
    def set(self, state: Any) -> None: ...


class _Attribute(NamedTuple):
    """A state that is an attribute."""

    owner: Any

    def get(self) -> Any:
        return self.owner.state

    def set(self, state: Any) -> None:
        self.owner.state = state


class _Methods(NamedTuple):
    """A state behind two methods."""

    owner: Any

    def get(self) -> Any:
        return self.owner.get_state()

    def set(self, state: Any) -> None:
        self.owner.set_state(state)


def _state_of(env: gymnasium.Env) -> _State | None:
    layer: Any = env
    while True:
        # Not by the wrappers' own look-up, which would find each method at every layer.
        if all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state")):
            return _Methods(layer)
        if not isinstance(layer, gymnasium.Wrapper):
            return _Attribute(layer) if hasattr(layer, "state") else None
        layer = layer.env


def _size(state: Any) -> int:
    """How many numbers a state has; 0 where it is not made of real numbers."""
    try:
        array = np.asarray(state)
    except ValueError:
        return 0
    return array.size if array.ndim and np.issubdtype(array.dtype, np.floating) else 0


def _like(before: Any, numbers: np.ndarray) -> Any:
    """Numbers in the form that the environment keeps them in."""
    if isinstance(before, np.ndarray):
        return numbers.reshape(before.shape).astype(before.dtype)
    return type(before)(numbers.tolist())


def _action_kind(space: gymnasium.Space, name: str) -> BoxActions | DiscreteActions:
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(int(space.n), int(space.start))
    if isinstance(space, spaces.Box):
        low, high = (np.asarray(bound, float).ravel().tolist() for bound in (space.low, space.high))
        return BoxActions(tuple(low), tuple(high))
    raise ValueError(
        f"action space: {name} has {space}; expected a box (vectors of numbers) or a discrete one "
        "(a whole number)"
    )


def _flat(space: gymnasium.Space, name: str) -> spaces.Box:
    flat = spaces.flatten_space(space) if space.is_np_flattenable else None
    if not isinstance(flat, spaces.Box):
        raise ValueError(f"observation space: {name} has {space}, which has no fixed size")
    try:
        np.asarray(spaces.flatten(space, space.sample()), np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"observation space: {name} has {space}, which is not numbers") from error
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (flat.low, flat.high))
    return spaces.Box(low, high, dtype=np.float32)
