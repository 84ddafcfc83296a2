"""Checks of an algorithm's settings: one sentence that names the field."""

from __future__ import annotations

import math
import numbers
from typing import Any


def check_number(
    name: str, value: Any, *, least: float = 0.0, above: bool = False, most: float = math.inf
) -> None:
    """Raises a ValueError unless the value is a finite number in [least, most], or above the least."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if (
        number
        and math.isfinite(value)
        and least <= value <= most
        and not (above and value == least)
    ):
        return
    range_ = f"{'over' if above else 'of at least'} {least:g}"
    range_ += f" and at most {most:g}" if math.isfinite(most) else ""
    raise ValueError(f"{name}: expected a number {range_}, got {value!r}")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises a ValueError unless the value is one of the choices."""
    # 1 == True, so kinds are compared as well.
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name}: expected one of {known}, got {value!r}")
