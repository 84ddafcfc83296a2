"""Checks of arguments that many functions share."""

from __future__ import annotations

import difflib
import numbers
from collections.abc import Collection
from typing import Any


def check_whole_number(name: str, value: Any, *, least: int) -> None:
    """Raises a ValueError unless the value is an integer that is large enough."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")


def check_probability(name: str, value: Any, *, most: float = 1.0) -> None:
    """Raises a ValueError unless the value is a number from 0 to `most`."""
    if not isinstance(value, numbers.Real) or not 0 <= float(value) <= most:
        raise ValueError(f"{name}: expected a number in [0, {most:g}], got {value!r}")


def meant(name: str, known: Collection[str]) -> str:
    """What somebody may have meant by a name that is not there, as the end of a sentence.

    Example:
        >>> "no such key" + meant("iteration", ["iterations", "step"])
        'no such key; did you mean iterations?'
        >>> "no such key" + meant("x", ["iterations", "step"])
        'no such key; there are iterations, step'
    """
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
