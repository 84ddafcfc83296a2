"""A policy that acts in a Gymnasium environment, one step at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from holdfast.simulators.environment import Discrete

if TYPE_CHECKING:
    import gymnasium

    from holdfast.simulators.policy.agent import Agent


class GymnasiumStep(NamedTuple):
    """Reward and costs of one step, and whether the episode is over; costs are None if unknown."""

    reward: float
    costs: tuple[float, ...] | None
    over: bool


class GymnasiumPlayer:
    """A policy that plays a Gymnasium environment, one step at a time.

    Arguments:
        agent: the agent that acts.
        env: the environment.
        deterministic: take the most likely action instead of a drawn one.
        seed: seed of drawn actions.
        steps: number of steps after which an episode is cut; by default the environment's time limit,
            or else the horizon of the simulator in which the agent was trained.

    Raises:
        ValueError: observations or actions do not fit the policy's, or there is no time limit.
    """

    def __init__(
        self,
        agent: Agent,
        env: gymnasium.Env,
        *,
        deterministic: bool = True,
        seed: int = 0,
        steps: int | None = None,
    ) -> None:
        self.agent, self.env, self.deterministic = agent, env, deterministic
        self.name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._generator = np.random.default_rng(seed)
        self._check_spaces()
        self._left = self._steps = self._time_limit() if steps is None else steps
        self._observation: Any = None

    def start(self, seed: int | None = None) -> None:
        """Begin an episode."""
        self._observation, _ = self.env.reset(seed=seed)
        self._left = self._steps

    def step(self) -> GymnasiumStep:
        """Take one step."""
        result = self.env.step(self._action())
        if len(result) == 6:  # the form of Safety-Gymnasium, with the cost after the reward
            self._observation, reward, cost, terminated, truncated, _ = result
            costs: tuple[float, ...] | None = (float(cost),)
        else:
            self._observation, reward, terminated, truncated, info = result
            found = info.get("costs", info.get("cost"))
            costs = None if found is None else tuple(np.ravel(found).astype(float).tolist())
        self._left -= 1
        return GymnasiumStep(float(reward), costs, bool(terminated or truncated or self._left == 0))

    def _action(self) -> Any:
        from gymnasium import spaces

        own, space = self.agent.environment, self.env.action_space
        observation = self._observation
        if not hasattr(own, "encode"):
            observation = spaces.flatten(self.env.observation_space, observation)
        action = self.agent.predict(observation, self.deterministic, generator=self._generator)
        if isinstance(space, spaces.Discrete):
            return int(action) + (0 if hasattr(own, "decode") else int(space.start))
        action = np.rint(action) if np.issubdtype(space.dtype, np.integer) else action
        return action.reshape(space.shape).astype(space.dtype)

    def _check_spaces(self) -> None:
        from gymnasium import spaces

        inputs, policy = self.agent.arrays.inputs, self.agent.policy.space
        space = self.env.action_space
        try:
            size = spaces.flatdim(self.env.observation_space)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                f"environment: {self.name} has no flat observations ({error})"
            ) from error
        if size != inputs:
            raise ValueError(
                f"environment: {self.name} has {size} numbers in an observation, the policy takes "
                f"{inputs}"
            )
        if isinstance(policy, Discrete):
            fits = isinstance(space, spaces.Discrete) and int(space.n) == policy.count
        else:
            fits = isinstance(space, spaces.Box) and math.prod(space.shape) == policy.size
        if not fits:
            raise ValueError(f"environment: {self.name} has actions {space}, the policy {policy}")

    def _time_limit(self) -> int:
        if self.env.has_wrapper_attr("_max_episode_steps"):  # an attribute of a TimeLimit wrapper
            return int(self.env.get_wrapper_attr("_max_episode_steps"))
        known = self.env.spec.max_episode_steps if self.env.spec is not None else None
        known = known or self.agent.description.get("horizon")
        if known is None:
            raise ValueError(
                f"environment: {self.name} has no time limit; gymnasium.wrappers.TimeLimit adds one"
            )
        return int(known)
