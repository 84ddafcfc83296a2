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


def looks_of(names: Sequence[str]) -> list[Look]:
    """A look for each algorithm; one that comes twice, or in a variant, keeps its colour.

    Arguments:
        names: of algorithms, followed by a blank and the variant if there is one.

    Example:
        >>> looks_of(["rcpo", "pcpo", "rcpo taylor"])[2]
        Look(colour='#0072b2', dash='dashed')
    """
    algorithms = [name.split()[0] for name in names]
    others = [name for name in dict.fromkeys(algorithms) if name not in STYLES]
    seen: dict[str, int] = {}
    looks = []
    for name in algorithms:
        style = style_of(name, others)
        # There are fewer colours than algorithms may come; then dashes tell those of one colour apart.
        key = name if name in STYLES else style.colour
        first = _IN_TURN.index(_DASHES.get(name, "dashed"))
        looks.append(Look(style.colour, _IN_TURN[(first + seen.get(key, 0)) % len(_IN_TURN)]))
        seen[key] = seen.get(key, 0) + 1
    return looks


def label_of(name: str) -> str:
    """What an algorithm is called, with its variant.

    Example:
        >>> label_of("rcpo taylor")
        'RCPO taylor'
    """
    algorithm, _, variant = name.partition(" ")
    label = STYLES[algorithm].label if algorithm in STYLES else algorithm.upper()
    return f"{label} {variant}".strip()
