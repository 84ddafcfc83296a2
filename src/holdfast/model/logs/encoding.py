"""Cells of a log as numbers: states and actions as indices, signals and times as floats."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from holdfast._support.arguments import check_whole_number, meant, numbers_of
from holdfast.model.logs.source import Columns

# Separates the parts of a name that comes from several columns.
_SEPARATOR = ", "


class Coded(NamedTuple):
    """A column, or several, as indices.

    Attributes:
        codes: index of the name of each row; −1 if a cell is missing.
        names: the names, in order: numbers by size, bins by their limits, texts by the alphabet.
    """

    codes: Int[np.ndarray, " rows"]
    names: tuple[str, ...]


def coded(columns: Sequence[Sequence[Any]], bins: Sequence[Any]) -> Coded:
    """Return the rows of some columns as indices of distinct names.

    Arguments:
        columns: the columns, of equal length.
        bins: for each column None, or its name and its `bins`.

    Raises:
        ValueError: a column to be binned contains text.
    """
    parts = [_coded_column(column, each) for column, each in zip(columns, bins, strict=True)]
    if len(parts) == 1:
        return parts[0]
    missing = np.any([part.codes < 0 for part in parts], axis=0)
    joint = np.zeros(len(missing), np.int64)
    for part in parts:
        joint = joint * len(part.names) + part.codes
    joint[missing] = -1
    found = np.unique(joint[~missing])
    names, shape = [], [len(part.names) for part in parts]
    for each in found:
        places = np.unravel_index(each, shape)
        names.append(_SEPARATOR.join(p.names[i] for p, i in zip(parts, places, strict=True)))
    codes = np.where(missing, -1, np.searchsorted(found, joint))
    return Coded(codes, tuple(names))


def _coded_column(column: Sequence[Any], bins: tuple[str, Any] | None) -> Coded:
    index = {value: i for i, value in enumerate(dict.fromkeys(column))}
    raw = np.fromiter(map(index.__getitem__, column), np.int64, len(column))
    values = [value for value in index if value is not None]
    numbers = [_number(value) for value in values]
    if bins is not None:
        keyed = dict(zip(values, _binned(bins, values, numbers), strict=True))
    elif all(number is not None for number in numbers):
        keyed = {v: (n, _written(n)) for v, n in zip(values, numbers, strict=True)}
    else:  # mixed columns are text
        keyed = {v: (0.0, v if isinstance(v, str) else _written(_number(v) or v)) for v in values}
    ordered = sorted(set(keyed.values()))
    place = {key: i for i, key in enumerate(ordered)}
    codes = np.array([-1 if v is None else place[keyed[v]] for v in index] or [-1])
    return Coded(codes[raw], tuple(name for _, name in ordered))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _written(value: Any) -> str:
    """Return a number without a trailing .0, and anything else as text."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def _binned(
    bins: tuple[str, Any], values: list[Any], numbers: list[float | None]
) -> list[tuple[float, str]]:
    """Return the index and the name of the bin of each value."""
    name, given = bins
    for value, number in zip(values, numbers, strict=True):
        if number is None:
            raise ValueError(f"bins: column {name!r} contains {value!r}, not a number")
    points = np.array(numbers, float)
    if np.ndim(given) == 0:
        check_whole_number(f"bins[{name!r}]", given, least=2)
        cuts = np.linspace(points.min(), points.max(), int(given) + 1)[1:-1]
    else:
        cuts = numbers_of(f"bins[{name!r}]", given)
        if cuts.ndim != 1 or not len(cuts) or not (np.diff(cuts) > 0).all():
            raise ValueError(
                f"bins[{name!r}]: expected a number or increasing limits, got {given!r}"
            )
    shown = [f"{cut:g}" for cut in cuts]
    names = [f"{name} < {shown[0]}"]
    names += [f"{a} ≤ {name} < {b}" for a, b in itertools.pairwise(shown)]
    names.append(f"{name} ≥ {shown[-1]}")
    return [(float(i), names[i]) for i in np.searchsorted(cuts, points, side="right")]


def declared(argument: str, coded: Coded, names: Sequence[str] | None) -> Coded:
    """Return codes with the declared names, in their order.

    Raises:
        ValueError: the log contains a name that was not declared.
    """
    if names is None:
        return coded
    wanted = [name if isinstance(name, str) else _written(_number(name)) for name in names]
    for name in coded.names:
        if name not in wanted:
            row = int(np.flatnonzero(coded.codes == coded.names.index(name))[0]) + 1
            raise ValueError(f"{argument}: row {row} has {name!r}{meant(name, wanted)}")
    place = np.array([*(wanted.index(name) for name in coded.names), -1])
    return Coded(place[coded.codes], tuple(wanted))


def floats(argument: str, columns: Columns, name: str) -> Float[np.ndarray, " rows"]:
    """Return a column of numbers; missing cells are NaN. A name that starts with − is negated.

    Raises:
        ValueError: a cell is not a finite number; the message names its row.
    """
    sign = 1.0 if name in columns.cells else -1.0
    cells = columns.cells[name if sign > 0 else name[1:]]
    try:
        values = np.array(cells, float)  # None becomes NaN
    except (TypeError, ValueError):
        values = np.array([math.nan if c is None else _number(c) for c in cells], float)
    wrong = ~np.isfinite(values)
    for row in np.flatnonzero(wrong):
        if cells[row] is not None:
            raise ValueError(
                f"{argument}: row {row + 1} of {name!r} has {cells[row]!r}, not a number"
            )
    return sign * values


def times(columns: Columns, name: str) -> Float[np.ndarray, " rows"]:
    """Return a column of times, numbers or ISO dates, as floats (dates in seconds).

    Raises:
        ValueError: a cell is missing, or is neither.
    """
    seen: dict[Any, float] = {}
    for row, cell in enumerate(columns.cells[name]):
        if cell in seen:
            continue
        number = _number(cell)
        if number is None:
            number = _seconds(cell)
        if number is None:
            shown = "no value" if cell is None else repr(cell)
            raise ValueError(
                f"time: row {row + 1} of {name!r} has {shown}, expected a number or an ISO date"
            )
        seen[cell] = number
    return np.array([seen[cell] for cell in columns.cells[name]])


def _seconds(cell: Any) -> float | None:
    if hasattr(cell, "timestamp"):  # datetime, pandas
        return cell.replace(tzinfo=cell.tzinfo or datetime.UTC).timestamp()
    if isinstance(cell, datetime.date):
        cell = cell.isoformat()
    try:
        found = datetime.datetime.fromisoformat(cell)
    except (TypeError, ValueError):
        return None
    return found.replace(tzinfo=found.tzinfo or datetime.UTC).timestamp()


def truths(argument: str, columns: Columns, name: str) -> np.ndarray:
    """Return a column of yes and no as booleans; a missing cell is no.

    Raises:
        ValueError: a cell is neither.
    """
    words: Mapping[Any, bool] = {
        **dict.fromkeys(("1", "true", "yes", "1.0", "t", "y"), True),
        **dict.fromkeys(("0", "false", "no", "0.0", "f", "n", "none"), False),
    }
    found = np.zeros(columns.rows, bool)
    for row, cell in enumerate(columns.cells[name]):
        word = str(cell).lower()
        if word not in words:
            raise ValueError(
                f"{argument}: row {row + 1} of {name!r} has {cell!r}, expected yes or no"
            )
        found[row] = words[word]
    return found
