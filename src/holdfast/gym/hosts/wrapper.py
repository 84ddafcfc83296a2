"""The Gymnasium wrapper through which a disturbance reaches an environment."""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast.gym.costs import Costs, Transition
from holdfast.gym.hosts.checks import (
    ProtocolError,
    as_numbers,
    check_observation,
    check_reset,
    check_step,
)
from holdfast.gym.hosts.hooks import HookedParameters
from holdfast.gym.hosts.host import DisturbanceLayout
from holdfast.gym.hosts.physics import Physics, body_names

StepResult = tuple[Float[np.ndarray, " observation"], float, bool, bool, dict[str, Any]]


def _unlimited(env: gymnasium.Env) -> gymnasium.Env:
    if isinstance(env, gymnasium.wrappers.TimeLimit):
        return _unlimited(env.env)
    if isinstance(env, gymnasium.Wrapper):
        env.env = _unlimited(env.env)
    return env


class UnlimitedEnv(gymnasium.Wrapper):
    """An environment without Gymnasium's time limit, which training keeps itself.

    An environment that truncates at or after the horizon by itself no longer reports it. A truncation
    before the horizon stays, and ends the episode.
    """

    def __init__(self, env: gymnasium.Env, horizon: int) -> None:
        super().__init__(_unlimited(env))
        self._horizon, self._steps = horizon, 0

    def reset(self, **given: Any) -> Any:
        """Start an episode."""
        self._steps = 0
        return self.env.reset(**given)

    def step(self, action: Any) -> Any:
        """Take a step, and ignore a truncation at or after the horizon."""
        found = self.env.step(action)
        self._steps += 1
        if isinstance(found, tuple) and len(found) in (5, 6) and self._steps >= self._horizon:
            found = (*found[:-2], False, found[-1])
        return found


# A policy has one logit for each combination; beyond some thousands the last layer is most of it.
_MOST_COMBINATIONS = 4_096


class DisturbedEnv(gymnasium.Wrapper):
    """An environment that receives, with each action, a command that disturbs the step.

    Observations are flat float32 vectors: the entries of a dict or tuple one after the other, a discrete
    value as a one-hot vector. Steps may return five values, or six with the cost in the third place.
    `info["costs"]` contains all costs. A reset and a plain `step` are nominal.

    Arguments:
        env: the environment, without time limit.
        layout: layout of the commands, which has to fit the environment (see `Machine.layout`).
        costs: sources of the costs; by default those of `Costs.resolve(None)`.
        name: name for messages; by default the id or the class of the environment.

    Attributes:
        observation_size: length of an observation.
        physics: the MuJoCo model to disturb, or None.

    Raises:
        ValueError: the action space is neither a box nor discrete; an observation is an image or has no
            fixed size.

    Example:
        >>> layout = DisturbanceLayout(state=4)
        >>> env = DisturbedEnv(gymnasium.make("CartPole-v1"), layout, Costs.resolve({}))
        >>> _ = env.reset(seed=0)
        >>> calm = env.step_under(1, np.zeros(4))[0]
        >>> _ = env.reset(seed=0)
        >>> pushed = env.step_under(1, np.array([0.5, 0, 0, 0]))[0]
        >>> print((pushed - calm).round(3))
        [0.5 0.  0.  0. ]
    """

    def __init__(
        self,
        env: gymnasium.Env,
        layout: DisturbanceLayout | None = None,
        costs: Costs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(env)
        self._inner: Any = env.unwrapped
        self.name = name_of(env) if name is None else name
        self.layout = DisturbanceLayout() if layout is None else layout
        self.costs = Costs.resolve(None, self.name) if costs is None else costs
        action_count(env.action_space, self.name)
        self._inner_observations, self._inner_actions = env.observation_space, env.action_space
        self.observation_space = _flat_space(env.observation_space, self.name)
        self.observation_size = int(self.observation_space.shape[0])
        self.physics = physics_of(env)
        self._tunable = HookedParameters.of(env) or self.physics
        self._state = _state_access(env)
        self._seen: Any = None
        # The first reset and the first step are compared with the whole space, later ones by size.
        self._checked: set[str] = set()
        self._factors = b""
        # Computed once: every step uses them.
        self._nominal = self.layout.nominal
        self._parts = (self.layout.of_state, self.layout.of_forces, self.layout.of_parameters)
        if self.physics is not None:
            self._bodies = [self.physics.model.body(name).id for name in self.layout.bodies]

    @property
    def state_size(self) -> int:
        """Number of values that push the state; 0 if the state cannot be set."""
        if self.physics is not None:
            return 2 * self.physics.model.nv
        if self._seen is None:
            self.reset(seed=0)  # Many environments have no state before their first episode.
        return 0 if self._state is None else _size(self._state[0]())

    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of the bodies that a force can act on."""
        return () if self.physics is None else body_names(self.physics.model)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the physical parameters that can be changed."""
        return () if self._tunable is None else self._tunable.adjustable

    @property
    def row_type(self) -> np.dtype:
        """The type of a table row that holds the inputs and the results of one copy."""
        space: Any = self.action_space
        is_box = isinstance(space, spaces.Box)
        fields = [
            ("seed", np.uint32),
            ("action", np.float32, (math.prod(space.shape),)) if is_box else ("action", np.int32),
            ("command", np.float32, (self.layout.size,)),
            ("alive", np.bool_),
            ("observation", np.float32, (self.observation_size,)),
            ("reward", np.float32),
            ("costs", np.float32, (len(self.costs.names),)),
            ("terminated", np.bool_),
            ("calls", np.uint32),  # resets and steps that have returned
        ]
        return np.dtype(fields, align=True)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " observation"], dict[str, Any]]:
        """Start an episode with nominal physics."""
        if self._tunable is not None:
            self._tunable.reset()
            self._factors = b""
        seen, info = check_reset(self.env.reset(seed=seed, options=options))
        if "reset" not in self._checked:
            check_observation(self._inner_observations, seen, "the first observation")
            self._checked.add("reset")
        self._seen = self._kept(seen)
        self._state = self._state or _state_access(self.env)
        if self.physics is not None and self._inner.model is not self.physics.model:
            # Some environments build a new model for each episode.
            is_hooked = self._tunable is not self.physics
            self.physics = physics_of(self.env)
            self._tunable = self._tunable if is_hooked else self.physics
        return self._flattened(seen), info

    def step(self, action: ArrayLike) -> StepResult:
        """Take an undisturbed step."""
        return self.step_under(action, self._nominal)

    def step_under(self, action: ArrayLike, command: Float[np.ndarray, " command"]) -> StepResult:
        """Take a step under a command.

        Arguments:
            action: the action as a flat vector, or an index from 0.
            command: the command, as described by the layout.
        """
        layout, taken = self.layout, decoded(self._inner_actions, action)
        state, forces, parameters = self._parts
        if layout.parameters:
            numbers = command[parameters]
            # Most steps change no factor. Comparing bytes detects that in about a microsecond.
            if numbers.tobytes() != self._factors:
                assert self._tunable is not None
                self._tunable.set_factors(layout.parameters, numbers)
                self._factors = numbers.tobytes()
        # A zero push or force changes nothing, so that a nominal step equals the environment's own step
        # exactly.
        if layout.state and command[state].any():
            self._push(command[state])
        if layout.bodies and command[forces].any():
            found = self._step_under_force(taken, command[forces])
        else:
            found = self.env.step(taken)
        return self._result(taken, found)

    def _push(self, numbers: np.ndarray) -> None:
        if self.physics is None:
            assert self._state is not None
            get, set_ = self._state
            before = get()
            set_(_like(before, np.asarray(before, np.float64).ravel() + numbers))
            return
        import mujoco

        data = self._inner.data
        self.physics.push(data.qpos, data.qvel, numbers)
        # The environment may read the positions of its bodies before it steps.
        mujoco.mj_forward(self.physics.model, data)

    def _step_under_force(self, action: Any, forces: np.ndarray) -> tuple[Any, ...]:
        applied = self._inner.data.xfrc_applied
        before = applied[self._bodies, :3]
        applied[self._bodies, :3] = before + forces.reshape(-1, 3)
        try:
            return self.env.step(action)
        finally:
            applied[self._bodies, :3] = before

    def _result(self, action: Any, found: tuple[Any, ...]) -> StepResult:
        observation, reward, terminated, truncated, info = check_step(found)
        if "step" not in self._checked:
            check_observation(self._inner_observations, observation, "the observation")
            self._checked.add("step")
        step = Transition(self._seen, action, reward, observation, terminated, info)
        info["costs"] = self.costs.of(step)
        self._seen = self._kept(observation)
        return self._flattened(observation), reward, terminated, truncated, info

    def _kept(self, observation: Any) -> Any:
        """Return what a cost function receives as `observation` after the next step.

        A copy, since the environment may write its next observation into the same array.
        """
        return observation if self.costs.is_rebuildable else copy.deepcopy(observation)

    def _flattened(self, observation: Any) -> np.ndarray:
        space = self._inner_observations
        if isinstance(space, spaces.Box):
            numbers = as_numbers(observation, "the observation")
            if numbers.shape != space.shape:
                raise ProtocolError(
                    f"the observation has shape {numbers.shape}, expected {space.shape}"
                )
            # A copy, for the same reason. `spaces.flatten` would take three times as long.
            return numbers.astype(np.float32).ravel()
        flat: Any = spaces.flatten(space, observation)
        if np.size(flat) != self.observation_size:
            raise ProtocolError(
                f"the observation has {np.size(flat)} numbers, expected {self.observation_size}"
            )
        return np.asarray(flat, np.float32).ravel()


def decoded(space: Any, action: ArrayLike) -> Any:
    """Return actions of the policy in the form that a Gymnasium environment expects.

    Arguments:
        space: the action space of the environment, a box or discrete.
        action: an index from 0 or a flat vector, with any number of leading axes. In a space of several
            choices the index counts all combinations, the last choice fastest.
    """
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.stack(
            np.unravel_index(np.asarray(action, np.int64), space.nvec.ravel()), axis=-1
        )
        return (parts.reshape(*np.shape(action), *space.shape) + space.start).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return np.asarray(action, np.int64) + space.start
    numbers = np.rint(action) if np.issubdtype(space.dtype, np.integer) else action
    # A copy, since the caller writes the next action into the same array.
    return np.array(numbers, space.dtype).reshape(*np.shape(action)[:-1], *space.shape)


def action_count(space: Any, name: str) -> int | None:
    """Return the number of actions of a discrete space, or None for a box.

    Raises:
        ValueError: the space is neither, or has too many combinations of choices.
    """
    if isinstance(space, spaces.Box):
        return None
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if not isinstance(space, spaces.MultiDiscrete):
        raise ValueError(
            f"action space: {name} has {space}; expected a Box, a Discrete or a MultiDiscrete space"
        )
    count = math.prod(space.nvec.ravel().tolist())
    if count > _MOST_COMBINATIONS:
        raise ValueError(
            f"action space: {name} has {count:,} combinations of choices; expected at most "
            f"{_MOST_COMBINATIONS:,}"
        )
    return count


def name_of(env: gymnasium.Env) -> str:
    """Return the id of an environment, or the name of its class if it has none."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def physics_of(env: gymnasium.Env) -> Physics | None:
    """Return the physics of an environment, to be changed in place, or None if it is not MuJoCo's."""
    # An environment with a MuJoCo model has imported MuJoCo already; the others should not wait for it.
    mujoco: Any = sys.modules.get("mujoco")
    model, data = (getattr(env.unwrapped, field, None) for field in ("model", "data"))
    if mujoco is None or not (
        isinstance(model, mujoco.MjModel) and isinstance(data, mujoco.MjData)
    ):
        return None
    # MuJoCo would restart an unstable simulation silently. NaN must reach the check in training.
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET.value
    return Physics(model, in_place=True)


_StateAccess = tuple[Callable[[], Any], Callable[[Any], None]]


def _state_access(env: gymnasium.Env) -> _StateAccess | None:
    """Return functions that read and write the state of an environment without MuJoCo."""
    layer: Any = env
    while True:
        # On the type: a wrapper forwards attributes, so every layer would seem to have the methods.
        if all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state")):
            return layer.get_state, layer.set_state
        if not isinstance(layer, gymnasium.Wrapper):
            break
        layer = layer.env
    if not hasattr(layer, "state"):
        return None
    return lambda: layer.state, functools.partial(setattr, layer, "state")


def _size(state: Any) -> int:
    """Return the number of values of a state; 0 if they are not floating-point numbers."""
    try:
        array = np.asarray(state)
    except ValueError:
        return 0
    return array.size if array.ndim and np.issubdtype(array.dtype, np.floating) else 0


def _like(before: Any, numbers: np.ndarray) -> Any:
    """Return numbers in the type and shape of the previous state."""
    if isinstance(before, np.ndarray):
        return numbers.reshape(before.shape).astype(before.dtype)
    return type(before)(numbers.tolist())


def _flat_space(space: gymnasium.Space, name: str) -> spaces.Box:
    image = _image_in(space)
    if image is not None:
        raise ValueError(
            f"observation space: {name} observes images of shape {image.shape}, and the policy is a "
            "network on vectors; wrap the environment so that it returns features of the image"
        )
    flat = spaces.flatten_space(space) if space.is_np_flattenable else None
    if not isinstance(flat, spaces.Box):
        raise ValueError(f"observation space: {name} has {space}, which has no fixed size")
    try:
        np.asarray(spaces.flatten(space, space.sample()), np.float32)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"observation space: {name} has {space}, which is not numeric") from error
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (flat.low, flat.high))
    return spaces.Box(low, high, dtype=np.float32)


def _image_in(space: gymnasium.Space) -> spaces.Box | None:
    """Return the first image in a space: a box of bytes with two or more axes, or with three axes."""
    if isinstance(space, spaces.Box):
        axes = len(space.shape)
        return space if axes >= 3 or (axes == 2 and space.dtype == np.uint8) else None
    parts: Any = space if isinstance(space, spaces.Tuple) else ()
    parts = space.values() if isinstance(space, spaces.Dict) else parts
    return next((image for image in map(_image_in, parts) if image is not None), None)
