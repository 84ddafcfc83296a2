"""Which colour and which dashes an algorithm has, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.report.figures import STYLES, style_of

_DASHES = {"rcpo": "solid", "pcpo": "dashed", "cpo": "dash-dot", "rvi": "dotted", "trpo": "dotted"}
_IN_TURN = ("solid", "dashed", "dotted", "dash-dot")


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    dash: str


def looks_of(algorithms: Sequence[str]) -> list[Look]:
    """A look for each, where a name may come more than once: then only the dashes differ.

    Example:
        >>> looks_of(["rcpo", "pcpo", "rcpo"])[2]
        Look(colour='#0072b2', dash='dashed')
    """
    others = [name for name in dict.fromkeys(algorithms) if name not in STYLES]
    seen: dict[str, int] = {}
    looks = []
    for name in algorithms:
        first = _IN_TURN.index(_DASHES.get(name, "dashed"))
        dash = _IN_TURN[(first + seen.get(name, 0)) % len(_IN_TURN)]
        seen[name] = seen.get(name, 0) + 1
        looks.append(Look(style_of(name, others).colour, dash))
    return looks


def label_of(algorithm: str) -> str:
    """What the algorithm is called."""
    return STYLES[algorithm].label if algorithm in STYLES else algorithm.upper()
