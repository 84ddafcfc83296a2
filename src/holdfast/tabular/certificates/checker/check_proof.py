"""The checker of proof files: `Certificate.save` writes them, `check_proof` says yes or no.

The checker decides every claim from the evidence beside it, in exact arithmetic. With T_L the robust
Bellman operator built from lower bounds on the worst responses, and T_q that of a member q of the set,

    V ≤ T_L V  implies  ρ·V ≤ worst value,      V ≥ T_q V  implies  ρ·V ≥ worst value,

and W(s) ≥ max_a q·(r + Σλ_i c_i + γW) with λ ≥ 0 implies that no feasible policy, whatever it
depends on, has a worst-case reward above ρ·W − λ·d. `docs/how-to/proofs.md` describes the file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, Protocol

from holdfast.tabular.certificates.checker.model import ExactModel, Vector, mean, read_model
from holdfast.tabular.certificates.checker.record import (
    ExactKernel,
    RefusedError,
    check_claim,
    numbers,
    read_kernel,
    read_multipliers,
    read_policy,
    records,
)
from holdfast.tabular.certificates.checker.sets import lower_bound
from holdfast.tabular.certificates.checker.tree import check_tree

FORMAT = "holdfast-proof-1"


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
        >>> model = hf.environments.gambler()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "proof.json"
        ...     hf.certify(model, [0] * model.states, bound=False).save(path)
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
    except (ArithmeticError, RecursionError) as error:
        return ProofCheck(False, (), f"a number or a tree in it is too large ({error})")


def _verified(proof: dict[str, Any], model: ExactModel) -> Iterable[str]:
    policy = read_policy(proof, model)
    states = model.reachable(policy)
    signals = records(proof, "signals", len(model.signals))
    ends = [_values(model, policy, states, i, record) for i, record in enumerate(signals)]
    margins = [low - d for (low, _), d in zip(ends[1:], model.thresholds, strict=True)]
    for i, margin in enumerate(margins):
        check_claim(signals[i + 1], "margin", f"constraint {i}", margin, at_most=True)
    _feasible(
        proof, margins, [up - d for (_, up), d in zip(ends[1:], model.thresholds, strict=True)]
    )

    reward = signals[0]
    yield f"the worst-case reward is between {reward['lower']!r} and {reward['upper']!r}"
    if proof["feasible"] is not None:
        yield _FEASIBILITY[proof["feasible"]]
    for name, record in zip(model.names, signals[1:], strict=True):
        yield f"{name}: the worst-case margin is at least {record['margin']!r}"
    for record in records(proof, "bounds"):
        yield _bound(model, record)


_FEASIBILITY = {
    True: "every constraint holds in the worst case",
    False: "a constraint is violated in the worst case",
}


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
    check_claim(record, "lower", where, low, at_most=True)
    check_claim(record, "upper", where, high, at_most=False)
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
    """Check one bound on feasible policies; return it in words."""
    method = record.get("method")
    if method == "occupancies":
        return check_tree(model, record)
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
        check_claim(record, "value", where, proved, at_most=False)
        return f"no feasible policy has a worst-case reward above {record['value']!r}"
    if proved >= 0:
        raise RefusedError(f"{where}: the weighted constraints do not exclude each other")
    return "no policy satisfies the constraints in the worst case"


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
