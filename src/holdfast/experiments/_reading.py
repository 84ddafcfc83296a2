"""Reading descriptions that people write: what is wrong is named, with what may have been meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast._support.arguments import meant


def check_keys(given: Iterable[str], known: Collection[str], where: str = "") -> None:
    """Refuses a key that nobody reads.

    Arguments:
        given: the keys at hand.
        known: those that are read.
        where: the table that they stand in, "" for the top.

    Raises:
        ValueError: the first such key, and the nearest right one.

    Example:
        >>> check_keys(["iteration"], ["iterations", "step"], "settings")
        Traceback (most recent call last):
        ...
        ValueError: settings.iteration: no such key; did you mean iterations?
    """
    for key in given:
        if key not in known:
            raise ValueError(f"{_path(where, key)}: no such key{meant(key, known)}")


def names(key: str, value: Any) -> tuple[str, ...]:
    """A list of different names, as a tuple."""
    found = _sequence(key, value)
    for each in found:
        if not isinstance(each, str) or not each:
            raise ValueError(f"{key}: expected names, got {each!r}")
    if len(set(found)) != len(found):
        raise ValueError(f"{key}: expected different names, got {list(found)}")
    return tuple(found)


def numbers(key: str, value: Any, least: float = 0.0) -> tuple[float, ...]:
    """A list of different numbers that are not too small, as a tuple."""
    found = _sequence(key, value)
    for each in found:
        if isinstance(each, bool) or not isinstance(each, int | float) or not each >= least:
            raise ValueError(f"{key}: expected numbers of at least {least:g}, got {each!r}")
    if len(set(found)) != len(found):
        raise ValueError(f"{key}: expected different numbers, got {list(found)}")
    return tuple(float(each) for each in found)


def tables(key: str, value: Any) -> dict[str, dict[str, Any]]:
    """A table of tables, copied."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{key}: expected a table, got {value!r}")
    for name, each in value.items():
        if not isinstance(each, Mapping):
            raise ValueError(f"{key}.{name}: expected a table, got {each!r}")
    return {name: dict(each) for name, each in value.items()}


def _sequence(key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{key}: expected a list, got {value!r}")
    return value


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
