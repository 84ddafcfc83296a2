"""Episodes of a trained policy: rewards and costs with confidence intervals."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from holdfast.model import RobustCMDP
from holdfast.registry import ENVIRONMENTS, imported
from holdfast.simulators.certificates.attack import play
from holdfast.simulators.certificates.intervals import (
    VERDICT_TEXTS,
    ConfidenceInterval,
    bootstrap_interval,
    share_interval,
    text_table,
    verdict,
)
from holdfast.simulators.environment import Discrete, Environment
from holdfast.simulators.failures import host_failures
from holdfast.simulators.policy.foreign import policy_failures
from holdfast.simulators.stress import check_measurement, common_environment, frozen_agent

if TYPE_CHECKING:
    import gymnasium

    from holdfast.simulators.policy.agent import Agent


@dataclasses.dataclass(frozen=True, eq=False)
class AgentEvaluation:
    """The result of `Agent.evaluate`. Printing it shows a table.

    Attributes:
        environment: name of the environment.
        agent: algorithm and seed.
        cost_names: names of the costs.
        limits: limits of the costs.
        episode_rewards: reward of each episode.
        episode_costs: cost of each episode, one column for each cost.
        reward: mean reward with its percentile bootstrap interval.
        costs: the same for each cost.
        over_limit: for each cost, the share of episodes above its limit with its Wilson interval. A
            limit holds for the mean, so single episodes may exceed it.
        setup: the arguments: episodes, deterministic, confidence, seed; and limit_on, which says
            whether sums are plain ("episode") or discounted.
        drawn: the same with drawn actions; None if one way to act was asked for.
    """

    environment: str
    agent: str
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    episode_rewards: Float[np.ndarray, " episodes"]
    episode_costs: Float[np.ndarray, "episodes costs"]
    reward: ConfidenceInterval
    costs: tuple[ConfidenceInterval, ...]
    over_limit: tuple[ConfidenceInterval, ...]
    setup: dict[str, Any]
    drawn: AgentEvaluation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values that JSON can hold."""
        return {
            "environment": self.environment,
            "agent": self.agent,
            "setup": dict(self.setup),
            "reward": self.reward._asdict(),
            "costs": [
                {
                    "name": name,
                    "limit": limit,
                    **cost._asdict(),
                    "over_limit": share._asdict(),
                    "verdict": verdict(cost, limit),
                }
                for name, limit, cost, share in self._costs()
            ],
            "episode_rewards": self.episode_rewards.tolist(),
            "episode_costs": self.episode_costs.tolist(),
            **({} if self.drawn is None else {"drawn": self.drawn.to_dict()}),
        }

    def _costs(self) -> Any:
        return zip(self.cost_names, self.limits, self.costs, self.over_limit, strict=True)

    def __str__(self) -> str:
        table = [
            ("", "mean", "episodes over the limit" if self.costs else "", ""),
            ("reward", str(self.reward), "", ""),
        ]
        for name, limit, cost, share in self._costs():
            mean, low, high = (f"{100 * each:.3g} %" for each in share)
            text = VERDICT_TEXTS[verdict(cost, limit)]
            table.append((f"{name} ≤ {limit:g}", str(cost), f"{mean} [{low}, {high}]", text))
        actions = "most likely" if self.setup["deterministic"] else "drawn"
        title = (
            f"{self.environment}, {self.agent}: mean over {self.setup['episodes']:,} episodes "
            f"[{100 * self.setup['confidence']:g} % interval], {actions} actions"
        )
        other = [] if self.drawn is None else [str(self.drawn)]
        return "\n".join([title, *text_table(table), *other])


def evaluate_agent(
    agent: Agent,
    environment: str | RobustCMDP | Environment | gymnasium.Env | None,
    episodes: int,
    deterministic: bool | None,
    confidence: float,
    seed: int,
) -> AgentEvaluation:
    """Return the result of `Agent.evaluate`, which documents the arguments."""
    check_measurement(episodes, seed, confidence)
    if deterministic is None:
        likely, drawn = (
            evaluate_agent(agent, environment, episodes, way, confidence, seed)
            for way in (True, False)
        )
        return dataclasses.replace(likely, drawn=drawn)
    play = _play_simulator if _is_simulator(environment) else _play_gymnasium
    name, cost_names, returns = play(agent, environment, episodes, deterministic, seed)
    if not np.isfinite(returns).all():
        raise FloatingPointError(f"{name} returned a number that is not finite")
    reward, *costs = (bootstrap_interval([each], confidence, seed) for each in returns.T)
    over = (returns[:, 1:] > np.array(agent.limits)).sum(0).tolist()
    return AgentEvaluation(
        environment=name,
        agent=agent.label,
        cost_names=cost_names,
        limits=tuple(agent.limits),
        episode_rewards=returns[:, 0],
        episode_costs=returns[:, 1:],
        reward=reward,
        costs=tuple(costs),
        over_limit=tuple(share_interval(count, episodes, confidence) for count in over),
        setup={
            "episodes": int(episodes),
            "deterministic": bool(deterministic),
            "limit_on": agent.settings.limit_on,
            "confidence": float(confidence),
            "seed": int(seed),
        },
    )


Episodes = tuple[str, tuple[str, ...], Float[np.ndarray, "episodes signals"]]


def _is_simulator(environment: Any) -> bool:
    if isinstance(environment, str):
        return environment in ENVIRONMENTS
    return environment is None or isinstance(environment, Environment | RobustCMDP)


def _play_simulator(
    agent: Agent, environment: Any, episodes: int, deterministic: bool, seed: int
) -> Episodes:
    """Return the simulator's name, the names of its costs, and reward and costs of each episode."""
    if environment is not None:
        environment = imported("holdfast.verbs:as_simulator")(environment)
    env = common_environment((agent,), environment)
    frozen, _ = frozen_agent(agent, env, deterministic)
    with host_failures(env), policy_failures((agent,)):
        utilities = np.asarray(play(frozen, jax.random.PRNGKey(seed), episodes), float)
    # Simulated episodes hold utilities; a cost is the negative of its utility.
    signs = np.array([1.0] + [-1.0] * len(env.cost_names))
    return env.name, env.cost_names, utilities * signs


def _play_gymnasium(
    agent: Agent, environment: Any, episodes: int, deterministic: bool, seed: int
) -> Episodes:
    """Return the same for a Gymnasium environment."""
    env = _made(environment)
    count, discount = len(agent.limits), _discount(agent)
    returns = np.zeros((episodes, 1 + count))
    try:
        player = GymnasiumPlayer(agent, env, deterministic=deterministic, seed=seed)
        for episode in range(episodes):
            # The seed starts the environment's generator, which draws all later episodes too.
            player.start(seed if episode == 0 else None)
            weight, over = 1.0, False
            while not over:
                reward, costs, over = player.step()
                costs = () if count == 0 else _checked_costs(player.name, costs, count)
                returns[episode] += weight * np.array((reward, *costs))
                weight *= discount
    finally:
        if isinstance(environment, str):
            env.close()
    names = () if agent.environment is None else agent.environment.cost_names
    if len(names) != count:
        names = ("cost",) if count == 1 else tuple(f"cost {i}" for i in range(count))
    return player.name, names, returns


def _checked_costs(name: str, costs: tuple[float, ...] | None, count: int) -> tuple[float, ...]:
    if costs is None:
        raise ValueError(
            f"environment: {name} gives no cost: none in info['cost'] or info['costs'], and no six "
            "values; hf.disturb(env, cost=...) adds one"
        )
    if len(costs) != count:
        raise ValueError(
            f"environment: {name} gives {len(costs)} cost(s), the agent has {count} limit(s)"
        )
    return costs


def _made(environment: Any) -> gymnasium.Env:
    import gymnasium

    if isinstance(environment, gymnasium.Env):
        return environment
    if not isinstance(environment, str):
        raise ValueError(
            "environment: expected a name, a table, a simulator or a Gymnasium environment, "
            f"got {type(environment).__name__}"
        )
    try:
        return gymnasium.make(environment)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ValueError(f"environment: {environment!r} cannot be made ({error})") from error


def _discount(agent: Agent) -> float:
    """Return the discount of the agent's sums; 1 for plain sums."""
    if agent.settings.limit_on == "episode":
        return 1.0
    own = None if agent.environment is None else agent.environment.discount
    for found in (agent.settings.discount, own, agent.description.get("discount")):
        if found is not None:
            return float(found)
    raise ValueError("agent: it was saved without its simulator, whose discount is needed here")


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
        self.agent.reset()
        self._observation, _ = self.env.reset(seed=seed)
        self._left = self._steps

    def step(self) -> tuple[float, tuple[float, ...] | None, bool]:
        """Take one step; return reward, costs (None if unknown), and whether the episode is over."""
        result = self.env.step(self._action())
        if len(result) == 6:  # the form of Safety-Gymnasium, with the cost after the reward
            self._observation, reward, cost, terminated, truncated, _ = result
            costs: tuple[float, ...] | None = (float(cost),)
        else:
            self._observation, reward, terminated, truncated, info = result
            found = info.get("costs", info.get("cost"))
            costs = None if found is None else tuple(np.ravel(found).astype(float).tolist())
        self._left -= 1
        return float(reward), costs, bool(terminated or truncated or self._left == 0)

    def _action(self) -> Any:
        from gymnasium import spaces

        own, space = self.agent.environment, self.env.action_space
        observation = self._observation
        if not hasattr(own, "encode"):
            observation = spaces.flatten(self.env.observation_space, observation)
        action = self.agent.predict(observation, self.deterministic, generator=self._generator)
        if isinstance(space, spaces.MultiDiscrete) and not hasattr(own, "decode"):
            action = np.array(np.unravel_index(action, space.nvec.ravel())) + space.start.ravel()
        if isinstance(space, spaces.Discrete):
            return int(action) + (0 if hasattr(own, "decode") else int(space.start))
        action = np.rint(action) if np.issubdtype(space.dtype, np.integer) else action
        return action.reshape(space.shape).astype(space.dtype)

    def _check_spaces(self) -> None:
        from gymnasium import spaces

        inputs, policy = self.agent.observation_size, self.agent.policy.space
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
            sizes = getattr(space, "nvec", getattr(space, "n", 0))
            fits = int(np.prod(sizes)) == policy.count
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
