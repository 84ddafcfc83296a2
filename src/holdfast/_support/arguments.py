"""Checks of arguments. The messages have the form `argument: what is wrong, got …`."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np


def check_whole_number(name: str, value: Any, *, least: int) -> None:
    """Raise a ValueError unless the value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_probability(name: str, value: Any, *, most: float = 1.0) -> None:
    """Raise a ValueError unless the value is a number in [0, most]."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= most:
        raise ValueError(f"{name}: expected a number in [0, {most:g}], got {value!r}")


def check_number(
    name: str, value: Any, *, least: float = 0.0, above: bool = False, most: float = math.inf
) -> None:
    """Raise a ValueError unless the value is a finite number in [least, most].

    Arguments:
        name: the name shown in the message.
        value: the value to check.
        least: least number allowed.
        above: whether `least` itself is refused.
        most: largest number allowed.
    """
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if (
        number
        and math.isfinite(value)
        and least <= value <= most
        and not (above and value == least)
    ):
        return
    limits = {f"{'over' if above else 'of at least'} {least:g}": least, f"at most {most:g}": most}
    expected = " and ".join(text for text, limit in limits.items() if math.isfinite(limit))
    expected = f"number {expected}" if expected else "finite number"
    raise ValueError(f"{name}: expected a {expected}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raise a ValueError unless the value is one of the choices."""
    # 1 == True, so that types are compared as well.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: expected one of {known}, got {value!r}")


def meant(name: str, known: Collection[str], most: int = 12) -> str:
    """Return the end of an error message: the most similar known name, or up to `most` known names.

    Example:
        >>> "no such key" + meant("iteration", ["iterations", "step"])
        'no such key; did you mean iterations?'
        >>> "no such key" + meant("x", ["iterations", "step"])
        'no such key; there are iterations, step'
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    shown = list(known)[:most]
    return f"; there are {', '.join(shown)}{', …' if len(known) > most else ''}"


def numbers_of(name: str, value: Any, dtype: type[np.float64] | None = np.float64) -> np.ndarray:
    """Return an array of numbers, or raise a ValueError that names the argument."""
    try:
        return np.array(value, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected an array of numbers: {error}") from error


def first_place(wrong: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Return the first index at which a condition holds, and its name in messages.

    Example:
        >>> first_place(np.array([[False, False], [True, False]]))
        ((1, 0), '(state 1, action 0)')
    """
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    names = [
        "",
        "state {}",
        "(state {}, action {})",
        "(state {}, action {}, entry {})",
        "(step {}, state {}, action {}, entry {})",
    ]
    return index, names[len(index)].format(*index)
