"""The arguments of `certify` that describe how a bound is computed, and their checks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from holdfast._support.arguments import check_number, check_whole_number, meant
from holdfast.simulators.certificates.bounded_signal import SignalRange
from holdfast.simulators.certificates.draw_bound import MOST_AT_ONCE
from holdfast.simulators.certificates.proving import BoundSettings
from holdfast.simulators.check_environment import check_disturbed
from holdfast.simulators.environment import Environment

# A step outside JAX takes a thousand times as long.
_HOSTED = BoundSettings(episodes=400, draws=8, updates=20, batch=(16, 2))


@dataclasses.dataclass(frozen=True)
class ProofOptions:
    """Ranges and sample sizes of a certificate, as `certify` describes them."""

    cost_range: Any = None
    most_cost: float | Sequence[float] | None = None
    reward_range: tuple[float, float] | None = None
    episodes: int | None = None
    draws: int | None = None
    updates: int | None = None
    repeats: int | None = None
    deterministic: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Return the options in a mapping.

        Raises:
            ValueError: a key is not one of them.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(f"proof_options: there is no option {name!r}{meant(name, known)}")
        return cls(**given)

    def settings(self, env: Environment) -> BoundSettings:
        """Return the sample sizes, with the simulator's default values.

        Raises:
            ValueError: a size is not a whole number, or too small.
        """
        preset = _HOSTED if env.is_hosted else BoundSettings()
        names = ("episodes", "draws", "updates", "repeats")
        given = {name: getattr(self, name) for name in names}
        for (name, value), least in zip(given.items(), (4, 1, 1, 1), strict=True):
            if value is not None:
                check_whole_number(name, value, least=least)
        if (self.repeats or 1) > min(env.most_copies or math.inf, MOST_AT_ONCE):
            raise ValueError(
                f"repeats: expected at most {env.most_copies or MOST_AT_ONCE}, the number of episodes "
                f"that run side by side, got {self.repeats}"
            )
        return dataclasses.replace(preset, **{k: v for k, v in given.items() if v is not None})

    def ranges(self, env: Environment, radius: Any) -> list[SignalRange | None]:
        """Return the range of −reward, or None without one, and of each cost.

        Raises:
            ValueError: nothing can be proved within this radius; the message says why.
        """
        check_number("radius", radius)
        check_disturbed(env, radius)
        if (self.repeats or 1) > 1 and not (radius and env.draws_once):
            raise ValueError(
                "repeats: several episodes of one draw need a radius, and a disturbance that is drawn "
                "once an episode"
            )
        ranges = _ranges(env, self.cost_range, self.most_cost, self.reward_range)
        if radius and not env.draws_once and not env.is_replayable:
            raise ValueError(
                f"environment: {env.name} cannot be stepped again from a saved state, which a bound at "
                "every step needs; draw its disturbance once an episode, or use box="
            )
        return ranges


def _ranges(
    env: Environment, cost_range: Any, most_cost: Any, reward_range: Any
) -> list[SignalRange | None]:
    """Return the range of −reward, or None without one, and of each cost."""
    count = len(env.cost_names)
    declared = env.signal_ranges
    pairs: list[Any] = [None] * count if declared is None else list(declared[1:])
    if cost_range is not None:
        array = np.asarray(cost_range, float)
        if array.shape not in ((2,), (count, 2)):
            raise ValueError(
                f"cost_range: expected (low, high), once or per cost, got {cost_range!r}"
            )
        pairs = np.broadcast_to(array, (count, 2)).tolist()
    most = np.broadcast_to(math.inf if most_cost is None else np.asarray(most_cost, float), count)
    for name, pair, cap in zip(env.cost_names, pairs, most, strict=True):
        if pair is None:
            raise ValueError(
                f"cost_range: {env.name} does not declare the range of {name}; pass the lowest and "
                "highest cost of a step, as in cost_range=(0, 1)"
            )
        if not (np.isfinite(pair).all() and pair[0] < pair[1]):
            raise ValueError(f"cost_range: expected two finite numbers, low < high, got {pair!r}")
        if not cap > 0:
            raise ValueError(f"most_cost: expected a number over 0, got {cap!r}")
    if reward_range is None and declared is not None:
        reward_range = declared[0]
    if reward_range is not None and not (
        np.shape(reward_range) == (2,)
        and np.isfinite(reward_range).all()
        and reward_range[0] < reward_range[1]
    ):
        raise ValueError(
            f"reward_range: expected two finite numbers, low < high, got {reward_range!r}"
        )
    reward = None if reward_range is None else SignalRange(-reward_range[1], -reward_range[0])
    costs = [
        SignalRange(float(p[0]), float(p[1]), float(m)) for p, m in zip(pairs, most, strict=True)
    ]
    return [reward, *costs]
