"""Reading the records of a proof file: numbers as fractions, kernels as members of the set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from holdfast.tabular.certificates.checker.model import ExactModel, Vector, distribution
from holdfast.tabular.certificates.checker.sets import member

ExactKernel = Sequence[Sequence[Vector]]


class RefusedError(Exception):
    """A claim does not follow from the evidence; the message says which and where."""


def read_policy(proof: dict[str, Any], model: ExactModel) -> list[list[Fraction]]:
    """Return the policy with rows that sum to one exactly."""
    shape = len(model.rows), len(model.rows[0])
    rows = numbers(proof, "policy", shape, "the proof")
    try:
        return [distribution(row, f"row {s} of the policy") for s, row in enumerate(rows)]
    except ValueError as error:
        raise RefusedError(str(error)) from error


def read_kernel(model: ExactModel, record: dict[str, Any], where: str) -> ExactKernel:
    """Return the kernel that the moves of a record describe, a member of the set in every row."""
    moves: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = {}
    for move in read_list(record, "moves", where):
        whole = isinstance(move, list) and len(move) == 5 and all(type(n) is int for n in move[:4])
        if not whole or not (0 <= move[0] < len(model.rows) and 0 <= move[1] < len(model.rows[0])):
            raise RefusedError(f"{where}: moves: {move!r} is not [state, action, from, to, mass]")
        s, a, source, sink, mass = move
        moves.setdefault((s, a), []).append((source, sink, number(mass, f"{where}: moves")))
    kernel = [[row.p for row in rows] for rows in model.rows]
    for (s, a), of_row in moves.items():
        q = member(model, model.rows[s][a], of_row)
        if q is None:
            raise RefusedError(f"{where}: the kernel is not in the set at state {s}, action {a}")
        kernel[s][a] = q
    return kernel


def read_multipliers(
    record: dict[str, Any], model: ExactModel, where: str
) -> list[list[Fraction | None]]:
    """Return one multiplier per row; null means none. A missing table means none anywhere."""
    shape = len(model.rows), len(model.rows[0])
    if record.get("multipliers") is None:
        return [[None] * shape[1]] * shape[0]
    table = numbers(record, "multipliers", shape, where, empty=True)
    if any(each is not None and each < 0 for row in table for each in row):
        raise RefusedError(f"{where}: a multiplier is negative")
    return table


def numbers(
    record: dict[str, Any], name: str, shape: tuple[int, ...], where: str, *, empty: bool = False
) -> Any:
    """Return nested lists of numbers as fractions; with `empty`, null entries become None."""

    def read(value: Any, shape: tuple[int, ...]) -> Any:
        if not shape:
            return None if empty and value is None else number(value, f"{where}: {name}")
        if not isinstance(value, list) or len(value) != shape[0]:
            raise RefusedError(f"{where}: {name} does not have the shape that the model requires")
        return [read(each, shape[1:]) for each in value]

    return read(record.get(name), shape)


def number(value: Any, where: str) -> Fraction:
    """Return a JSON number as a fraction."""
    if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
        raise RefusedError(f"{where}: {value!r} is not a finite number")
    return Fraction(value)


def check_claim(
    record: dict[str, Any], name: str, where: str, proved: Fraction, *, at_most: bool
) -> None:
    """Check that a claimed number does not flatter: at most, or at least, what is proved."""
    claimed = number(record.get(name), f"{where}: {name}")
    if claimed > proved if at_most else claimed < proved:
        raise RefusedError(f"{where}: {name} is claimed as {record[name]}, proved {float(proved)}")


def records(proof: dict[str, Any], name: str, count: int | None = None) -> list[dict[str, Any]]:
    """Return the records, of which there have to be `count`, under a name."""
    found = read_list(proof, name, "the proof")
    if count not in (None, len(found)) or not all(isinstance(each, dict) for each in found):
        raise RefusedError(f"{name}: expected {'' if count is None else f'{count} '}records")
    return found


def read_list(record: dict[str, Any], name: str, where: str) -> list[Any]:
    """Return the list under a name."""
    found = record.get(name)
    if not isinstance(found, list):
        raise RefusedError(f"{where}: {name} is not a list")
    return found


def whole(value: Any, count: int, where: str, least: int = 0) -> int:
    """Return a whole number from `least` to count − 1."""
    if type(value) is not int or not least <= value < count:
        raise RefusedError(f"{where}: {value!r} is not a whole number from {least} to {count - 1}")
    return value
