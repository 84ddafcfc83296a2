"""Columns of a log: a CSV or Parquet file, a pandas or Arrow table, a mapping, a Minari dataset."""

from __future__ import annotations

import csv
import gc
import itertools
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from holdfast._support.arguments import meant

# Strings that stand for a missing cell.
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
# Rows of a CSV file that are split into columns at a time.
_CHUNK = 1 << 16
# The columns of a Minari dataset.
MINARI = {
    "state": "observation",
    "action": "action",
    "next_state": "next_observation",
    "terminated": "terminated",
    "episode": "episode",
}


class Columns(NamedTuple):
    """Columns of a log by name.

    Attributes:
        name: the log in messages.
        cells: lists of equal length; None is a missing cell.
    """

    name: str
    cells: Mapping[str, list[Any]]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.cells.values())))


def read_columns(source: Any, wanted: Mapping[str, str]) -> Columns:
    """Return the wanted columns of a log.

    Arguments:
        source: a path, a pandas or Arrow table, a mapping from names to columns, or a Minari id.
        wanted: the argument that asks for each column, by the column's name.

    Raises:
        ValueError: the log cannot be read, is empty, or has no such column.
    """
    name, header, column = _opened(source, wanted)
    for each, argument in wanted.items():
        if each not in header:
            raise ValueError(f"{argument}: {name} has no column {each!r}{meant(each, header)}")
    cells = {
        each: _cells(column(each), f"{argument}: column {each!r}")
        for each, argument in wanted.items()
    }
    found = Columns(name, cells)
    lengths = {each: len(values) for each, values in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name}: the columns have different lengths, {lengths}")
    if not cells or not found.rows:
        raise ValueError(f"{name}: there are no rows")
    return found


def is_minari(source: Any) -> bool:
    """Whether a source is the id of a Minari dataset: a string that ends with -v0, and no file."""
    if not isinstance(source, str) or Path(source).exists():
        return False
    stem, _, version = source.rpartition("-v")
    return bool(stem) and version.isdigit()


def _cells(column: list[Any], name: str) -> list[Any]:
    """Return a column in which missing cells are None."""
    try:
        distinct = {
            value: _cell(value) for value in set(column)
        }  # few, in a column of a million rows
    except TypeError as error:
        raise ValueError(f"{name}: a cell is neither text nor a number: {error}") from error
    return list(map(distinct.__getitem__, column))


def _cell(value: Any) -> Any:
    """Return a cell, or None if it is missing."""
    if isinstance(value, str):
        text = value.strip()
        return None if text.lower() in _MISSING else text
    return None if value is None or value != value else value


def _opened(source: Any, wanted: Iterable[str]) -> tuple[str, Sequence[str], Any]:
    """Return the name of a log, its header, and a function that returns a column."""
    if is_minari(source):
        return _minari(source)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise ValueError(f"{path}: no such file")
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(path, wanted)
        return _csv(path, set(wanted))
    if isinstance(source, Mapping):
        return "the log", [*source], lambda name: list(source[name])
    if hasattr(source, "column_names") and hasattr(source, "column"):  # Arrow
        return "the table", source.column_names, lambda name: source.column(name).to_pylist()
    if hasattr(source, "columns") and hasattr(source, "iloc"):  # pandas
        frame = source
        column = lambda name: frame[name].astype(object).where(frame[name].notna(), None).tolist()  # noqa: E731
        return "the table", [str(each) for each in frame.columns], column
    raise ValueError(
        "log: expected a CSV or Parquet file, a pandas or Arrow table, a mapping from names to columns, "
        f"or the id of a Minari dataset, got {type(source).__name__}"
    )


def _csv(path: Path, wanted: set[str]) -> tuple[str, Sequence[str], Any]:
    # A million lists make the garbage collector search them all, again and again: half of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max(",;\t", key=first.count)
            reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            if len(set(header)) < len(header):
                twice = next(n for i, n in enumerate(header) if n in header[:i])
                raise ValueError(f"the column {twice!r} is duplicated")
            cells: dict[str, list[Any]] = {name: [] for name in header if name in wanted}
            place = {name: header.index(name) for name in cells}
            line = 1
            while chunk := list(itertools.islice(reader, _CHUNK)):
                if not set(map(len, chunk)) <= {0, len(header)}:
                    at = next(i for i, row in enumerate(chunk) if len(row) not in (0, len(header)))
                    where = f"row {line + at} has {len(chunk[at])} fields"
                    raise ValueError(f"{where}, expected {len(header)}")
                rows = [row for row in chunk if row]  # blank lines
                for name, values in cells.items():
                    values += map(operator.itemgetter(place[name]), rows)
                line += len(chunk)
    except (csv.Error, UnicodeDecodeError, ValueError, OSError) as error:
        raise ValueError(f"{path}: not a CSV file that can be read: {error}") from error
    finally:
        if collecting:
            gc.enable()
    return str(path), header, cells.__getitem__


def _parquet(path: Path, wanted: Iterable[str]) -> tuple[str, Sequence[str], Any]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ValueError(
            f'{path}: Parquet files need pyarrow; pip install "holdfast[data]"'
        ) from error
    try:
        header = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[name for name in wanted if name in header])
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: not a Parquet file that can be read: {reason}") from error
    return str(path), header, lambda name: table.column(name).to_pylist()


def _minari(name: str) -> tuple[str, Sequence[str], Any]:
    """Return the episodes of a Minari dataset with discrete spaces as columns."""
    try:
        import minari
        from gymnasium.spaces import Discrete
    except ImportError as error:
        raise ValueError(
            f'log: Minari datasets need minari; pip install "holdfast[data]", got {name!r}'
        ) from error
    if name not in minari.list_local_datasets():
        known = list(minari.list_local_datasets())
        raise ValueError(
            f"log: there is no file or local Minari dataset {name!r}{meant(name, known)}"
        )
    dataset = minari.load_dataset(name)
    for what in ("observation", "action"):
        space = getattr(dataset, f"{what}_space")
        if not isinstance(space, Discrete):
            raise ValueError(f"log: {name} has the {what} space {space}, expected Discrete")
    parts: dict[str, list[np.ndarray]] = {each: [] for each in (*MINARI.values(), "reward")}
    for i, episode in enumerate(dataset.iterate_episodes()):
        steps = len(episode.actions)
        seen = np.asarray(episode.observations)
        parts["observation"].append(seen[:steps])
        parts["next_observation"].append(seen[1 : steps + 1])
        parts["action"].append(np.asarray(episode.actions))
        parts["reward"].append(np.asarray(episode.rewards))
        parts["terminated"].append(np.asarray(episode.terminations))
        parts["episode"].append(np.full(steps, i))
    columns = {each: np.concatenate(values).tolist() for each, values in parts.items()}
    return name, list(columns), columns.__getitem__
