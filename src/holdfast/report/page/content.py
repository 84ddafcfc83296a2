"""What a page is made of: plain records that become JSON, and that the page's scripts draw.

Nothing in here knows how a thing looks, and nothing in the scripts knows what a run is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

# More than this many points of a curve cannot be told apart on a screen.
MOST_POINTS = 400
_DIGITS = 6

Number = float | None


def _kind(name: str) -> Any:
    """The field by which the scripts know a block's kind."""
    return dataclasses.field(default=name, init=False)


@dataclasses.dataclass(frozen=True)
class Series:
    """A curve, or points that are not joined.

    Attributes:
        name: in the legend; series of one name are shown and hidden together.
        colour: for a light page; the scripts know its like for a dark one.
        dash: "solid", "dashed", "dotted" or "dash-dot".
        x: where.
        y: how much; None where there is nothing.
        low: lower end of the band or bar, if there is one.
        high: its upper end.
    """

    name: str
    colour: str
    dash: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None


@dataclasses.dataclass(frozen=True)
class Limit:
    """A value that is not to be crossed.

    Attributes:
        value: where the line lies.
        label: what is written on it.
        violated: the side on which the limit does not hold, "above" or "below".
        axis: along which it is measured, "x" or "y".
    """

    value: float
    label: str
    violated: str
    axis: str = "y"


@dataclasses.dataclass(frozen=True)
class Axis:
    """A horizontal axis.

    Attributes:
        name: what it measures.
        scale: "linear" or "sqrt".
        ticks: where to put numbers; empty leaves it to the scripts.
    """

    name: str
    scale: str = "linear"
    ticks: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class View:
    """One of the pictures that a figure can show."""

    name: str
    x: Axis
    y: str
    series: Sequence[Series]
    limits: Sequence[Limit] = ()


@dataclasses.dataclass(frozen=True)
class Lines:
    """Curves with bands, or with bars; a choice of views.

    Attributes:
        key: names it within its section, for good.
        title: what is shown.
        about: how to read it, in a sentence.
        views: at least one.
        spread: how low and high are drawn, "band" or "bars".
    """

    key: str
    title: str
    about: str
    views: Sequence[View]
    spread: str = "band"
    type: str = _kind("lines")


@dataclasses.dataclass(frozen=True)
class Point:
    """An end point: where, whose, and whether it is feasible."""

    x: Number
    y: Number
    label: str
    feasible: bool


@dataclasses.dataclass(frozen=True)
class Cloud:
    """The end points of one algorithm or run, and the way there if it is to be drawn."""

    name: str
    colour: str
    dash: str
    points: Sequence[Point]
    way_x: Sequence[Number] = ()
    way_y: Sequence[Number] = ()


@dataclasses.dataclass(frozen=True)
class Scatter:
    """End points; feasible ones are discs, the others crosses."""

    key: str
    title: str
    about: str
    x: str
    y: str
    clouds: Sequence[Cloud]
    limits: Sequence[Limit] = ()
    type: str = _kind("scatter")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What stands in a table: text, and "good", "bad" or "unsure" where it is a verdict."""

    text: str
    tone: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells: numbers, but for the columns in `words`; a wide table has a line to itself."""

    key: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = (0,)
    wide: bool = True
    type: str = _kind("table")


@dataclasses.dataclass(frozen=True)
class Card:
    """A certificate: the verdict, what follows from it, and the numbers.

    Attributes:
        key: names it within its section.
        title: of the card.
        verdict: in a few words, with its tone.
        statements: sentences.
        table: of the values.
    """

    key: str
    title: str
    verdict: Cell
    statements: Sequence[str]
    table: Table
    type: str = _kind("card")


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A kernel under the policy, or the difference of two; `values` has a row for each of `rows`."""

    name: str
    signed: bool
    values: Sequence[Sequence[Number]]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The nominal kernel, and others to be looked at beside it."""

    key: str
    title: str
    about: str
    rows: Sequence[int]
    columns: Sequence[int]
    nominal: Matrix
    others: Sequence[Matrix]
    type: str = _kind("kernels")


@dataclasses.dataclass(frozen=True)
class Walk:
    """An episode on a grid: the cell at every step, and what had been earned by then."""

    name: str
    cells: Sequence[int]
    actions: Sequence[int]
    totals: Mapping[str, Sequence[Number]]


@dataclasses.dataclass(frozen=True)
class Pushes:
    """Where nature shifts the mean of the next cell, one arrow (right, down) for each cell."""

    name: str
    arrows: Sequence[Sequence[Number]]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A map with the policy, nature's pushes and episodes.

    Attributes:
        key: names it within its section.
        title: of the map.
        about: how to read it.
        letters: rows of the map: S start or ice, H a hole, G a goal.
        marked: cells where a constraint's signal is paid.
        marked_name: what that signal is called.
        moves: (right, down) of every action.
        policy: probability of every action in every cell.
        pushes: of the worst case of each signal.
        walks: episodes to play.
    """

    key: str
    title: str
    about: str
    letters: Sequence[str]
    marked: Sequence[int]
    marked_name: str
    moves: Sequence[Sequence[int]]
    policy: Sequence[Sequence[Number]]
    pushes: Sequence[Pushes]
    walks: Sequence[Walk]
    type: str = _kind("grid")


@dataclasses.dataclass(frozen=True)
class Drive:
    """An episode of Point Gather, time first; pushes are one row shorter than the path."""

    name: str
    objects: Sequence[Sequence[Number]]
    path: Sequence[Sequence[Number]]
    headings: Sequence[Number]
    pushes: Sequence[Sequence[Number]]
    caught_at: Sequence[int]
    totals: Mapping[str, Sequence[Number]]


@dataclasses.dataclass(frozen=True)
class Arena:
    """Episodes of Point Gather on the map; the first `apples` objects are those, the rest bombs."""

    key: str
    title: str
    about: str
    half_width: float
    reach: float
    apples: int
    drives: Sequence[Drive]
    type: str = _kind("arena")


@dataclasses.dataclass(frozen=True)
class Details:
    """Settings and versions, folded away; `entries` are names with values as they are written."""

    key: str
    title: str
    entries: Sequence[tuple[str, str]]
    type: str = _kind("details")


Block = Lines | Scatter | Table | Card | Kernels | Grid | Arena | Details


@dataclasses.dataclass(frozen=True)
class Section:
    """All about one run, or about several that belong side by side.

    Attributes:
        key: what makes it the same section when the page is made again.
        title: of the section.
        where: the folders it came from.
        facts: a few words each, for the line under the title.
        blocks: what is shown.
    """

    key: str
    title: str
    where: Sequence[str]
    facts: Sequence[Cell]
    blocks: Sequence[Block]

    @property
    def id(self) -> str:
        """For links to it."""
        return "run-" + hashlib.sha256(self.key.encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A folder or file that is not in the page, and why."""

    path: str
    reason: str


def number(value: Any) -> Number:
    """A number with as many digits as a figure can show; None for what is not finite.

    Example:
        >>> number(1 / 3), number(float("nan")), number(12)
        (0.333333, None, 12.0)
    """
    value = float(value)
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def numbers(values: Iterable[Any]) -> list[Number]:
    """`number` of each."""
    return [number(value) for value in values]


def table_of_numbers(values: np.ndarray) -> list[list[Number]]:
    """`number` of each entry of a matrix."""
    return [numbers(row) for row in values]


def kept_rows(rows: int, most: int = MOST_POINTS) -> np.ndarray:
    """Which rows of a long curve to keep: all where there are few, else evenly, with both ends.

    Example:
        >>> kept_rows(3, most=10).tolist(), kept_rows(1000, most=3).tolist()
        ([0, 1, 2], [0, 500, 999])
    """
    if rows <= most:
        return np.arange(rows)
    return np.unique(np.round(np.linspace(0, rows - 1, most)).astype(int))


def flat_entries(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as names with dots and their values, in order.

    Example:
        >>> flat_entries({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": "x"})
        [('a.b', '1'), ('a.c', '1, 2'), ('d', '–'), ('e', 'x')]
    """
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat_entries(value, f"{prefix}{name}.")
        else:
            found.append((prefix + str(name), _written(value)))
    return found


def _written(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value)) or "–"
    return str(value)
