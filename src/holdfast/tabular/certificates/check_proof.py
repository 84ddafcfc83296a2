"""The checker of proof files: `Certificate.save` writes them, `check_proof` says yes or no.

The checker decides every claim from the evidence beside it, in exact arithmetic. With T_L the robust
Bellman operator built from lower bounds on the worst responses, and T_q that of a member q of the set,

    V ≤ T_L V  implies  ρ·V ≤ worst value,      V ≥ T_q V  implies  ρ·V ≥ worst value,

and W(s) ≥ max_a q·(r + Σλ_i c_i + γW) with λ ≥ 0 implies that no feasible policy, whatever it
depends on, has a worst-case reward above ρ·W − λ·d. `docs/how-to/proofs.md` describes the file.

This module and `exact_model` import the standard library and NumPy only.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Protocol

from holdfast.tabular.certificates.exact_model import (
    ExactModel,
    Vector,
    distribution,
    lower_bound,
    mean,
    member,
    read_model,
)

FORMAT = "holdfast-proof-1"

ExactKernel = Sequence[Sequence[Vector]]


class Saveable(Protocol):
    """A model that can write itself to a file, such as a `RobustCMDP`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a `.npz` file."""


@dataclass(frozen=True)
class ProofCheck:
    """What a check of a proof file found.

    Attributes:
        accepted: whether every claim in the file follows from its evidence.
        statements: the verified claims in words; empty if the proof is refused.
        reason: why the proof is refused; empty if it is accepted.
    """

    accepted: bool
    statements: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        if not self.accepted:
            return f"refused: {self.reason}"
        return "\n".join(
            ["accepted: every claim was verified in exact arithmetic", *self.statements]
        )


class RefusedError(Exception):
    """A claim does not follow from the evidence; the message says which and where."""


def check_proof(
    path: str | os.PathLike[str], model: str | os.PathLike[str] | Saveable
) -> ProofCheck:
    """Return whether a proof file proves its claims about a policy in a model.

    The check uses exact rational arithmetic and directed rounding. It needs neither JAX nor a solver,
    and shares no code with the computation of certificates.

    Arguments:
        path: the file that `Certificate.save` wrote.
        model: the model, or the `.npz` file that `RobustCMDP.save` wrote.

    Raises:
        ValueError: the file is not a proof, or the model cannot be checked; the message names the file.

    Example:
        >>> import pathlib, tempfile, holdfast as hf
        >>> model = hf.environments.gambler(goal=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "proof.json"
        ...     hf.certify(model, [0] * model.states).save(path)
        ...     check = hf.check_proof(path, model)
        >>> check.accepted
        True
        >>> check.statements[1]
        'every constraint holds in the worst case'
    """
    try:
        proof = json.loads(Path(path).read_text("utf-8"), parse_constant=_not_json)
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise ValueError(f"{path}: not a proof file: {error}") from error
    if not isinstance(proof, dict) or proof.get("format") != FORMAT:
        raise ValueError(f"{path}: not a proof file: its format is not {FORMAT!r}")
    return check(proof, exact(model))


def exact(model: str | os.PathLike[str] | Saveable) -> ExactModel:
    """Return a model or its file in exact arithmetic."""
    if isinstance(model, (str, os.PathLike)):
        return read_model(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.npz")
        return read_model(Path(folder) / "model.npz")


def check(proof: dict[str, Any], model: ExactModel) -> ProofCheck:
    """Return whether the claims in the content of a proof file follow from its evidence."""
    try:
        return ProofCheck(True, tuple(_verified(proof, model)), "")
    except RefusedError as refused:
        return ProofCheck(False, (), str(refused))


def _verified(proof: dict[str, Any], model: ExactModel) -> Iterable[str]:
    policy = read_policy(proof, model)
    states = model.reachable(policy)
    signals = _records(proof, "signals", len(model.signals))
    ends = [_values(model, policy, states, i, record) for i, record in enumerate(signals)]
    margins = [low - d for (low, _), d in zip(ends[1:], model.thresholds, strict=True)]
    for i, margin in enumerate(margins):
        _claim(signals[i + 1], "margin", f"constraint {i}", margin, at_most=True)
    _feasible(
        proof, margins, [up - d for (_, up), d in zip(ends[1:], model.thresholds, strict=True)]
    )

    reward = signals[0]
    yield f"the worst-case reward is between {reward['lower']!r} and {reward['upper']!r}"
    if proof["feasible"] is not None:
        yield _FEASIBILITY[proof["feasible"]]
    for name, record in zip(model.names, signals[1:], strict=True):
        yield f"{name}: the worst-case margin is at least {record['margin']!r}"
    for record in _records(proof, "bounds"):
        yield _bound(model, record)


_FEASIBILITY = {
    True: "every constraint holds in the worst case",
    False: "a constraint is violated in the worst case",
}


def read_policy(proof: dict[str, Any], model: ExactModel) -> list[list[Fraction]]:
    """Return the policy with rows that sum to one exactly."""
    shape = len(model.rows), len(model.rows[0])
    rows = numbers(proof, "policy", shape, "the proof")
    try:
        return [distribution(row, f"row {s} of the policy") for s, row in enumerate(rows)]
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _values(
    model: ExactModel, policy: Sequence[Vector], states: list[int], i: int, record: dict[str, Any]
) -> tuple[Fraction, Fraction]:
    """Return the proved bracket of the worst value of signal i, and check what is claimed of it."""
    where = f"signal {i}"
    count = len(model.rows)
    lower = numbers(record, "lower_values", (count,), where)
    multipliers = read_multipliers(record, model, where)
    excess, state = excess_below(model, policy, states, i, lower, multipliers)
    if excess > 0:
        raise RefusedError(
            f"{where}: lower_values fall short in state {state}, by {float(excess):.3g}"
        )
    upper = numbers(record, "upper_values", (count,), where)
    kernel = read_kernel(model, record, where)
    excess, state = excess_above(model, policy, states, model.signals[i], kernel, upper)
    if excess > 0:
        raise RefusedError(
            f"{where}: upper_values fall short in state {state}, by {float(excess):.3g}"
        )
    low, high = mean(model.initial, lower), mean(model.initial, upper)
    _claim(record, "lower", where, low, at_most=True)
    _claim(record, "upper", where, high, at_most=False)
    return low, high


def excess_below(
    model: ExactModel,
    policy: Sequence[Vector],
    states: Iterable[int],
    i: int,
    values: Vector,
    multipliers: Sequence[Sequence[Fraction | None]],
) -> tuple[Fraction, int]:
    """Return max_s (V − T_L V)(s) for signal i, and the state at which it is attained."""

    def operator(s: int) -> Fraction:
        return sum(
            (
                share
                * lower_bound(
                    model,
                    row,
                    model.targets(row, model.signals[i][s][a], values),
                    multipliers[s][a],
                )
                for a, (share, row) in enumerate(zip(policy[s], model.rows[s], strict=True))
                if share
            ),
            Fraction(),
        )

    return max((values[s] - operator(s), s) for s in states)


def excess_above(
    model: ExactModel,
    policy: Sequence[Vector] | None,
    states: Iterable[int],
    signal: Sequence[Sequence[Vector]],
    kernel: ExactKernel,
    values: Vector,
) -> tuple[Fraction, int]:
    """Return max_s (T_q V − V)(s), and the state at which it is attained.

    Arguments:
        model: the model.
        policy: the policy; None for the best action in each state.
        states: the states to look at.
        signal: for each state and action one number per entry of the row.
        kernel: q.
        values: V.
    """

    def operator(s: int) -> Fraction:
        rows = list(enumerate(model.rows[s]))
        of = [mean(kernel[s][a], model.targets(row, signal[s][a], values)) for a, row in rows]
        return max(of) if policy is None else mean(policy[s], of)

    return max((operator(s) - values[s], s) for s in states)


def _feasible(proof: dict[str, Any], margins: Vector, upper: Vector) -> None:
    """Check the claim on feasibility: true, false, or null where it is open."""
    claimed = proof.get("feasible", "")
    if claimed is True and not all(margin >= 0 for margin in margins):
        raise RefusedError("feasible: a margin is below zero")
    if claimed is False and not any(margin < 0 for margin in upper):
        raise RefusedError("feasible: no violation is proved")
    if not (claimed is None or isinstance(claimed, bool)):
        raise RefusedError("feasible: expected true, false or null")


def _bound(model: ExactModel, record: dict[str, Any]) -> str:
    """Check one bound on all policies; return it in words."""
    method = record.get("method")
    if method not in ("lagrangian", "infeasible"):
        raise RefusedError(f"bounds: the method {method!r} is unknown")
    where = f"bound {method!r}"
    weights = numbers(record, "weights", (len(model.thresholds),), where)
    if any(weight < 0 for weight in weights):
        raise RefusedError(f"{where}: a weight is negative")
    values = numbers(record, "values", (len(model.rows),), where)
    kernel = read_kernel(model, record, where)
    signal = model.combined([Fraction(method == "lagrangian"), *weights])
    excess, state = excess_above(model, None, range(len(values)), signal, kernel, values)
    if excess > 0:
        raise RefusedError(f"{where}: values fall short in state {state}, by {float(excess):.3g}")
    proved = mean(model.initial, values) - mean(weights, model.thresholds)
    if method == "lagrangian":
        _claim(record, "value", where, proved, at_most=False)
        return f"no feasible policy has a worst-case reward above {record['value']!r}"
    if proved >= 0:
        raise RefusedError(f"{where}: the weighted constraints do not exclude each other")
    return "no policy satisfies the constraints in the worst case"


def read_kernel(model: ExactModel, record: dict[str, Any], where: str) -> ExactKernel:
    """Return the kernel that the moves of a record describe, a member of the set in every row."""
    moves: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = {}
    for move in _list(record, "moves", where):
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
    if type(value) not in (int, float) or not math.isfinite(value):
        raise RefusedError(f"{where}: {value!r} is not a finite number")
    return Fraction(value)


def _claim(
    record: dict[str, Any], name: str, where: str, proved: Fraction, *, at_most: bool
) -> None:
    """Check that a claimed number does not flatter: at most, or at least, what is proved."""
    claimed = number(record.get(name), f"{where}: {name}")
    if claimed > proved if at_most else claimed < proved:
        raise RefusedError(f"{where}: {name} is claimed as {record[name]}, proved {float(proved)}")


def _records(proof: dict[str, Any], name: str, count: int | None = None) -> list[dict[str, Any]]:
    found = _list(proof, name, "the proof")
    if count not in (None, len(found)) or not all(isinstance(each, dict) for each in found):
        raise RefusedError(f"{name}: expected {'' if count is None else f'{count} '}records")
    return found


def _list(record: dict[str, Any], name: str, where: str) -> list[Any]:
    found = record.get(name)
    if not isinstance(found, list):
        raise RefusedError(f"{where}: {name} is not a list")
    return found


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
