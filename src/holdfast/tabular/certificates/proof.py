"""The prover: the evidence behind a certificate, as the content of a proof file.

Values and dual variables come from the evaluation in double precision. A vector V that nearly satisfies
V ≤ T_L V is shifted down by a constant until it does: T_L(V − c) = T_L V − γc, so c = e/(1−γ) suffices,
with e = max_s (V − T_L V)(s) in exact arithmetic; with a horizon, c_t = e + γc_{t+1} at step t. Vectors
above are shifted up in the same way. A kernel becomes moves of probability from p, which are
scaled down until the checker finds it in the set.

The checker's model has the states of all steps on one axis, copies of an allowed action in place of the
others, and the average per step as the sum of a smaller signal.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from jaxtyping import Float

from holdfast._support.files import write_text
from holdfast._support.precision import float64
from holdfast.model import Kernel, RobustCMDP
from holdfast.model.allowed import allowed_copies, only_allowed
from holdfast.model.by_step import over_steps
from holdfast.model.table import TableLayout, layout_of
from holdfast.tabular.certificates.checker import check_proof as checker
from holdfast.tabular.certificates.checker.evidence import read_kernel, read_policy
from holdfast.tabular.certificates.checker.exact_model import ExactModel, Rows, Table, Vector, mean
from holdfast.tabular.certificates.proof_kernels import (
    Moves,
    kernel_moves,
    matching_moves,
    transport_moves,
)
from holdfast.tabular.certificates.proof_tree import tree_record, up
from holdfast.tabular.evaluation.optimum import robust_optimum
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
# Limit on the rounds of policy iteration under one kernel. It ends by itself within about ten.
_MAX_ROUNDS = 100


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
    upper = [
        Fraction(record["upper"]) - d for record, d in zip(found[1:], exact.thresholds, strict=True)
    ]
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
    states = exact.reachable(policy)
    # Signals of constraints on the average per step are divided by the number of steps.
    unit = layout.model.constraints[i - 1].steps if i else 1.0
    values = layout.unpad(worst.values[i]).ravel() / unit
    signal = exact.signals[i]
    found = layout.unpad(worst.multipliers[i]).reshape(len(values), -1)
    multipliers = _multipliers(exact, signal, values, found, unit)
    table = [[Fraction(m or 0) for m in row] for row in multipliers]
    lower = _shifted(
        layout.model,
        values,
        states,
        lambda v: checker.excess_below(exact, policy, signal, table, v)[0],
        -1,
    )
    moves = _moves(layout, exact, worst_kernel(layout.table, worst, i), signal, values)
    kernel = read_kernel(exact, {"moves": moves}, "the prover")
    upper = _shifted(
        layout.model,
        values,
        states,
        lambda v: checker.excess_above(exact, policy, signal, kernel, v)[0],
        1,
    )
    low = mean(exact.initial, lower)
    margin = {"margin": -up(exact.thresholds[i - 1] - low)} if i else {}
    return {
        "lower": -up(-low),
        "upper": up(mean(exact.initial, upper)),
        **margin,
        "lower_values": [float(v) for v in lower],
        "multipliers": multipliers
        if any(m is not None for row in multipliers for m in row)
        else None,
        "upper_values": [float(v) for v in upper],
        "moves": moves,
    }


def _bounds(
    certificate: Certificate, layout: TableLayout, exact: ExactModel
) -> list[dict[str, Any]]:
    """Return claims and evidence for the bound on all policies."""
    bound, size = certificate.upper_bound, len(exact.thresholds)
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
    table, reward = layout.table, float(method == "lagrangian")
    combined = jnp.tensordot(jnp.asarray([reward, *weights.tolist()]), table.signals, axes=1)
    # In the checker's model signals of averages per step are smaller, so that their weights are larger.
    weights = weights * [constraint.steps for constraint in layout.model.constraints]
    exact_weights = [Fraction(reward), *map(Fraction, weights.tolist())]
    joint = table.with_signals(combined[None])
    optimum = robust_optimum(table, combined)
    worst = worst_case(joint, optimum.policy, Dual(), optimum.values)
    values = layout.unpad(worst.values[0]).ravel()
    signal = exact.combined(exact_weights)
    moves = _moves(layout, exact, worst_kernel(joint, worst, 0), signal, values)
    kernel = read_kernel(exact, {"moves": moves}, "the prover")
    everywhere = range(len(values))
    shifted = _shifted(
        layout.model,
        _best_values(exact, kernel, signal, values),
        everywhere,
        lambda v: checker.excess_above(exact, None, signal, kernel, v)[0],
        1,
    )
    record = {
        "method": method,
        "weights": weights.tolist(),
        "values": [float(v) for v in shifted],
        "moves": moves,
    }
    proved = mean(exact.initial, shifted) - mean(exact_weights[1:], exact.thresholds)
    return record, proved


def _best_values(
    exact: ExactModel,
    kernel: Table,
    signal: Table,
    values: Float[np.ndarray, " S"],
) -> Float[np.ndarray, " S"]:
    """Return the largest values of a signal under one kernel, by policy iteration."""
    states, actions = len(exact.rows), len(exact.rows[0])
    entries = [
        (s * actions + a, to, float(q * row.discount), float(q * c))
        for s, rows in enumerate(exact.rows)
        for a, row in enumerate(rows)
        for to, q, c in zip(row.to, kernel[s][a], signal[s][a], strict=True)
    ]
    pair, to, q, qc = map(np.array, zip(*entries, strict=True))
    reward = np.bincount(pair, qc, states * actions)
    chain = scipy.sparse.csr_array((q, (pair, to)), (states * actions, states))
    identity = scipy.sparse.eye_array(states)
    chosen = None
    for _ in range(_MAX_ROUNDS):
        found = (reward + chain @ values).reshape(states, actions)
        best = found.argmax(-1)
        # An action changes only if another one is better by more than rounding.
        if chosen is not None:
            rows = np.arange(states)
            gain = found[rows, best] - found[rows, chosen]
            best = np.where(gain > 1e-13 * np.abs(found).max(), best, chosen)
            if (best == chosen).all():
                break
        chosen = best
        taken = np.arange(states) * actions + chosen
        system = scipy.sparse.csc_array(identity - chain[taken])
        values = scipy.sparse.linalg.splu(system).solve(reward[taken])
    return values


def _shifted(
    model: RobustCMDP,
    values: Float[np.ndarray, " S"],
    states: Sequence[int],
    excess: Callable[[list[Fraction]], Fraction],
    sign: int,
) -> list[Fraction]:
    """Return values plus the least constants, one for each step, at which the excess vanishes.

    The values are rounded to multiples of the last bit of the largest one, so that the sums with a
    multiple of it are exact.
    """
    unit = Fraction(2) ** (math.frexp(max(abs(float(values[s])) for s in states))[1] - 52)
    grid = [round(Fraction(value) / unit) * unit for value in values.tolist()]
    missing, discount = excess(grid) / unit, Fraction(model.discount)
    if model.horizon is None:
        shifts = [math.ceil(missing / (1 - discount))]
    else:
        shifts = [math.ceil(missing)]
        for _ in range(1, model.horizon):
            shifts.insert(0, math.ceil(missing + discount * shifts[0]))
    return [
        Fraction(float(value + sign * shifts[s // model.states] * unit))
        for s, value in enumerate(grid)
    ]


def _multipliers(
    exact: ExactModel,
    signal: Table,
    values: Float[np.ndarray, " S"],
    found: Float[np.ndarray, "S A"],
    unit: float,
) -> list[list[float | None]]:
    """Return a dual variable for each row of a KL, χ² or Wasserstein set; None for the others.

    The given multipliers belong to targets that are `unit` times as large.
    """
    if exact.kind not in ("kl", "chi-square", "wasserstein"):
        return [[None] * len(rows) for rows in exact.rows]
    fractions = [Fraction(value) for value in values.tolist()]

    def of_row(s: int, a: int) -> float | None:
        row = exact.rows[s][a]
        if row.radius is None:
            return None
        y = exact.targets(row, signal[s][a], fractions)
        if exact.kind == "kl":
            # The table may have merged entries; the multiplier is the same.
            return float(found[s, a] * unit) if found[s, a] > 0 else None
        if exact.kind == "chi-square":
            return _depth(row.p, y, row.radius)
        if (
            row.radius == 0
        ):  # a price so high that moving mass over any positive distance never pays
            least = min((d for away in exact.metric for d in away if d), default=Fraction(1))
            return float((max(y) - min(y)) / least * 2)
        return float(found[s, a] / unit)

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
    kernel: Any,
    signal: Table,
    values: Float[np.ndarray, " S"],
) -> Moves:
    """Return the moves of a worst-case kernel of the table, the worst response to values."""
    model = only_allowed(layout.model)
    if isinstance(model.uncertainty, Wasserstein):
        shape = model.states, model.actions, model.states
        rows = over_steps(model.uncertainty, model.horizon or 1, shape)
        return kernel_moves(exact, transport_moves(exact, rows, signal, values))
    own = layout.kernel(kernel)
    q = own.probabilities if isinstance(own, Kernel) else own
    q = q[..., np.arange(model.states)[:, None], allowed_copies(layout.model), :]
    return kernel_moves(exact, matching_moves(exact, q.reshape(len(exact.rows), *q.shape[-2:])))
