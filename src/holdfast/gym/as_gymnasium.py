"""Holdfast's tables and simulators as Gymnasium environments, for other training libraries.

`info` contains all costs in "costs", and the first in "cost". A utility with a lower bound becomes the
cost −utility. Gymnasium's generator draws all random numbers, so a seed repeats an episode.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_choice
from holdfast._support.compilation import compiled_simulation
from holdfast.environments import MODELS
from holdfast.environments.gathering import ARENA
from holdfast.environments.point_gather import PointGather
from holdfast.environments.table_simulator import SIMULATORS, TableSimulator
from holdfast.gym.costs import cost_info
from holdfast.gym.making import found_by_name
from holdfast.model import Kernel, RobustCMDP
from holdfast.simulators.environment import Box, Environment, GaussianNoise

if TYPE_CHECKING:
    from holdfast.gym.mujoco.drawing import Drawing

RenderMode = Literal["ansi", "rgb_array"]
_CELL = 24  # Side of a state in the picture, in pixels.
_COLOURS = {
    "state": (222, 228, 236),
    "end": (150, 158, 170),
    "here": (213, 94, 0),
    "edge": (255, 255, 255),
}


class TableEnv(gymnasium.Env):
    """A table as a Gymnasium environment: observations are states.

    An episode starts in a state from the initial distribution, moves under the nominal kernel, and
    terminates on entering an absorbing state without reward and costs.

    Arguments:
        model: a `RobustCMDP`, or a name in `hf.environments.MODELS`.
        render_mode: "ansi" for a line of text; "rgb_array" for a picture of all states, in a square if
            their number is one and in a row otherwise.

    Example:
        >>> import gymnasium, holdfast
        >>> env = gymnasium.make("holdfast/Gambler-v0")
        >>> balance, _ = env.reset(seed=0, options={"state": 10})
        >>> balance, reward, terminated, truncated, info = env.step(4)
        >>> int(balance), reward, terminated, info["cost"] <= 0
        (5, 0.0, False, True)
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}

    def __init__(
        self, model: RobustCMDP | str = "gambler", render_mode: RenderMode | None = None
    ) -> None:
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.model: RobustCMDP = found_by_name("model", model, MODELS)
        self.simulator = TableSimulator(self.model)
        self.render_mode = render_mode
        self.observation_space = spaces.Discrete(self.model.states)
        self.action_space = spaces.Discrete(self.model.actions)
        signals = [self.model.reward, *(-c.utility for c in self.model.constraints)]
        # With an axis for outcomes, of length 1 if a signal does not depend on them.
        self._signals = [s if s.ndim == 3 else s[..., None] for s in signals]
        self._ends = np.asarray(self.simulator.ends)
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Start in a state from the initial distribution, or in `options["state"]`."""
        super().reset(seed=seed)
        if options and "state" in options:
            state = int(options["state"])
            if not 0 <= state < self.model.states:
                raise ValueError(f"state: expected 0 to {self.model.states - 1}, got {state}")
        else:
            state = int(self.np_random.choice(self.model.states, p=self.model.initial))
        self._state = state
        return state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take a step under the nominal kernel."""
        pair = (self._state, int(action))
        row = self.model.nominal[pair]
        outcome = int(self.np_random.choice(len(row), p=row))
        reward, *costs = (np.broadcast_to(s[pair], row.shape)[outcome] for s in self._signals)
        kernel = self.model.transitions
        self._state = int(
            kernel.successors[pair][outcome] if isinstance(kernel, Kernel) else outcome
        )
        terminated = bool(self._ends[self._state])
        return self._state, float(reward), terminated, False, cost_info(costs)

    def render(self) -> str | np.ndarray | None:
        """Return the current state as text or picture."""
        if self.render_mode is None:
            return None
        if self.render_mode == "ansi":
            return f"state {self._state} of {self.model.states}"
        states = self.model.states
        side = round(states**0.5)
        columns = side if side * side == states else states
        rows = -(-states // columns)
        cells = np.full((rows, columns, 3), _COLOURS["state"], np.uint8)
        cells.reshape(-1, 3)[self._ends] = _COLOURS["end"]
        cells.reshape(-1, 3)[self._state] = _COLOURS["here"]
        picture = cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
        for edge in (0, _CELL - 1):
            picture[edge::_CELL] = picture[:, edge::_CELL] = _COLOURS["edge"]
        return picture


class SimulatorEnv(gymnasium.Env):
    """A simulator as a Gymnasium environment, under its nominal noise.

    Arguments:
        simulator: an `Environment`, or a name in `hf.environments.SIMULATORS`.
        render_mode: "rgb_array", for Point Gather only: a MuJoCo picture if MuJoCo is installed, and
            otherwise a plot of the trajectory.

    Example:
        >>> import gymnasium, holdfast
        >>> env = gymnasium.make("holdfast/PointGather-v0")
        >>> observation, _ = env.reset(seed=0)
        >>> observation.shape
        (29,)
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self, simulator: Environment | str = "point-gather", render_mode: str | None = None
    ) -> None:
        check_choice("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.simulator: Environment = found_by_name("simulator", simulator, SIMULATORS)
        simulator = self.simulator
        if render_mode is not None and not isinstance(simulator, PointGather):
            raise ValueError(f"render_mode: {simulator.name} has no pictures, got {render_mode!r}")
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (simulator.observation_size,))
        space = simulator.action_space
        self.action_space: Any = (
            spaces.Box(*np.array([space.low, space.high], np.float32))
            if isinstance(space, Box)
            else spaces.Discrete(space.count)
        )
        self._reset = compiled_simulation(simulator.reset)
        self._step = compiled_simulation(simulator.step)
        self._probabilities = compiled_simulation(simulator.outcome_probabilities)
        self._state: Any = None
        # The trajectory, kept only for pictures.
        self._states: list[Any] = []
        self._records: list[tuple[Any, ...]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; there are no options."""
        super().reset(seed=seed, options=options)
        key = jax.random.PRNGKey(int(self.np_random.integers(2**31)))
        self._state, observation = self._reset(key)
        self._states, self._records = [self._state], []
        return np.asarray(observation, np.float32), {}

    def step(self, action: ArrayLike) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step under noise from the nominal distribution."""
        return self.step_under(action, self._draw(action))

    def step_under(
        self, action: ArrayLike, disturbance: ArrayLike
    ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step under a given disturbance."""
        found = self._step(self._state, jnp.asarray(action), jnp.asarray(disturbance))
        self._state = found.state
        if self.render_mode is not None:
            self._states.append(found.state)
            self._records.append((np.asarray(action), found.reward, found.costs))
        return (
            np.asarray(found.observation, np.float32),
            float(found.reward),
            bool(found.terminated),
            False,
            cost_info(found.costs),
        )

    def _draw(self, action: ArrayLike) -> np.ndarray:
        noise = self.simulator.disturbance
        if isinstance(noise, GaussianNoise):
            return self.np_random.standard_normal(noise.size).astype(np.float32)
        row = np.asarray(self._probabilities(self._state, jnp.asarray(action)), float)
        return np.asarray(self.np_random.choice(len(row), p=row / row.sum()))

    def render(self) -> np.ndarray | None:
        """Return a picture of the current state, or a plot of the episode so far."""
        if self.render_mode is None or not isinstance(self.simulator, PointGather):
            return None
        if importlib.util.find_spec("mujoco") is None:
            return self._plot(self.simulator)
        state = self._state
        return self._drawing.show(*map(np.asarray, (state.pose, state.objects, state.present)))

    def _plot(self, simulator: PointGather) -> np.ndarray:
        from holdfast.environments.point_gather_episode import Episode, picture

        states = jax.tree.map(lambda *leaves: np.stack(leaves), *self._states)
        steps = len(self._records)
        actions, rewards, costs = (
            np.array([record[i] for record in self._records]).reshape(steps, *shape)
            for i, shape in enumerate(((2,), (), (1,)))
        )
        return picture(Episode(simulator, states, actions, rewards, costs))

    @functools.cached_property
    def _drawing(self) -> Drawing:
        from holdfast.gym.mujoco import drawing, models

        return drawing.Drawing(models.drawn_gather(models.point(), walls_at=ARENA))

    def close(self) -> None:
        """Release the graphics; the next picture opens them again."""
        if "_drawing" in vars(self):
            vars(self).pop("_drawing").close()
