"""The checker of proof files: `Certificate.save` writes them, `check_proof` says yes or no.

The checker decides every claim from the evidence beside it, in exact arithmetic. With T_L the robust
Bellman operator built from lower bounds on the worst responses, and T_q that of a member q of the set,

    V ≤ T_L V  implies  ρ·V ≤ worst value,      V ≥ T_q V  implies  ρ·V ≥ worst value,

and W(s) ≥ max_a q·(r + Σλ_i c_i + γW) with λ ≥ 0 implies that no feasible policy, whatever it
depends on, has a worst-case reward above ρ·W − λ·d. With `reach` rules q may depend on the events that
have happened, and the claim is about policies given as tables. A bound on stationary policies comes
from a tree of regions of policies: every step is a bound by weak duality on a linear program, and the
leaves cover all policies. `docs/how-to/proofs.md` describes the file, and the variables and rows of the
program.

The checker is this package: four modules, so that each has one idea, with at most 650 lines of code in
all. It imports the standard library, and NumPy to read model files. A test counts and checks both.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from holdfast.tabular.certificates.checker import evidence, exact_sets
from holdfast.tabular.certificates.checker import exact_model as rational
from holdfast.tabular.certificates.checker.exact_model import ExactModel, Record, Rows, require

Payoff = rational.Payoff
Table = rational.Table
FORMAT = "holdfast-proof-1"


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
        lines = ["accepted: every claim was verified in exact arithmetic", *self.statements]
        return "\n".join(lines) if self.accepted else f"refused: {self.reason}"


def check_proof(path: str | os.PathLike[str], model: str | os.PathLike[str] | Any) -> ProofCheck:
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
        proof = json.loads(Path(path).read_text("utf-8"), parse_constant=str)
    except (ValueError, RecursionError, IsADirectoryError) as error:
        raise ValueError(f"{path}: not a proof file: {error}") from error
    if not isinstance(proof, dict) or proof.get("format") != FORMAT:
        raise ValueError(f"{path}: not a proof file: its format is not {FORMAT!r}")
    return check(proof, exact(model))


def exact(model: str | os.PathLike[str] | Any) -> ExactModel:
    """Return a model or its file in exact arithmetic."""
    if isinstance(model, (str, os.PathLike)):
        return rational.read_model(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.npz")
        return rational.read_model(Path(folder) / "model.npz")


def check(proof: Record, model: ExactModel) -> ProofCheck:
    """Return whether the claims in the content of a proof file follow from its evidence."""
    try:
        return ProofCheck(True, tuple(_verified(proof, model)), "")
    except rational.RefusedError as refused:
        return ProofCheck(False, (), str(refused))
    except (ArithmeticError, RecursionError) as error:
        return ProofCheck(False, (), f"a number or a tree in it is too large ({error})")


def _verified(proof: Record, model: ExactModel) -> Iterable[str]:
    policy, claimed = evidence.read_policy(proof, model), proof.get("feasible", "")
    signals = evidence.read_list(proof, "signals", "the proof", dict)
    require(len(signals) == len(model.signals), f"signals: expected {len(model.signals)} records")
    ends = [_values(model, policy, i, record) for i, record in enumerate(signals)]
    rules = list(zip(model.signals, ends, signals, strict=True))[1:]
    for i, (signal, (low, _), record) in enumerate(rules):
        margin = low - signal.threshold
        evidence.check_claim(record, "margin", f"constraint {i}", margin, at_most=True)
    decided = isinstance(claimed, bool)
    require(decided or claimed is None, "feasible: expected true, false or null")
    holds = claimed is not True or all(low >= each.threshold for each, (low, _), _ in rules)
    require(holds, "feasible: a margin is below zero")
    fails = claimed is not False or any(up < each.threshold for each, (_, up), _ in rules)
    require(fails, "feasible: no violation is proved")

    reward = signals[0]
    yield f"the worst-case reward is between {reward['lower']!r} and {reward['upper']!r}"
    if decided:
        found = "every constraint holds" if claimed else "a constraint is violated"
        yield f"{found} in the worst case"
    for signal, _, record in rules:
        yield f"{signal.name}: the worst-case margin is at least {record['margin']!r}"
    for record in evidence.read_list(proof, "bounds", "the proof", dict):
        yield _bound(model, record)


def _values(model: ExactModel, policy: Rows, i: int, record: Record) -> tuple[Fraction, Fraction]:
    """Return the proved bracket of the worst value of signal i, and check what is claimed of it."""
    where, shape = f"signal {i}", (len(model.rows), len(model.rows[0]))
    lower = evidence.numbers(record, "lower_values", shape[:1], where)
    upper = evidence.numbers(record, "upper_values", shape[:1], where)
    multipliers = [[Fraction()] * shape[1]] * shape[0]
    if record.get("multipliers") is not None:
        multipliers = evidence.numbers(record, "multipliers", shape, where)
    require(min(map(min, multipliers)) >= 0, f"{where}: a multiplier is negative")
    signal, kernel = model.signals[i], evidence.read_kernel(model, record, where)
    _check_excess(
        f"{where}: lower_values", *excess_below(model, policy, signal, multipliers, lower)
    )
    _check_excess(f"{where}: upper_values", *excess_above(model, policy, signal, kernel, upper))
    low, high = signal.value(lower), signal.value(upper)
    evidence.check_claim(record, "lower", where, low, at_most=True)
    evidence.check_claim(record, "upper", where, high, at_most=False)
    return low, high


def excess_below(
    model: ExactModel, policy: Rows, signal: Payoff, multipliers: Rows, values: list[Fraction]
) -> tuple[Fraction, int]:
    """Return max_s (V − T_L V)(s) over reachable states, and the state at which it is attained."""

    def low(s: int, a: int) -> Fraction:
        y = model.targets(signal, s, a, values)
        return exact_sets.lower_bound(model, model.rows[s][a], y, multipliers[s][a])

    def operator(s: int) -> Fraction:
        return rational.total(share * low(s, a) for a, share in enumerate(policy[s]) if share)

    states = model.reachable(signal, policy)
    return max(((values[s] - operator(s), s) for s in states), default=(Fraction(), 0))


def excess_above(
    model: ExactModel, policy: Rows | None, signal: Payoff, kernel: Table, values: list[Fraction]
) -> tuple[Fraction, int]:
    """Return max_s (T_q V − V)(s), and the state at which it is attained.

    Arguments:
        model: the model.
        policy: the policy, whose reachable states are looked at; None for the best action in each state.
        signal: the signal.
        kernel: q.
        values: V.
    """

    def operator(s: int) -> Fraction:
        rows = enumerate(kernel[s])
        of = [rational.mean(q, model.targets(signal, s, a, values)) for a, q in rows]
        return max(of) if policy is None else rational.mean(policy[s], of)

    states = range(len(values)) if policy is None else model.reachable(signal, policy)
    return max(((operator(s) - values[s], s) for s in states), default=(Fraction(), 0))


def _bound(model: ExactModel, record: Record) -> str:
    """Check one bound on feasible policies; return it in words."""
    method = record.get("method")
    if method == "occupancies":
        return evidence.check_tree(model, record)
    require(method in ("lagrangian", "infeasible"), f"bounds: the method {method!r} is unknown")
    where = f"bound {method!r}"
    weights = evidence.numbers(record, "weights", (len(model.signals) - 1,), where)
    require(all(weight >= 0 for weight in weights), f"{where}: a weight is negative")
    wide, signal = model.remembering([Fraction(method == "lagrangian"), *weights])
    values = evidence.numbers(record, "values", (len(wide.rows),), where)
    kernel = evidence.read_kernel(wide, record, where)
    _check_excess(f"{where}: values", *excess_above(wide, None, signal, kernel, values))
    proved = signal.value(values) - signal.threshold
    # A kernel that sees events excludes tables only: a policy that sees them too may be better.
    kind = "policy" if len(wide.rows) == len(model.rows) else "policy given as a table"
    if method == "lagrangian":
        evidence.check_claim(record, "value", where, proved, at_most=False)
        return f"no feasible {kind} has a worst-case reward above {record['value']!r}"
    require(proved < 0, f"{where}: the weighted constraints do not exclude each other")
    return f"no {kind} satisfies the constraints in the worst case"


def _check_excess(what: str, excess: Fraction, state: int) -> None:
    require(excess <= 0, f"{what} fall short in state {state}, by {float(excess):.3g}")
