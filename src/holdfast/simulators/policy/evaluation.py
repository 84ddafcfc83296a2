"""How a trained policy does: what episodes pay and cost, with confidence intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import check_whole_number
from holdfast.model import RobustCMDP
from holdfast.registry import ENVIRONMENTS, imported
from holdfast.simulators.certificates.attack import play_nominal
from holdfast.simulators.certificates.stress_result import Interval, measured
from holdfast.simulators.environment import Discrete, Environment
from holdfast.simulators.stress import common_environment, frozen_agent
from holdfast.simulators.training.loop import host_failure

if TYPE_CHECKING:
    import gymnasium

    from holdfast.simulators.policy.agent import Agent


@dataclasses.dataclass(frozen=True, eq=False)
class AgentEvaluation:
    """What `Agent.evaluate` found; printing it shows a table.

    Attributes:
        environment: its name.
        agent: algorithm and seed.
        cost_names: of the costs.
        limits: of the costs.
        episode_rewards: what each episode paid.
        episode_costs: what each episode cost, a column for every cost.
        reward: mean of the rewards, with its percentile bootstrap interval.
        costs: the same for every cost.
        over_limit: for every cost the share of episodes that cost more than its limit, with its Wilson
            interval. A limit holds for the mean, so that single episodes may well be over it.
        setup: how it was done: episodes, whether actions were the most likely ones, confidence, seed,
            and limit_on, which says whether sums are plain ("episode") or discounted.
    """

    environment: str
    agent: str
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    episode_rewards: Float[np.ndarray, " episodes"]
    episode_costs: Float[np.ndarray, "episodes costs"]
    reward: Interval
    costs: tuple[Interval, ...]
    over_limit: tuple[Interval, ...]
    setup: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        rows = zip(self.cost_names, self.limits, self.costs, self.over_limit, strict=True)
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
                    "verdict": _verdict(cost, limit),
                }
                for name, limit, cost, share in rows
            ],
            "episode_rewards": self.episode_rewards.tolist(),
            "episode_costs": self.episode_costs.tolist(),
        }

    def __str__(self) -> str:
        how = "most likely" if self.setup["deterministic"] else "drawn"
        table = [
            ("", "mean", "episodes over the limit", ""),
            ("reward", _shown(self.reward), "", ""),
        ]
        rows = zip(self.cost_names, self.limits, self.costs, self.over_limit, strict=True)
        for name, limit, cost, share in rows:
            over = f"{_percent(share.mean)} [{_percent(share.low)}, {_percent(share.high)}]"
            table.append((f"{name} ≤ {limit:g}", _shown(cost), over, _verdict(cost, limit)))
        if not self.costs:
            table = [(*row[:2], "", "") for row in table]
        first, second, third, _ = (max(map(len, column)) for column in zip(*table, strict=True))
        lines = [f"{a:{first}}  {b:>{second}}  {c:>{third}}  {d}".rstrip() for a, b, c, d in table]
        title = (
            f"{self.environment}, {self.agent}: mean over {self.setup['episodes']:,} episodes "
            f"[{100 * self.setup['confidence']:g} % interval], {how} actions"
        )
        return "\n".join([title, *lines])


def _shown(interval: Interval) -> str:
    return f"{interval.mean:.4g} [{interval.low:.4g}, {interval.high:.4g}]"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _verdict(cost: Interval, limit: float) -> str:
    if cost.low > limit:
        return "violated"
    return "undecided" if cost.high > limit else ""


def wilson(successes: int, trials: int, confidence: float) -> Interval:
    """A share with its Wilson interval, which is no point where the share is 0 or 1.

    Example:
        >>> [round(each, 4) for each in wilson(0, 100, 0.95)]
        [0.0, 0.0, 0.037]
    """
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    shrunk = trials / (trials + z * z)
    middle = shrunk * (share + z * z / (2 * trials))
    half = shrunk * z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    # Where it is exactly 0 or 1 rounding would leave a crumb.
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == trials else middle + half
    return Interval(share, low, high)


def evaluate_agent(
    agent: Agent,
    environment: str | RobustCMDP | Environment | gymnasium.Env | None,
    *,
    episodes: int,
    deterministic: bool,
    confidence: float,
    seed: int,
) -> AgentEvaluation:
    """What `Agent.evaluate` gives, which says what the arguments are."""
    check_whole_number("episodes", episodes, least=2)
    check_whole_number("seed", seed, least=0)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
    if _is_simulator(environment):
        if environment is not None:
            environment = imported("holdfast.verbs:as_simulator")(environment)
        env = common_environment((agent,), environment)  # type: ignore[arg-type]
        name, names = env.name, env.cost_names
        frozen, limits = frozen_agent(agent, env, deterministic)
        try:
            found = np.asarray(play_nominal(frozen, jax.random.PRNGKey(seed), episodes), float)
        except jax.errors.JaxRuntimeError as error:
            raise host_failure(env, error) from None
        returns = found * np.array([1.0] + [-1.0] * len(names))  # a cost is paid as its negative
    else:
        gym_env = _made(environment)
        name, limits = _name(gym_env), agent.limits
        try:
            player = Player(agent, gym_env, deterministic=deterministic, seed=seed)
            returns = _played(player, episodes, seed)
        finally:
            if isinstance(environment, str):
                gym_env.close()
        own = () if agent.environment is None else agent.environment.cost_names
        names = own if len(own) == len(limits) else _cost_names(len(limits))
    if not np.isfinite(returns).all():
        raise FloatingPointError(f"{name} returned something that is not a finite number")
    means = [measured([column], confidence, seed) for column in returns.T]
    over = (returns[:, 1:] > np.array(limits)).sum(0).tolist()
    return AgentEvaluation(
        environment=name,
        agent=f"{agent.algorithm}-{agent.seed}",
        cost_names=tuple(names),
        limits=tuple(limits),
        episode_rewards=returns[:, 0],
        episode_costs=returns[:, 1:],
        reward=means[0].agents[0],
        costs=tuple(each.agents[0] for each in means[1:]),
        over_limit=tuple(wilson(count, episodes, confidence) for count in over),
        setup={
            "episodes": int(episodes),
            "deterministic": bool(deterministic),
            "limit_on": agent.settings.limit_on,
            "confidence": float(confidence),
            "seed": int(seed),
        },
    )


def _is_simulator(environment: Any) -> bool:
    if isinstance(environment, str):
        return environment in ENVIRONMENTS
    return environment is None or isinstance(environment, Environment | RobustCMDP)


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


def _name(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _cost_names(count: int) -> tuple[str, ...]:
    return ("cost",) if count == 1 else tuple(f"cost {i}" for i in range(count))


class Played(NamedTuple):
    """What one step of a Gymnasium environment gave."""

    reward: float
    costs: tuple[float, ...] | None
    over: bool


class Player:
    """A policy that plays a Gymnasium environment, a step at a time.

    Arguments:
        agent: whose policy it is.
        env: the environment.
        deterministic: take the most likely actions.
        seed: of actions that are drawn.
        steps: after which an episode is cut, if it is still on; the environment's time limit, or else
            the horizon of what the agent was trained in, if left out.

    Raises:
        ValueError: observations or actions do not fit the policy's, or nothing ends an episode.
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
        from gymnasium import spaces

        self.agent, self.env, self.deterministic = agent, env, deterministic
        self._generator = np.random.default_rng(seed)
        self._space = env.observation_space
        space, policy = env.action_space, agent.policy.space
        name, inputs = _name(env), agent.arrays.inputs
        try:
            size = spaces.flatdim(self._space)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(f"environment: {name} has no flat observations ({error})") from error
        if size != inputs:
            raise ValueError(
                f"environment: {name} has {size} numbers in an observation, the policy takes {inputs}"
            )
        if isinstance(policy, Discrete):
            fits = isinstance(space, spaces.Discrete) and int(space.n) == policy.count
        else:
            fits = isinstance(space, spaces.Box) and math.prod(space.shape) == policy.size
        if not fits:
            raise ValueError(f"environment: {name} has actions {space}, the policy {policy}")
        self._left = self._steps = _time_limit(env, agent) if steps is None else steps
        self._observation: Any = None

    def start(self, seed: int | None = None) -> None:
        """Begins an episode."""
        self._observation, _ = self.env.reset(seed=seed)
        self._left = self._steps

    def step(self) -> Played:
        """One step of it."""
        result = self.env.step(self._action())
        if len(result) == 6:  # as Safety-Gymnasium has it
            self._observation, reward, cost, terminated, truncated, _ = result
            costs = (float(cost),)
        else:
            self._observation, reward, terminated, truncated, info = result
            costs = _costs(info)
        self._left -= 1
        return Played(float(reward), costs, bool(terminated or truncated or self._left == 0))

    def _action(self) -> Any:
        from gymnasium import spaces

        seen = self._observation
        if not hasattr(self.agent.environment, "encode"):
            seen = spaces.flatten(self._space, seen)
        action = self.agent.predict(seen, self.deterministic, generator=self._generator)
        space = self.env.action_space
        decoded = hasattr(self.agent.environment, "decode")
        if isinstance(space, spaces.Discrete):
            return int(action) + (0 if decoded else int(space.start))
        action = np.rint(action) if np.issubdtype(space.dtype, np.integer) else action
        return action.reshape(space.shape).astype(space.dtype)


def _time_limit(env: gymnasium.Env, agent: Agent) -> int:
    """The environment's own, else the horizon of what the agent was trained in."""
    if env.has_wrapper_attr("_max_episode_steps"):  # of a TimeLimit somewhere around it
        return int(env.get_wrapper_attr("_max_episode_steps"))
    known = env.spec.max_episode_steps if env.spec is not None else None
    known = known or agent.description.get("horizon")
    if known is None:
        raise ValueError(
            f"environment: {_name(env)} has no time limit; gymnasium.wrappers.TimeLimit adds one"
        )
    return int(known)


def _costs(info: dict[str, Any]) -> tuple[float, ...] | None:
    if "costs" in info:
        return tuple(np.ravel(info["costs"]).astype(float).tolist())
    return (float(info["cost"]),) if "cost" in info else None


def _played(player: Player, episodes: int, seed: int) -> Float[np.ndarray, "episodes signals"]:
    """What each episode pays in the reward and in every cost that the agent has a limit for."""
    agent, name = player.agent, _name(player.env)
    count, discount = len(agent.limits), _discount(agent)
    returns = np.zeros((episodes, 1 + count))
    for episode in range(episodes):
        # One seed for all of them: what follows the first is drawn from the same generator.
        player.start(seed if episode == 0 else None)
        weight, over = 1.0, False
        while not over:
            reward, costs, over = player.step()
            if count and costs is None:
                raise ValueError(
                    f"environment: {name} gives no cost: none in info['cost'] or info['costs'], and "
                    "no six values; hf.disturb(env, cost=...) adds one"
                )
            if count and costs is not None and len(costs) != count:
                raise ValueError(
                    f"environment: {name} gives {len(costs)} cost(s), the agent has {count} limit(s)"
                )
            returns[episode] += weight * np.array((reward, *(costs or ())[:count]))
            weight *= discount
    return returns


def _discount(agent: Agent) -> float:
    """1 where an episode's plain sum counts."""
    if agent.settings.limit_on == "episode":
        return 1.0
    own = None if agent.environment is None else agent.environment.discount
    own = agent.description.get("discount") if own is None else own
    found = agent.settings.discount if agent.settings.discount is not None else own
    if found is None:
        raise ValueError("agent: it was saved without its simulator, whose discount is needed here")
    return float(found)
