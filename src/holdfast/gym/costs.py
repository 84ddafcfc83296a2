"""Costs: an entry of `info`, the third of the six values of a step, or a function of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


class Transition(NamedTuple):
    """One step of an environment, the argument of a cost function.

    Values are those of the environment, without the noise that `Observations` adds.

    Attributes:
        observation: observation before the step.
        action: action that the environment received.
        reward: reward of the step.
        next_observation: observation after the step.
        terminated: whether the step ended the episode.
        info: the dictionary that `env.step` returned.

    Example:
        >>> step = Transition([0.0], [1.0], 0.5, [0.2], False, {"x_velocity": 3.0})
        >>> too_fast = lambda step: float(step.info["x_velocity"] > 2)
        >>> too_fast(step)
        1.0
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    terminated: Any
    info: Mapping[str, Any]


CostFunction = Callable[[Transition], float]
CostSource = str | CostFunction
GivenCost = CostSource | Mapping[str, CostSource] | None


@dataclasses.dataclass(frozen=True)
class SpeedLimit:
    """A cost of 1 for each step above a speed; made by `speed_limit`."""

    limit: float
    key: str | tuple[str, ...] | None = None
    planar: bool | None = None

    def __call__(self, transition: Transition) -> float:
        """Return the cost of one step."""
        return float(self.of_info(transition.info))

    def of_info(self, info: Mapping[str, ArrayLike]) -> Float[np.ndarray, "..."]:
        """Return the cost of one step from numbers in `info`, or of many steps from arrays.

        Raises:
            KeyError: `info` has no such entry.
        """
        keys = self.key
        if keys is None:
            planar = "y_velocity" in info if self.planar is None else self.planar
            keys = ("x_velocity", "y_velocity") if planar else "x_velocity"
        if isinstance(keys, str):
            speed = np.asarray(info[keys], np.float64)
        else:
            speed = np.sqrt(sum(np.square(np.asarray(info[key], np.float64)) for key in keys))
        return (speed > self.limit).astype(np.float64)


def speed_limit(
    limit: float, key: str | tuple[str, ...] | None = None, planar: bool | None = None
) -> SpeedLimit:
    """Return a cost function that is 1 for each step above a speed, and 0 otherwise.

    Arguments:
        limit: the largest speed without cost, in metres per second for Gymnasium's robots.
        key: the entry of `info` that contains the speed, with its sign; or several entries, of which the
            Euclidean norm is the speed. By default "x_velocity", or that and "y_velocity".
        planar: whether both velocities count. By default they do if `info` has both, as for Ant and
            Swimmer; HalfCheetah, Hopper and Walker2d have the first only. Safety-Gymnasium limits
            "x_velocity" for Swimmer: planar=False.

    Raises:
        ValueError: the limit is not a finite number, or both `key` and `planar` are given.

    Example:
        >>> cost = speed_limit(2.0)
        >>> cost.of_info({"x_velocity": [1.0, 2.5]})
        array([0., 1.])
        >>> cost.of_info({"x_velocity": [1.5], "y_velocity": [1.5]})
        array([1.])
    """
    if not isinstance(limit, int | float) or not np.isfinite(limit):
        raise ValueError(f"limit: expected a finite number, got {limit!r}")
    if key is not None and planar is not None:
        raise ValueError("planar: key already selects the entries of info; give one of the two")
    keys = key if key is None or isinstance(key, str) else tuple(key)
    return SpeedLimit(float(limit), keys, planar)


def cost_info(costs: ArrayLike) -> dict[str, Any]:
    """Return the entries of `info` for the costs of a step: "costs", and "cost" for the first.

    Example:
        >>> cost_info([0.5, 2.0])
        {'costs': array([0.5, 2. ]), 'cost': 0.5}
    """
    found = np.asarray(costs, np.float64)
    return {"costs": found, "cost": float(found[0])} if len(found) else {"costs": found}


class CostError(ValueError):
    """A cost is missing, or is not a number."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of an environment, by name.

    Attributes:
        sources: source of each cost: a key of `info`, or a function of a `Transition`.
        environment: name of the environment, for messages.
        is_default: whether the user gave no cost.

    Example:
        >>> costs = Costs.resolve({"speed": speed_limit(2.0), "near": "cost_sum"})
        >>> step = Transition(0, 0, 0.0, 0, False, {"x_velocity": 3.0, "cost_sum": 0.5})
        >>> costs.names, costs.of(step)
        (('speed', 'near'), array([1. , 0.5]))
    """

    sources: Mapping[str, CostSource]
    environment: str = "the environment"
    is_default: bool = False

    @classmethod
    def resolve(cls, cost: GivenCost, environment: str = "the environment") -> Costs:
        """Return costs from the `cost` argument of `disturb`.

        Arguments:
            cost: a key of `info`; a function of a `Transition`; a mapping from names to these; {} for no
                cost; None for the cost of a six-value step, or else `info["cost"]`.
            environment: name of the environment, for messages.

        Raises:
            TypeError: the argument is none of these.
        """
        if cost is None:
            return cls({"cost": "cost"}, environment, is_default=True)
        if isinstance(cost, Mapping):
            sources = dict(cost)
        elif isinstance(cost, str):
            sources = {cost: cost}
        else:
            name = "speed" if isinstance(cost, SpeedLimit) else getattr(cost, "__name__", "cost")
            sources = {name if name.isidentifier() else "cost": cost}
        for name, source in sources.items():
            if not isinstance(name, str) or not (isinstance(source, str) or callable(source)):
                raise TypeError(
                    "cost: expected a key of info, a function of a transition, or a mapping from "
                    f"names to these, got {cost!r}"
                )
        return cls(sources, environment)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the costs, in the given order."""
        return tuple(self.sources)

    def of(self, transition: Transition) -> Float[np.ndarray, " costs"]:
        """Return the costs of one step.

        Raises:
            ValueError: `info` has no such entry, or a cost is not one number.
        """
        found = [
            self._number(name, self._looked_up(source, transition))
            for name, source in self.sources.items()
        ]
        return np.array(found, np.float64)

    def of_rows(self, transitions: Transition) -> Float[np.ndarray, "rows costs"]:
        """Return the costs of many steps; each field and each entry of `info` has one row for each step.

        Raises:
            ValueError: `info` has no such entry, or a cost is not one number.
        """
        found = np.empty((len(transitions.reward), len(self.sources)))
        for i, (name, source) in enumerate(self.sources.items()):
            if isinstance(source, str | SpeedLimit):
                found[:, i] = self._looked_up(source, transitions)
                continue
            for row in range(len(found)):
                info = {key: entry[row] for key, entry in transitions.info.items()}
                fields: Any = (field[row] for field in transitions[:-1])
                found[row, i] = self._number(name, source(Transition(*fields, info=info)))
        return found

    def _looked_up(self, source: CostSource, transition: Transition) -> Any:
        """Return the value of a source, and name the entries of `info` if one is missing."""
        info = transition.info
        if not isinstance(source, str | SpeedLimit):
            return source(transition)
        try:
            return info[source] if isinstance(source, str) else source.of_info(info)
        except KeyError as error:
            hint = "pass cost=..."
            if isinstance(source, SpeedLimit):
                hint = "name the entry that contains the speed with speed_limit(..., key=...)"
            known = ", ".join(map(str, info)) or "none"
            raise CostError(
                f"cost: the info of {self.environment} has no {error.args[0]!r} (it has {known}); {hint}"
            ) from None

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            number = np.asarray(value)
        except ValueError:
            number = np.zeros(0)
        if number.size != 1 or number.dtype.kind not in "fiub":
            shown = f"an array of shape {number.shape}" if number.size > 1 else repr(value)
            raise CostError(f"cost: {name!r} of {self.environment} is {shown}, not one number")
        return float(number.item())

    @property
    def is_rebuildable(self) -> bool:
        """Whether `cost_from` can rebuild the costs: none is a function of the user's.

        Such costs read `info` only. A function may read every field of a transition.
        """
        return all(isinstance(source, str | SpeedLimit) for source in self.sources.values())

    def describe(self) -> dict[str, Any]:
        """Return the costs as JSON values, with functions by their names."""
        if self.is_default:
            return {"cost": {"kind": "default"}}
        return {name: _description(source) for name, source in self.sources.items()}


def cost_from(description: Mapping[str, Any]) -> GivenCost:
    """Return the `cost` argument of the costs that `Costs.describe` described.

    Raises:
        ValueError: a cost is a function of the user's, of which only the name is known.
    """
    if description.get("cost", {}).get("kind") == "default":
        return None
    sources: dict[str, CostSource] = {}
    for name, each in description.items():
        if each["kind"] == "function":
            raise ValueError(f"cost: {name!r} is the function {each['name']}; pass it again")
        key: Any = tuple(each["key"]) if isinstance(each["key"], list) else each["key"]
        is_info = each["kind"] == "info"
        sources[name] = key if is_info else SpeedLimit(each["limit"], key, each["planar"])
    return sources


def _description(source: CostSource) -> dict[str, Any]:
    if isinstance(source, str):
        return {"kind": "info", "key": source}
    if isinstance(source, SpeedLimit):
        return {"kind": "speed_limit", **dataclasses.asdict(source)}
    named = source if hasattr(source, "__qualname__") else type(source)
    return {"kind": "function", "name": f"{named.__module__}.{named.__qualname__}"}
