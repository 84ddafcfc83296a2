"""A table run as a simulator, so that training can be compared with exact values."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.arguments import check_choice, check_whole_number
from holdfast._support.fields import constant
from holdfast.model import Kernel, Reach, RobustCMDP
from holdfast.registry import ENVIRONMENTS
from holdfast.simulators.environment import Discrete, Environment, GaussianNoise, Outcomes, Step

# Episodes are cut when 1 % of the discounted weight is left. Training bootstraps the rest from a critic,
# so a smaller remainder would only lengthen the episodes.
_REMAINDER = 1e-2


class TableSimulator(Environment):
    """A `RobustCMDP` with the protocol of a simulator.

    The state is the index of the table's state; observation and features are its one-hot vector. Rewards
    and costs are the table's signals, which may depend on the next state. An episode terminates on
    entering an absorbing state in which all signals are zero.

    Constraints become costs with limits: "cost at most c" is unchanged, and "utility at least d"
    becomes the cost −utility with the limit −d.

    *Disturbance.* By default it is the index k of an outcome of the row (s, a): one of K for successor
    lists, the next state for a dense kernel. A distribution of k is a kernel, so an adversary over
    outcomes reaches every kernel of the set. With `disturbance="gaussian"` it is one number
    w ~ N(0, 1), and the outcome is the first whose cumulative probability exceeds Φ(w). The nominal
    kernel is the same, but a Gaussian adversary only shifts and widens w across the outcomes in the
    table's order. On the paper's models the best Gaussian reaches 76 to 84 % of the worst-case drop of
    one step.

    Arguments:
        model: the table.
        name: name in runs and messages.
        horizon: steps after which an episode is cut; by default the first with discount^horizon ≤ 0.01.
        disturbance: "outcome" or "gaussian".

    Example:
        >>> import jax.numpy as jnp
        >>> import holdfast as hf
        >>> env = hf.environments.TableSimulator(hf.environments.gambler(), name="gambler")
        >>> env.outcome_probabilities(jnp.array(10), jnp.array(5)).tolist()
        [0.6000000238418579, 0.4000000059604645]
        >>> heads = env.step(jnp.array(10), jnp.array(5), jnp.array(0))
        >>> int(heads.state), float(heads.reward), bool(heads.terminated)
        (16, 10.0, True)
        >>> env.cost_names, env.cost_limits
        (('minus utility',), (-2.5,))
    """

    successors: Int[Array, "states actions outcomes"] | None
    probabilities: Float[Array, "states actions outcomes"]
    cumulative: Float[Array, "states actions outcomes"] | None
    cumulative_initial: Float[Array, " states"]
    reward: Float[Array, "..."]
    costs: tuple[Float[Array, "..."], ...]
    ends: Bool[Array, " states"]
    # The defaults only replace the properties of the protocol; the constructor sets all of them.
    name: str = constant("table")
    horizon: int = constant(1)
    discount: float = constant(0.0)
    cost_names: tuple[str, ...] = constant(())
    cost_limits: tuple[float, ...] = constant(())
    digest: str = constant("")

    is_one_hot = True

    def __init__(
        self,
        model: RobustCMDP,
        *,
        name: str = "table",
        horizon: int | None = None,
        disturbance: Literal["outcome", "gaussian"] = "outcome",
    ) -> None:
        check_choice("disturbance", disturbance, ("outcome", "gaussian"))
        reaching = any(isinstance(constraint, Reach) for constraint in model.constraints)
        if model.horizon is not None or model.allowed is not None or reaching:
            raise ValueError(
                "model: a table with a horizon, a reach rule or a rule on actions does not run as a "
                "simulator; use solve and certify"
            )
        if horizon is None:
            slow = model.discount > _REMAINDER
            horizon = math.ceil(math.log(_REMAINDER) / math.log(model.discount)) if slow else 1
        check_whole_number("horizon", horizon, least=1)
        lists = isinstance(model.transitions, Kernel)
        kernel: Any = model.transitions
        successors = kernel.successors if lists else np.arange(model.states)[None, None, :]
        probabilities = model.nominal
        costs = [-constraint.utility for constraint in model.constraints]
        self.successors = jnp.asarray(successors, jnp.int32) if lists else None
        self.probabilities = jnp.asarray(probabilities, jnp.float32)
        self.cumulative = _cumulative(probabilities) if disturbance == "gaussian" else None
        self.cumulative_initial = _cumulative(np.asarray(model.initial))
        self.reward = jnp.asarray(model.reward, jnp.float32)
        self.costs = tuple(jnp.asarray(cost, jnp.float32) for cost in costs)
        self.ends = jnp.asarray(_ending_states(successors, probabilities, [model.reward, *costs]))
        self.name = name
        self.horizon = int(horizon)
        self.discount = model.discount
        self.cost_names = tuple(
            f"minus {constraint.name or 'utility'}"
            if constraint.sense == "at_least"
            else constraint.name or "cost"
            for constraint in model.constraints
        )
        self.cost_limits = tuple(
            0.0 - constraint.utility_threshold for constraint in model.constraints
        )
        self.digest = _digest(successors, probabilities, model.initial, model.reward, *costs)

    @property
    def observation_size(self) -> int:
        """The number of states."""
        return self.ends.shape[-1]

    feature_size = observation_size

    @property
    def signal_ranges(self) -> tuple[tuple[float, float], ...]:
        """The lowest and highest entry of each signal."""
        signals = [np.asarray(each) for each in (self.reward, *self.costs)]
        return tuple((float(each.min()), float(each.max())) for each in signals)

    @property
    def action_space(self) -> Discrete:
        """The table's actions."""
        return Discrete(self.probabilities.shape[-2])

    @property
    def disturbance(self) -> GaussianNoise | Outcomes:
        """The index of an outcome, or one normal number that selects it."""
        if self.cumulative is not None:
            return GaussianNoise(1, "outcome", (1.0,))
        return Outcomes(self.probabilities.shape[-1])

    def description(self) -> dict[str, Any]:
        """Return everything that defines it as JSON values; a digest stands for the table."""
        return {
            **super().description(),
            "discount": self.discount,
            "cost_names": list(self.cost_names),
            "cost_limits": list(self.cost_limits),
            "states": self.observation_size,
            "actions": self.action_space.count,
            "sha256": self.digest,
        }

    def reset(self, key: PRNGKeyArray) -> tuple[Int[Array, ""], Float[Array, " observation"]]:
        """Return a state drawn from the initial distribution."""
        level = jax.random.uniform(key, (), jnp.float32)
        state = _first_above(self.cumulative_initial, level)
        return state, self.features(state)

    def step(
        self,
        state: Int[Array, ""],
        action: Int[Array, ""],
        disturbance: Int[Array, ""] | Float[Array, "1"],
    ) -> Step:
        """Return the step to the outcome that the disturbance selects."""
        outcome = disturbance
        if self.cumulative is not None:
            level = jax.scipy.stats.norm.cdf(disturbance[0])
            outcome = _first_above(self.cumulative[state, action], level)
        new_state = (
            outcome if self.successors is None else self.successors[state, action, outcome]
        ).astype(jnp.int32)
        costs = [_paid(cost, state, action, outcome) for cost in self.costs]
        return Step(
            state=new_state,
            observation=self.features(new_state),
            reward=_paid(self.reward, state, action, outcome),
            costs=jnp.stack(costs) if costs else jnp.zeros(0, jnp.float32),
            terminated=self.ends[new_state],
        )

    def features(self, state: Int[Array, ""]) -> Float[Array, " features"]:
        """Return the state's one-hot vector."""
        return jax.nn.one_hot(state, self.feature_size, dtype=jnp.float32)

    def outcome_probabilities(
        self, state: Int[Array, ""], action: Int[Array, ""]
    ) -> Float[Array, " outcomes"]:
        """Return the table's row."""
        if self.cumulative is not None:
            return super().outcome_probabilities(state, action)
        return self.probabilities[state, action]


def _ending_states(
    successors: np.ndarray, probabilities: np.ndarray, signals: list[np.ndarray]
) -> Bool[np.ndarray, " states"]:
    """Return the absorbing states in which all signals are zero."""
    possible = probabilities > 0
    goes_on = possible & (successors != np.arange(len(probabilities))[:, None, None])
    for signal in signals:
        layout = signal if signal.ndim == 3 else signal[..., None]
        goes_on |= possible & (layout != 0)
    return ~goes_on.any(axis=(1, 2))


def _cumulative(rows: Float[np.ndarray, "*rows k"]) -> Float[Array, "*rows k"]:
    """Return cumulative probabilities, infinite from the last possible entry on.

    Rounding leaves the last sum above or below one; infinity makes the last possible entry, and no
    later one, the outcome of every larger level.
    """
    index = np.arange(rows.shape[-1])
    last = np.where(rows > 0, index, 0).max(-1, keepdims=True)
    return jnp.asarray(np.where(index < last, np.cumsum(rows, -1), np.inf), jnp.float32)


def _first_above(cumulative: Float[Array, " k"], level: Float[Array, ""]) -> Int[Array, ""]:
    return (cumulative <= level).sum(dtype=jnp.int32)


def _paid(
    signal: Float[Array, "..."], state: Int[Array, ""], action: Int[Array, ""], outcome: Any
) -> Float[Array, ""]:
    return signal[state, action] if signal.ndim == 2 else signal[state, action, outcome]


def _digest(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(array)
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def named_simulator(name: str, **options: Any) -> Environment:
    """Return a registered environment as a simulator.

    Arguments:
        name: a registered name, or an import string `package.module:attribute`.
        **options: arguments of the registered function; for a table, also of `TableSimulator`.

    Raises:
        ValueError: there is no such name.
        TypeError: an option is not an argument, or the function returns something else.

    Example:
        >>> env = named_simulator("n-chain", nodes=5, horizon=20)
        >>> env.observation_size, env.horizon
        (5, 20)
    """
    make = ENVIRONMENTS.find(name)
    accepted = inspect.signature(make).parameters
    made = make(**{key: value for key, value in options.items() if key in accepted})
    rest = {key: value for key, value in options.items() if key not in accepted}
    if isinstance(made, RobustCMDP):
        return TableSimulator(made, name=name, **rest)
    if not isinstance(made, Environment):
        raise TypeError(
            f"environment: expected {name!r} to return a RobustCMDP or an Environment, got {made!r}"
        )
    if rest:
        raise TypeError(f"{min(rest)}: {name} has no such argument, got {rest[min(rest)]!r}")
    return made


class _Simulators(Mapping[str, Callable[..., Environment]]):
    """A view of the registered environments, each as a function that returns a simulator."""

    def __getitem__(self, name: str) -> Callable[..., Environment]:
        if name not in ENVIRONMENTS.targets:
            raise KeyError(name)
        return functools.partial(named_simulator, name)

    def __iter__(self) -> Iterator[str]:
        return iter(ENVIRONMENTS)

    def __len__(self) -> int:
        return len(ENVIRONMENTS)


SIMULATORS = _Simulators()
