"""Records of the page: the blocks of a section, which become JSON that the page's scripts draw.

The records contain no layout, and the scripts know nothing about runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from holdfast.report.charts import Chart, Numbers, Plane, Series, Trace

# A screen cannot show more points of one curve, nor more of one of many paths.
MOST_POINTS, MOST_TRACE_POINTS = 400, 50
# Significant digits of a number in a figure.
_DIGITS = 6

Matrix = Sequence[Sequence[Any]] | np.ndarray


class Lines(NamedTuple):
    """A figure of curves with one or several views.

    Attributes:
        key: identifier within its section, the same whenever the page is made.
        title: title of the figure.
        about: one sentence on how to read it.
        views: the charts to choose from, at least one.
        spread: how the ends of the bands are drawn, "band" or "bars".
    """

    key: str
    title: str
    about: str
    views: Sequence[Chart]
    spread: str = "band"
    type: str = "lines"


class Scatter(NamedTuple):
    """End points of runs: discs if feasible, crosses otherwise."""

    key: str
    title: str
    about: str
    plane: Plane
    type: str = "scatter"


class Cell(NamedTuple):
    """Text in a table, with the tone "good", "bad" or "" ."""

    text: str
    tone: str = ""


class PageTable(NamedTuple):
    """Rows of cells; the columns in `words` are text, the others numbers."""

    key: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Sequence[int] = (0,)
    type: str = "table"


class Card(NamedTuple):
    """A certificate: its verdict, its statements, and a table of the values."""

    key: str
    title: str
    verdict: Cell
    statements: Sequence[str]
    table: PageTable
    type: str = "card"


class HeatMap(NamedTuple):
    """A kernel under the policy, or the signed difference of two."""

    name: str
    signed: bool
    values: Matrix


class HeatMaps(NamedTuple):
    """The nominal kernel, and others to compare it with; `rows` and `columns` name the states."""

    key: str
    title: str
    about: str
    rows: Sequence
    columns: Sequence
    nominal: HeatMap
    others: Sequence[HeatMap]
    type: str = "kernels"


class Walk(NamedTuple):
    """An episode on a grid: the cell at every step, and the totals of all signals up to it."""

    name: str
    cells: Sequence[int]
    actions: Sequence[int]
    totals: Mapping[str, Numbers]


class Pushes(NamedTuple):
    """The shift of the mean next cell by nature: (right, down) for each cell."""

    name: str
    arrows: Matrix


class Grid(NamedTuple):
    """A map with the policy, nature's pushes and episodes.

    Attributes:
        key: identifier within its section.
        title: title of the map.
        about: how to read it.
        letters: rows of the map: S start or ice, H hole, G goal.
        marked: cells in which the first constraint's signal is non-zero.
        marked_name: name of that signal.
        moves: (right, down) of every action.
        policy: (cells, actions) probabilities.
        pushes: one entry per signal.
        walks: episodes.
    """

    key: str
    title: str
    about: str
    letters: Sequence[str]
    marked: Sequence[int]
    marked_name: str
    moves: Matrix
    policy: Matrix
    pushes: Sequence[Pushes]
    walks: Sequence[Walk]
    type: str = "grid"


class Drive(NamedTuple):
    """An episode of Point Gather, time first; `pushes` has one row less than `path`."""

    name: str
    objects: Matrix
    path: Matrix
    headings: Numbers
    pushes: Matrix
    caught_at: Sequence[int]
    totals: Mapping[str, Numbers]


class Arena(NamedTuple):
    """Episodes of Point Gather on its map; the first `apples` objects are apples, the rest bombs."""

    key: str
    title: str
    about: str
    half_width: float
    reach: float
    apples: int
    drives: Sequence[Drive]
    type: str = "arena"


class Details(NamedTuple):
    """Settings or versions, folded away: names with values as text."""

    key: str
    title: str
    entries: Sequence[tuple[str, str]]
    type: str = "details"


def details(key: str, title: str, values: Mapping[str, Any]) -> Details:
    """Return nested settings or versions as one folded list."""
    return Details(key, title, flat_entries(values))


Block = Lines | Scatter | PageTable | Card | HeatMaps | Grid | Arena | Details


class Section(NamedTuple):
    """One run, or several runs that are compared.

    Attributes:
        key: identifier of the section, the same whenever the page is made.
        title: title of the section.
        where: folders of the runs.
        facts: short texts for the line below the title.
        blocks: contents.
    """

    key: str
    title: str
    where: Sequence[str]
    facts: Sequence[Cell]
    blocks: Sequence[Block]

    @property
    def id(self) -> str:
        """Anchor for links."""
        return "run-" + hashlib.sha256(self.key.encode()).hexdigest()[:10]


class Skipped(NamedTuple):
    """A folder or file that the page leaves out, and the reason."""

    path: str
    reason: str


def to_plain(value: Any, most: int = MOST_POINTS) -> Any:
    """Return records as dictionaries, lists and rounded numbers, with at most `most` points a curve.

    Numbers that are not finite become None.

    Example:
        >>> to_plain({"a": np.array([1 / 3, np.nan]), "b": Cell("x")})
        {'a': [0.333333, None], 'b': {'text': 'x', 'tone': ''}}
        >>> to_plain(Series("RCPO", "#0072b2", "solid", [1, 2, 3], [4.0, 5.0, 6.0]), most=2)["y"]
        [4.0, 6.0]
    """
    if isinstance(value, Series):
        kept = _kept_rows(len(value.x), most)
        parts = {name: getattr(value, name) for name in ("x", "y", "low", "high")}
        parts = {k: None if v is None else np.asarray(v)[kept] for k, v in parts.items()}
        value = value._replace(**parts)
    if isinstance(value, Trace):
        kept = _kept_rows(len(value.x), min(most, MOST_TRACE_POINTS))
        value = {"x": np.asarray(value.x)[kept], "y": np.asarray(value.y)[kept]}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, most) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_plain(item, most) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def json_for_script(value: Any) -> str:
    r"""Return JSON that cannot end the script element it is in.

    Example:
        >>> json_for_script("</script><!-- \u2028")
        '"\\u003c/script>\\u003c!-- \\u2028"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _kept_rows(rows: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced indices, with both ends."""
    if rows <= most:
        return np.arange(rows)
    return np.unique(np.round(np.linspace(0, rows - 1, most)).astype(int))


def flat_entries(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested settings as dotted names with values as text, in order.

    Example:
        >>> flat_entries({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": "x"})
        [('a.b', '1'), ('a.c', '1, 2'), ('d', '–'), ('e', 'x')]
    """
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flat_entries(value, f"{prefix}{name}.")
        else:
            found.append((prefix + str(name), _text(value)))
    return found


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "–"
    return str(value)
