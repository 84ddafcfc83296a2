"""Any table as a simulator, so that what training finds can be held against what is exact."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from holdfast._support.arguments import check_whole_number
from holdfast.model import Kernel, RobustCMDP
from holdfast.registry import ENVIRONMENTS
from holdfast.simulators.environment import Discrete, Environment, GaussianNoise, Outcomes, Step

# An episode is cut once the rest of it counts for no more than this.
_FORGOTTEN = 1e-2


class TableSimulator(Environment):
    """A `RobustCMDP` behind the protocol of a simulator.

    The state is its index, and observation and features are its indicator. A step pays what the table
    says, which may depend on the next state. It terminates on entering a state that every action
    leaves as it is and that pays nothing in any signal.

    Constraints are shown as costs, with the limits that belong to them: "cost at most c" as it is, and
    "utility at least d" as the cost −utility with the limit −d.

    *Disturbance.* By default the index k of an outcome of the row (s, a): with successor lists one of
    K, with a dense kernel the next state itself. A distribution of k is a kernel, so that an adversary
    over outcomes can be every kernel of the set. With `disturbance="gaussian"` it is one number
    w ~ N(0, 1), and the outcome is the first whose cumulative probability exceeds Φ(w). That is the
    same nominal kernel, but a Gaussian adversary cannot be every kernel of the set: it can only move
    and widen w, across outcomes in the order of the table. On the rows of the paper's models
    the best Gaussian reaches about 80 % of the worst-case drop of one step (76 to 84 %).

    Arguments:
        model: the table.
        name: what runs and messages call it.
        horizon: steps after which an episode is cut; the first at which discount^horizon ≤ 0.01 if
            left out. What follows a cut has to be bootstrapped.
        disturbance: "outcome" or "gaussian".

    Example:
        >>> import jax.numpy as jnp
        >>> import holdfast as hf
        >>> from holdfast.environments.table_simulator import TableSimulator
        >>> env = TableSimulator(hf.environments.gambler(), name="gambler")
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
    _name: str = eqx.field(static=True)
    _horizon: int = eqx.field(static=True)
    _discount: float = eqx.field(static=True)
    _cost_names: tuple[str, ...] = eqx.field(static=True)
    _cost_limits: tuple[float, ...] = eqx.field(static=True)
    _digest: str = eqx.field(static=True)

    def __init__(
        self,
        model: RobustCMDP,
        *,
        name: str = "table",
        horizon: int | None = None,
        disturbance: Literal["outcome", "gaussian"] = "outcome",
    ) -> None:
        if disturbance not in ("outcome", "gaussian"):
            raise ValueError(f"disturbance: expected 'outcome' or 'gaussian', got {disturbance!r}")
        if horizon is None:
            horizon = _steps_until_forgotten(model.discount)
        check_whole_number("horizon", horizon, least=1)
        successors, probabilities = _outcomes(model)
        # Where a cost is turned into a utility, `Constraint` does it; here it is turned back for all.
        costs = [-constraint.utility for constraint in model.constraints]
        lists = isinstance(model.transitions, Kernel)
        self.successors = jnp.asarray(successors, jnp.int32) if lists else None
        self.probabilities = jnp.asarray(probabilities, jnp.float32)
        self.cumulative = _cumulative(probabilities) if disturbance == "gaussian" else None
        self.cumulative_initial = _cumulative(np.asarray(model.initial))
        self.reward = jnp.asarray(model.reward, jnp.float32)
        self.costs = tuple(jnp.asarray(cost, jnp.float32) for cost in costs)
        self.ends = jnp.asarray(_ending_states(successors, probabilities, [model.reward, *costs]))
        self._name = name
        self._horizon = int(horizon)
        self._discount = model.discount
        self._cost_names = tuple(
            f"minus {constraint.name or 'utility'}"
            if constraint.sense == "at_least"
            else constraint.name or "cost"
            for constraint in model.constraints
        )
        self._cost_limits = tuple(
            0.0 - constraint.utility_threshold for constraint in model.constraints
        )
        self._digest = _digest(successors, probabilities, model.initial, model.reward, *costs)

    @property
    def name(self) -> str:
        """What runs and messages call it."""
        return self._name

    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut."""
        return self._horizon

    @property
    def observation_size(self) -> int:
        """The number of states."""
        return self.ends.shape[-1]

    @property
    def feature_size(self) -> int:
        """The number of states."""
        return self.ends.shape[-1]

    @property
    def action_space(self) -> Discrete:
        """The table's actions."""
        return Discrete(self.probabilities.shape[-2])

    @property
    def disturbance(self) -> GaussianNoise | Outcomes:
        """The index of an outcome, or one number that picks it."""
        if self.cumulative is not None:
            return GaussianNoise(1, "outcome", (1.0,))
        return Outcomes(self.probabilities.shape[-1])

    @property
    def cost_names(self) -> tuple[str, ...]:
        """The constraints' names; a utility's with "minus" before it."""
        return self._cost_names

    @property
    def cost_limits(self) -> tuple[float, ...]:
        """The thresholds, in the costs' sense."""
        return self._cost_limits

    @property
    def discount(self) -> float:
        """The model's discount."""
        return self._discount

    @property
    def is_one_hot(self) -> bool:
        """Observations and features are indicators of a state."""
        return True

    def description(self) -> dict[str, Any]:
        """All that defines it, as values that JSON can hold; the table by a digest of its numbers."""
        return {
            **super().description(),
            "discount": self.discount,
            "cost_names": list(self.cost_names),
            "cost_limits": list(self.cost_limits),
            "states": self.observation_size,
            "actions": self.action_space.count,
            "sha256": self._digest,
        }

    def reset(self, key: PRNGKeyArray) -> tuple[Int[Array, ""], Float[Array, " observation"]]:
        """A state from the initial distribution."""
        level = jax.random.uniform(key, (), jnp.float32)
        state = _first_above(self.cumulative_initial, level)
        return state, self.features(state)

    def step(
        self,
        state: Int[Array, ""],
        action: Int[Array, ""],
        disturbance: Int[Array, ""] | Float[Array, "1"],
    ) -> Step:
        """The outcome that the disturbance names or picks."""
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
        """The state's indicator."""
        return jax.nn.one_hot(state, self.feature_size, dtype=jnp.float32)

    def outcome_probabilities(
        self, state: Int[Array, ""], action: Int[Array, ""]
    ) -> Float[Array, " outcomes"]:
        """The table's row."""
        if self.cumulative is not None:
            return super().outcome_probabilities(state, action)
        return self.probabilities[state, action]


def _steps_until_forgotten(discount: float) -> int:
    return math.ceil(math.log(_FORGOTTEN) / math.log(discount)) if discount > _FORGOTTEN else 1


def _outcomes(model: RobustCMDP) -> tuple[np.ndarray, np.ndarray]:
    """Successors, which broadcast against the probabilities, and those."""
    kernel = model.transitions
    if isinstance(kernel, Kernel):
        return kernel.successors, kernel.probabilities
    return np.arange(model.states)[None, None, :], kernel


def _ending_states(
    successors: np.ndarray, probabilities: np.ndarray, signals: list[np.ndarray]
) -> Bool[np.ndarray, " states"]:
    """States that no action leaves and that pay nothing."""
    possible = probabilities > 0
    stays = successors == np.arange(len(probabilities))[:, None, None]
    goes_on = possible & ~stays
    for signal in signals:
        layout = signal if signal.ndim == 3 else signal[..., None]
        goes_on |= possible & (layout != 0)
    return ~goes_on.any(axis=(1, 2))


def _cumulative(rows: Float[np.ndarray, "*rows k"]) -> Float[Array, "*rows k"]:
    """Cumulative probabilities, infinite from the last possible entry on, whatever the rounding."""
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
    """Return a registered environment as a simulator; options go to its constructor.

    Raises:
        ValueError: there is no such name.
    """
    maker = ENVIRONMENTS.find(name)
    if isinstance(maker, type) and issubclass(maker, Environment):
        return maker(**options)
    made = maker()
    return TableSimulator(made, name=name, **options) if isinstance(made, RobustCMDP) else made


# Functions that make each registered environment as a simulator, tables included.
SIMULATORS: dict[str, Callable[..., Environment]] = {
    name: functools.partial(named_simulator, name) for name in ENVIRONMENTS
}
