"""The prover: the evidence behind a certificate, as the content of a proof file.

Values and dual variables come from the evaluation in double precision. A vector V that nearly satisfies
V ≤ T_L V is shifted down by a constant until it does: T_L(V − c) = T_L V − γc, so c = e/(1−γ) suffices,
with e = max_s (V − T_L V)(s) in exact arithmetic; with a horizon, c_t = e + γc_{t+1} at step t. Vectors
above are shifted up in the same way. A kernel becomes moves of probability from p, which are
scaled down until the checker finds it in the set.

The checker's model has the states of all steps on one axis, copies of an allowed action in place of the
others, and the mean of a step as the sum of a smaller signal. With a horizon and `reach` rules its sums
have their discounts in the signals. Its bound on all policies is on states × events.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from holdfast._support.files import write_text
from holdfast._support.precision import float64
from holdfast.model import Reach, RobustCMDP
from holdfast.model.allowed import only_allowed
from holdfast.model.by_step import over_steps
from holdfast.model.table import TableLayout, layout_of
from holdfast.tabular.certificates.checker import check_proof as checker
from holdfast.tabular.certificates.checker.evidence import read_kernel, read_policy
from holdfast.tabular.certificates.checker.exact_model import ExactModel, Payoff, Rows, Vector
from holdfast.tabular.certificates.proof_kernels import (
    Moves,
    kernel_moves,
    matching_moves,
    transport_moves,
)
from holdfast.tabular.certificates.proof_optimum import (
    RowEntries,
    best_values,
    optimum_and_kernel,
    own_rows,
)
from holdfast.tabular.certificates.proof_tree import tree_record, up
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import Dual, worst_case, worst_kernel
from holdfast.uncertainty import (
    KL,
    ChiSquare,
    Contamination,
    Interval,
    TotalVariation,
    Wasserstein,
)

if TYPE_CHECKING:
    from holdfast.tabular.certify import Certificate

_SETS = (KL, ChiSquare, Contamination, Interval, TotalVariation, Wasserstein)
# Accepted difference between the proved bounds and the certificate's, relative to max(1, |bound|).
# Storing vectors as doubles often costs more than the certificate's own error.
_SLACK = 1e-9


def save_proof(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Write a proof of a certificate, after the checker has accepted it.

    Raises:
        ValueError: the set is user-defined, or a statement of the certificate could not be proved.
    """
    text = json.dumps(prove(certificate), allow_nan=False, separators=(",", ":"))
    found = checker.check(json.loads(text), checker.exact(certificate.model))
    if not found.accepted:
        raise ValueError(f"the certificate could not be proved: {found.reason}")
    write_text(path, text + "\n")


@float64
def prove(certificate: Certificate) -> dict[str, Any]:
    """Return the content of a proof file for a certificate.

    Raises:
        ValueError: the set is user-defined, or a statement of the certificate could not be proved.
    """
    model = certificate.model
    if type(model.uncertainty) not in _SETS:
        raise ValueError(
            f"uncertainty: proof files exist for the six built-in sets, not for {model.uncertainty}"
        )
    exact, layout = checker.exact(model), layout_of(model)
    proof: dict[str, Any] = {
        "format": checker.FORMAT,
        "policy": certificate.policy.reshape(-1, model.actions).tolist(),
    }
    policy = read_policy(proof, exact)
    worst = worst_case(layout.table, layout.pad_policy(certificate.policy), Dual())
    evaluation = certificate.evaluation
    found = [
        _signal(layout, exact, policy, worst, i) for i in range(1 + len(evaluation.constraints))
    ]
    for i, (record, shown) in enumerate(
        zip(found, (evaluation.reward, *evaluation.constraints), strict=True)
    ):
        sign = model.constraints[i - 1].sign if i else 1.0
        value, slack = sign * shown.worst, max(shown.error, _SLACK * max(1.0, abs(shown.worst)))
        if not (record["lower"] >= value - slack and record["upper"] <= value + slack):
            raise ValueError(
                f"{shown.name}: the proved values, {record['lower']!r} to {record['upper']!r}, are "
                f"further apart than the certificate's error {shown.error:.1e} allows"
            )
    pairs = zip(found[1:], exact.signals[1:], strict=True)
    upper = [Fraction(record["upper"]) - signal.threshold for record, signal in pairs]
    feasible: bool | None = None
    if all(record["margin"] >= 0 for record in found[1:]):
        feasible = True
    elif any(margin < 0 for margin in upper):
        feasible = False
    if certificate.feasible and not feasible:
        raise ValueError("feasible: a margin is too close to zero to be proved")
    return proof | {
        "signals": found,
        "feasible": feasible,
        "bounds": _bounds(certificate, layout, exact),
    }


def _signal(
    layout: TableLayout,
    exact: ExactModel,
    policy: Rows,
    worst: PolicyValues,
    i: int,
) -> dict[str, Any]:
    """Return claims and evidence for the worst-case value of one signal."""
    assert worst.multipliers is not None
    signal, units = exact.signals[i], _units(layout.model, i)
    states = exact.reachable(signal, policy)
    values = layout.unpad(worst.values[i]).ravel() * units
    found = layout.unpad(worst.multipliers[i]).reshape(len(values), -1)
    multipliers = _multipliers(exact, signal, values, found, units)
    table = [[Fraction(m or 0) for m in row] for row in multipliers]
    lower = _shifted(
        layout.model,
        exact,
        values,
        states,
        lambda v: checker.excess_below(exact, policy, signal, table, v)[0],
        -1,
    )
    q = own_rows(layout, worst_kernel(layout.table, worst, i))
    moves = _moves(layout, exact, q, signal, values)
    kernel = read_kernel(exact, {"moves": moves}, "the prover")
    upper = _shifted(
        layout.model,
        exact,
        values,
        states,
        lambda v: checker.excess_above(exact, policy, signal, kernel, v)[0],
        1,
    )
    low = signal.value(lower)
    margin = {"margin": -up(signal.threshold - low)} if i else {}
    return {
        "lower": -up(-low),
        "upper": up(signal.value(upper)),
        **margin,
        "lower_values": [float(v) for v in lower],
        "multipliers": multipliers
        if any(m is not None for row in multipliers for m in row)
        else None,
        "upper_values": [float(v) for v in upper],
        "moves": moves,
    }


def _units(model: RobustCMDP, i: int) -> Float[np.ndarray, " n"]:
    """Return the factor from values of signal i to those of the checker, in the states of all steps."""
    rules = [isinstance(constraint, Reach) for constraint in model.constraints]
    units = np.ones((model.horizon or 1) * model.states)
    if i and rules[i - 1]:
        return units
    if model.horizon is not None and any(rules):
        units = np.repeat(model.discount ** np.arange(model.horizon), model.states)
    return units / model.constraints[i - 1].steps if i else units


def _bounds(
    certificate: Certificate, layout: TableLayout, exact: ExactModel
) -> list[dict[str, Any]]:
    """Return claims and evidence for the bound on all policies."""
    bound, size = certificate.upper_bound, len(exact.signals) - 1
    if bound == math.inf:
        return []
    # Without a requested bound the multipliers are NaN, and a model can still be shown infeasible.
    weights = np.maximum(np.nan_to_num(certificate.multipliers), 0.0)
    if bound == -math.inf:
        for each in (weights, *np.eye(size)):
            record, proved = _best(layout, exact, each, "infeasible")
            if each.any() and proved < 0:
                return [record]
        raise ValueError("upper_bound: it could not be proved that no policy is feasible")
    record, proved = _best(layout, exact, weights, "lagrangian")
    records = [record | {"value": up(proved)}]
    if certificate.proof is not None:
        records.append(tree_record(exact, certificate.proof))
    return records


def _best(
    layout: TableLayout, exact: ExactModel, weights: Float[np.ndarray, " m"], method: str
) -> tuple[dict[str, Any], Fraction]:
    """Return the evidence that bounds the largest value of weighted signals, and the bound."""
    reward = float(method == "lagrangian")
    # In the checker's model signals of means of a step are smaller, so that their weights are larger.
    own = weights * [constraint.steps for constraint in layout.model.constraints]
    wide, signal = exact.remembering([Fraction(reward), *map(Fraction, own.tolist())])
    entries = RowEntries.of(wide, signal)
    values, q = optimum_and_kernel(layout, exact, entries, np.append(reward, weights))
    moves = _moves(layout, wide, q, signal, values)
    kernel = read_kernel(wide, {"moves": moves}, "the prover")
    exactly = np.array([float(mass) for rows in kernel for row in rows for mass in row])
    shifted = _shifted(
        layout.model,
        wide,
        best_values(entries, exactly, values),
        range(len(values)),
        lambda v: checker.excess_above(wide, None, signal, kernel, v)[0],
        1,
    )
    record = {
        "method": method,
        "weights": own.tolist(),
        "values": [float(v) for v in shifted],
        "moves": moves,
    }
    return record, signal.value(shifted) - signal.threshold


def _shifted(
    model: RobustCMDP,
    exact: ExactModel,
    values: Float[np.ndarray, " n"],
    states: Sequence[int],
    excess: Callable[[list[Fraction]], Fraction],
    sign: int,
) -> list[Fraction]:
    """Return values plus the least constants, one for each step, at which the excess vanishes.

    The values are rounded to multiples of the last bit of the largest one, so that the sums with a
    multiple of it are exact.
    """
    largest = max((abs(float(values[s])) for s in states), default=0.0)
    unit = Fraction(2) ** (math.frexp(largest)[1] - 52)
    grid = [round(Fraction(value) / unit) * unit for value in values.tolist()]
    # An upward shift of a lower bound would not carry over where the signal ends.
    missing, discount = max(excess(grid), Fraction()) / unit, exact.rows[0][0].discount
    if model.horizon is None:
        shifts = [math.ceil(missing / (1 - discount))]
    else:
        shifts = [math.ceil(missing)]
        for _ in range(1, model.horizon):
            shifts.insert(0, math.ceil(missing + discount * shifts[0]))
    return [
        Fraction(float(value + sign * shifts[s // model.states % len(shifts)] * unit))
        for s, value in enumerate(grid)
    ]


def _multipliers(
    exact: ExactModel,
    signal: Payoff,
    values: Float[np.ndarray, " S"],
    found: Float[np.ndarray, "S A"],
    units: Float[np.ndarray, " S"],
) -> list[list[float | None]]:
    """Return a dual variable for each row of a KL, χ² or Wasserstein set; None for the others.

    Those that were found are for targets without the factor `units`.
    """
    if exact.kind not in ("kl", "chi-square", "wasserstein"):
        return [[None] * len(rows) for rows in exact.rows]
    fractions = [Fraction(value) for value in values.tolist()]

    def of_row(s: int, a: int) -> float | None:
        row = exact.rows[s][a]
        if row.radius is None or not units[s]:  # a power of γ may underflow
            return None
        y = exact.targets(signal, s, a, fractions)
        if exact.kind == "kl":
            # The table may have merged entries; the multiplier is the same.
            return float(found[s, a] / units[s]) if found[s, a] > 0 else None
        if exact.kind == "chi-square":
            return _depth(row.p, y, row.radius)
        if (
            row.radius == 0
        ):  # a price so high that moving mass over any positive distance never pays
            least = min((d for away in exact.metric for d in away if d), default=Fraction(1))
            return float((max(y) - min(y)) / least * 2)
        return float(found[s, a] * units[s])

    return [[of_row(s, a) for a in range(len(rows))] for s, rows in enumerate(exact.rows)]


def _depth(p: Vector, y: Vector, radius: Fraction) -> float:
    """Return η − min y at the largest η − √((1 + R)·Σ p·max(η − y, 0)²).

    Between two targets the maximum has a closed form; the best candidate of all parts is returned.
    """
    lowest = min(y)
    order = np.argsort([float(target - lowest) for target in y])
    u = np.array([float(target - lowest) for target in y])[order]
    weight = np.array([float(mass) for mass in p])[order]
    growth = 1 + float(radius)
    best, depth = 0.0, 0.0
    for count in range(1, len(u) + 1):
        mass = weight[:count].sum()
        center = weight[:count] @ u[:count] / mass
        variance = weight[:count] @ (u[:count] - center) ** 2 / mass
        surplus = growth * mass - 1
        if not (surplus > 0 and variance > 0):
            continue
        eta = center + math.sqrt(variance / surplus)
        value = eta - math.sqrt(growth * (weight @ np.maximum(eta - u, 0) ** 2))
        if value > best:
            best, depth = value, eta
    return float(depth)


def _moves(
    layout: TableLayout,
    exact: ExactModel,
    q: Float[np.ndarray, "n A K"],
    signal: Payoff,
    values: Float[np.ndarray, " n"],
) -> Moves:
    """Return the moves of a worst-case kernel, the worst response to values.

    Arguments:
        layout: the model.
        exact: the same for the checker, perhaps on states that know events.
        q: the kernel, from `own_rows`.
        signal: the signal.
        values: one number for each state of `exact`.
    """
    model = only_allowed(layout.model)
    if not isinstance(model.uncertainty, Wasserstein):
        return kernel_moves(exact, matching_moves(exact, q))
    shape, steps = (model.states, model.actions, model.states), model.horizon or 1
    rows = over_steps(model.uncertainty, steps, shape)
    sets = len(exact.rows) // (steps * model.states)
    rows = over_steps(rows, sets, (steps * model.states, *shape[1:]))
    return kernel_moves(exact, transport_moves(exact, rows, signal, values))
