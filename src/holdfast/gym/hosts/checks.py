"""Checks of what a Gymnasium environment returns: spaces, numbers and booleans.

Training writes observations and rewards into arrays of fixed size, which would broadcast a short
observation and read a number from a string. What does not fit is refused instead.
"""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class ProtocolError(ValueError):
    """An environment returned something that its spaces or Gymnasium's interface do not allow."""


def check_reset(found: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info of a reset."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise ProtocolError(f"reset returned {_shown(found)}, expected (observation, info)")
    return found[0], _info("reset", found[1])


def check_step(found: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Return the five values of a step; the cost of a step with six becomes an entry of info."""
    if not isinstance(found, tuple) or len(found) not in (5, 6):
        raise ProtocolError(
            f"step returned {_shown(found)}, expected (observation, reward, terminated, truncated, info)"
        )
    observation, reward, *cost, terminated, truncated, info = found
    info = _info("step", info)
    if cost:
        info["cost"] = cost[0]
    return (
        observation,
        one_number("the reward", reward),
        _truth("terminated", terminated),
        _truth("truncated", truncated),
        info,
    )


def one_number(what: str, value: Any) -> float:
    """Return a real number, or the only entry of an array of them."""
    if isinstance(value, float):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.size != 1:
        raise ProtocolError(f"{what} is {_shown(value)}, expected one number")
    return float(array.item())


def check_observation(space: gymnasium.Space, value: Any, what: str) -> None:
    """Raise a ProtocolError unless a value has the shape, the kind and the bounds of a space.

    A number of higher precision than the space's is accepted: training computes in single precision.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts: Any = space.spaces
        keys = list(parts) if isinstance(parts, Mapping) else list(range(len(parts)))
        kind = Mapping if isinstance(parts, Mapping) else tuple | list
        if not isinstance(value, kind) or len(value) != len(keys):
            raise ProtocolError(f"{what} is {_shown(value)}, expected {len(keys)} entries: {space}")
        for key in keys:
            if isinstance(value, Mapping) and key not in value:
                raise ProtocolError(f"{what} has no entry {key!r}")
            check_observation(parts[key], value[key], f"{what}[{key!r}]")
        return
    if not isinstance(space, spaces.Box):
        if not space.contains(value):
            raise ProtocolError(f"{what} is {_shown(value)}, not in {space}")
        return
    array = as_numbers(value, what)
    if array.shape != space.shape:
        raise ProtocolError(f"{what} has shape {array.shape}, expected {space.shape}")
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        raise ProtocolError(f"{what} has type {array.dtype}, expected {space.dtype}")
    # In the type of the bounds, which may be rounded. NaN is found by the check of the batch.
    array = array.astype(space.dtype)
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ProtocolError(
            f"{what} is {array[place]:g} at {list(place)}, outside its bounds "
            f"[{space.low[place]:g}, {space.high[place]:g}]"
        )


def as_numbers(value: Any, what: str) -> np.ndarray:
    """Return an array of real numbers; a string that looks like a number is refused."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ProtocolError(f"{what} is no array ({error})") from error
    if array.dtype.kind not in "fiub":
        raise ProtocolError(f"{what} is {_shown(value)}, expected numbers")
    return array


def _truth(what: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biu" or array.item() not in (0, 1):
        raise ProtocolError(f"{what} is {_shown(value)}, expected True or False")
    return bool(array.item())


def _info(method: str, info: Any) -> dict[str, Any]:
    if not isinstance(info, Mapping):
        raise ProtocolError(f"{method} returned the info {_shown(info)}, expected a dict")
    return dict(info)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, np.ndarray) and value.size > 1:
        return f"an array of type {value.dtype} and shape {value.shape}"
    return reprlib.repr(value)
