"""Simulators by name: for each, what makes one with its options."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.environments import MODELS
from holdfast.environments.linear_gaussian import LinearGaussian
from holdfast.environments.point_gather import PointGather
from holdfast.environments.table_simulator import TableSimulator
from holdfast.simulators.environment import Environment


def _table(name: str, **options: Any) -> TableSimulator:
    return TableSimulator(MODELS[name](), name=name, **options)


SIMULATORS: dict[str, Callable[..., Environment]] = {
    "point-gather": PointGather,
    "linear-gaussian": LinearGaussian,
    **{name: functools.partial(_table, name) for name in MODELS},
}


def simulator_from(description: Mapping[str, Any]) -> Environment | None:
    """The simulator that a description is of; None where it is not one of these.

    Example:
        >>> import json
        >>> env = SIMULATORS["point-gather"](horizon=20)
        >>> simulator_from(json.loads(json.dumps(env.description()))).horizon
        20
    """
    if description.get("gymnasium"):
        from holdfast.gym.disturb import from_recipe

        return from_recipe(description)
    make = SIMULATORS.get(description.get("name", ""))
    if make is None:
        return None
    try:
        env = make(**description.get("options", {}))
    except (TypeError, ValueError):
        return None
    # As JSON has it, where a tuple is a list.
    return env if json.loads(json.dumps(env.description())) == dict(description) else None
