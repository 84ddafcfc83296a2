"""Checks of the keys and values of an experiment's description."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast._support.arguments import check_number, check_whole_number, meant


def check_keys(given: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Raise a ValueError for the first unknown key, with the nearest known one.

    Arguments:
        given: keys to check.
        known: accepted keys.
        where: name of the table that holds the keys, "" for the top level.

    Example:
        >>> check_keys(["iteration"], ["iterations", "step"], "settings")
        Traceback (most recent call last):
        ...
        ValueError: settings.iteration: no such key; did you mean iterations?
    """
    for key in given:
        if key not in known:
            path = f"{where}.{key}" if where else key
            raise ValueError(f"{path}: no such key{meant(key, known)}")


def checked(field: dataclasses.Field, value: Any) -> Any:
    """Return the value of a field in the form of its type, with tuples for lists.

    Raises:
        ValueError: the value is not of that type, or a list repeats itself.
    """
    read = _READERS.get(str(field.type))
    return read(field.name, value) if read else value


def _read_names(key: str, value: Any) -> tuple[str, ...]:
    return _distinct(key, value, "names", lambda each: isinstance(each, str) and each != "")


def _read_numbers(key: str, value: Any) -> tuple[float, ...]:
    def allowed(each: Any) -> bool:
        return type(each) in (int, float) and 0 <= each <= sys.float_info.max

    return tuple(map(float, _distinct(key, value, "numbers of at least 0", allowed)))


def _distinct(key: str, value: Any, what: str, allowed: Callable[[Any], bool]) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{key}: expected a list, got {value!r}")
    for each in value:
        if not allowed(each):
            raise ValueError(f"{key}: expected {what}, got {each!r}")
    if len(set(value)) != len(value):
        raise ValueError(f"{key}: expected different {what}, got {list(value)}")
    return tuple(value)


def _read_tables(key: str, value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a table, got {value!r}")
    for name, each in value.items():
        if not isinstance(each, Mapping):
            raise ValueError(f"{key}.{name}: expected a table, got {each!r}")
    return {name: dict(each) for name, each in value.items()}


def _read_count(key: str, value: Any) -> int:
    check_whole_number(key, value, least=0 if key == "nodes" else 1)
    return int(value)


def _read_text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected a string, got {value!r}")
    return value


def _read_truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{key}: expected true or false, got {value!r}")
    return value


def _read_number(key: str, value: Any) -> float:
    check_number(key, value, least=-math.inf)
    return float(value)


# How a field is checked, by its type.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "str": _read_text,
    "bool": _read_truth,
    "float": _read_number,
    "tuple[str, ...]": _read_names,
    "tuple[float, ...]": _read_numbers,
    "Mapping[str, Mapping[str, Any]]": _read_tables,
    "int": _read_count,
}
