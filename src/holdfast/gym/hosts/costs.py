"""What counts as a cost: an entry of `info`, Safety-Gymnasium's sixth value, or a function of a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


class Transition(NamedTuple):
    """One step of an environment, as it was there: without noise on what the policy sees.

    Attributes:
        observation: before the step.
        action: as the environment took it.
        reward: of the step.
        next_observation: after it.
        terminated: whether the episode ended with it.
        info: what else the environment says.
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
    """A cost of 1 for every step over a speed; see `speed_limit`."""

    limit: float
    key: str | tuple[str, ...] | None = None
    planar: bool | None = None

    def __call__(self, transition: Transition) -> float:
        """The cost of one step."""
        info, keys = transition.info, self._keys(transition.info)
        # Plain numbers: for one step NumPy would take ten times as long.
        if isinstance(keys, str):
            return float(float(info[keys]) > self.limit)
        return float(math.hypot(*(float(info[key]) for key in keys)) > self.limit)

    def of_info(self, info: Mapping[str, ArrayLike]) -> Float[np.ndarray, "..."]:
        """The costs of as many steps as the entries of `info` have numbers.

        Raises:
            KeyError: there is no such entry.
        """
        keys = self._keys(info)
        if isinstance(keys, str):
            speed = np.asarray(info[keys], np.float64)
        else:
            speed = np.sqrt(sum(np.square(np.asarray(info[key], np.float64)) for key in keys))
        return (speed > self.limit).astype(np.float64)

    def _keys(self, info: Mapping[str, Any]) -> str | tuple[str, ...]:
        if self.key is not None:
            return self.key
        planar = self.planar
        if planar is None:
            planar = "x_velocity" in info and "y_velocity" in info
        return ("x_velocity", "y_velocity") if planar else "x_velocity"


def speed_limit(
    limit: float, key: str | tuple[str, ...] | None = None, planar: bool | None = None
) -> SpeedLimit:
    """A cost of 1 for every step over a speed, and 0 for the others.

    Arguments:
        limit: in the environment's own units, metres a second for Gymnasium's robots.
        key: the entry of `info` that is the speed, its sign counting; or several, whose length it is. If
            left out, "x_velocity" or that and "y_velocity".
        planar: whether both of them count. If left out they do where `info` has both, as it has for
            Ant and Swimmer; HalfCheetah, Hopper and Walker2d have the first alone. Safety-Gymnasium's
            own limit for Swimmer is on "x_velocity": planar=False.

    Raises:
        ValueError: the limit is no number, or both `key` and `planar` are given.

    Example:
        >>> cost = speed_limit(2.0)
        >>> cost.of_info({"x_velocity": [1.0, 2.5]})
        array([0., 1.])
        >>> cost.of_info({"x_velocity": [1.5], "y_velocity": [1.5]})
        array([1.])
    """
    if not isinstance(limit, int | float) or not np.isfinite(limit):
        raise ValueError(f"limit: expected a speed, got {limit!r}")
    if key is not None and planar is not None:
        raise ValueError("planar: says which entries count, and so does key; give one of them")
    keys = key if key is None or isinstance(key, str) else tuple(key)
    return SpeedLimit(float(limit), keys, planar)


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of an environment, by name.

    Attributes:
        sources: where each comes from: a key of `info` or a function of a `Transition`.
        environment: its name, for messages.
        is_default: whether nobody said where the cost is.

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
        """Costs from what a user may write.

        Arguments:
            cost: a key of `info`; a function of a `Transition`; several of them by name, or none
                ({}); None for the cost of a six-value step, otherwise `info["cost"]`.
            environment: its name, for messages.

        Raises:
            TypeError: it is something else.
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
                    f"names to them, got {cost!r}"
                )
        return cls(sources, environment)

    @property
    def names(self) -> tuple[str, ...]:
        """What the costs are called, in the order in which they are given."""
        return tuple(self.sources)

    def of(self, transition: Transition) -> Float[np.ndarray, " costs"]:
        """The costs of one step.

        Raises:
            ValueError: `info` does not have what is asked for, or it is not one number.
        """
        found = np.empty(len(self.sources))
        for i, (name, source) in enumerate(self.sources.items()):
            if isinstance(source, str):
                value = self._entry(transition.info, source)
            elif isinstance(source, SpeedLimit):
                value = self._speed_cost(source, transition, transition.info)
            else:
                value = source(transition)
            found[i] = self._number(name, value)
        return found

    def _number(self, name: str, value: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            number = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            number = np.zeros(0)
        if number.size != 1 or value is None:
            shown = f"an array of shape {number.shape}" if number.size > 1 else repr(value)
            raise ValueError(
                f"cost: {name!r} of {self.environment} is {shown}; expected one number"
            )
        return float(number.item())

    def of_rows(self, transitions: Transition) -> Float[np.ndarray, "rows costs"]:
        """The costs of many steps, whose fields and entries of `info` have a row for each.

        Raises:
            ValueError: `info` does not have what is asked for.
        """
        rows, info = len(transitions.reward), transitions.info
        found = np.empty((rows, len(self.sources)))
        for i, (name, source) in enumerate(self.sources.items()):
            if isinstance(source, str):
                found[:, i] = self._entry(info, source)
            elif isinstance(source, SpeedLimit):
                found[:, i] = self._speed_cost(source.of_info, info, info)
            else:
                for row in range(rows):
                    fields = {
                        field: value[row]
                        for field, value in transitions._asdict().items()
                        if field != "info"
                    }
                    one = {key: entry[row] for key, entry in info.items()}
                    found[row, i] = self._number(name, source(Transition(**fields, info=one)))
        return found

    def _entry(self, info: Mapping[str, Any], key: str) -> Any:
        try:
            return info[key]
        except KeyError:
            raise self._missing(info, key, "pass cost=...") from None

    def _speed_cost(self, of: Callable[[Any], Any], given: Any, info: Mapping[str, Any]) -> Any:
        try:
            return of(given)
        except KeyError as error:
            hint = "tell speed_limit which entry is the speed with key=..."
            raise self._missing(info, error.args[0], hint) from None

    def _missing(self, info: Mapping[str, Any], key: str, hint: str) -> ValueError:
        known = ", ".join(map(str, info)) or "none"
        return ValueError(
            f"cost: the info of {self.environment} has no {key!r} (it has {known}); {hint}"
        )

    @property
    def need_observations(self) -> bool:
        """Whether one of them is a user's function, which may look at anything."""
        return not self.is_rebuildable

    @property
    def is_rebuildable(self) -> bool:
        """Whether `from_description` can make them again: no function of the user's is among them."""
        return all(isinstance(source, str | SpeedLimit) for source in self.sources.values())

    def describe(self) -> dict[str, Any]:
        """All that defines them, as values that JSON can hold; a function is there by its name."""
        if self.is_default:
            return {"cost": {"kind": "default"}}
        return {name: _description(source) for name, source in self.sources.items()}

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], environment: str = "the environment"
    ) -> Costs:
        """The costs that `describe` wrote down.

        Raises:
            ValueError: one of them is a user's function, of which only the name is known.
        """
        if description.get("cost", {}).get("kind") == "default":
            return cls.resolve(None, environment)
        sources: dict[str, CostSource] = {}
        for name, each in description.items():
            if each["kind"] == "info":
                sources[name] = each["key"]
            elif each["kind"] == "speed_limit":
                key = tuple(each["key"]) if isinstance(each["key"], list) else each["key"]
                sources[name] = SpeedLimit(each["limit"], key, each["planar"])
            else:
                raise ValueError(
                    f"cost: {name!r} is the function {each.get('name')}, which has to be passed again"
                )
        return cls(sources, environment)


def _description(source: CostSource) -> dict[str, Any]:
    if isinstance(source, str):
        return {"kind": "info", "key": source}
    if isinstance(source, SpeedLimit):
        key = list(source.key) if isinstance(source.key, tuple) else source.key
        return {"kind": "speed_limit", "limit": source.limit, "key": key, "planar": source.planar}
    named = source if hasattr(source, "__qualname__") else type(source)
    return {"kind": "function", "name": f"{named.__module__}.{named.__qualname__}"}
