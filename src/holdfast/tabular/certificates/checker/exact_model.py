"""A model file in exact arithmetic, with lower bounds and members of the six uncertainty sets.

Every number in a file is a double, so it is a rational number. Rows, initial distributions and policies
are divided by their exact sums. Sums, products and comparisons are exact. Exponentials, logarithms and
square roots are rounded in the direction that keeps the statement true.
"""

from __future__ import annotations

import decimal
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Vector = Sequence[Fraction]
Rows = Sequence[Vector]
Table = Sequence[Rows]  # by state, by action, by entry of the row: a kernel or a signal
Record = dict[str, Any]  # what JSON calls an object

_FORMAT = "holdfast-model-1"
_HEADER = {"format", "discount", "constraints", "uncertainty"}
_CONSTRAINT = {"threshold", "sense", "name", "per"}
# Rows in a file may miss one by this, as in `RobustCMDP`; they are divided by their sum.
_ROW_SUM_TOLERANCE = Fraction(1e-8)
# The sets whose rows and bounds the checker knows.
KINDS = ("kl", "chi-square", "total-variation", "contamination", "interval", "wasserstein")
# Digits of exponentials and logarithms. Doubles have 16; the rest absorbs small multipliers and radii.
_UP = decimal.Context(prec=60, rounding=decimal.ROUND_CEILING, Emin=-99_999, Emax=99_999)
# Relative error of `exp` and `ln`, which round to the nearest decimal, with room to spare.
_NEXT = 1 + Fraction(1, 10**58)
# Exponents below this count as this. The bound from above stays valid, and e^-5000 is negligible.
_LEAST_EXPONENT = Fraction(-5000)
# Bits of a square root, and after the point of the other rounded numbers.
_BITS = 200
_ZERO, _ONE = Fraction(), Fraction(1)


class RefusedError(ValueError):
    """A claim does not follow from the evidence, or a file is damaged; the message says where."""


def require(holds: bool, message: str) -> None:
    """Refuse with a message if something does not hold."""
    if not holds:
        raise RefusedError(message)


@dataclass(frozen=True)
class ExactRow:
    """One row (s, a) of the nominal kernel, with the entries that some member of the set may use.

    Attributes:
        place: for each such entry, its index in the file's row, or the next state if the set may lead
            to any state.
        to: next states.
        p: nominal probabilities; they sum to one exactly.
        radius: radius of the set; None if infinite.
        room: for an interval set, how far each entry may fall below p and rise above it.
        discount: factor on the value of the next state.
    """

    place: dict[int, int]
    to: list[int]
    p: list[Fraction]
    radius: Fraction | None
    room: list[tuple[Fraction, Fraction]]
    discount: Fraction


@dataclass(frozen=True)
class ExactModel:
    """A model with rational numbers, and every constraint as a utility.

    With a horizon of H steps, state s at step t < H is the state t·S + s, and nothing follows the last
    step. The average per step is the sum of a signal that is divided by the number of steps.

    Attributes:
        kind: name of the uncertainty set.
        rows: one row for each state and action.
        signals: reward, then utilities: for each state and action one number per entry of its row.
        thresholds: least values of the utilities.
        names: the constraints in words.
        initial: initial distribution; it sums to one exactly.
        metric: distances between states, for a Wasserstein set.
        visits: Σ_t γ^t, the discounted number of steps.
        barred: states and actions that are not allowed; their rows are those of an allowed action.
    """

    kind: str
    rows: list[list[ExactRow]]
    signals: list[Table]
    thresholds: list[Fraction]
    names: list[str]
    initial: list[Fraction]
    metric: list[list[Fraction]]
    visits: Fraction
    barred: list[tuple[int, int]]

    def targets(self, row: ExactRow, signal: Vector, values: Vector) -> list[Fraction]:
        """Return y = signal + γV(s') for the entries of a row."""
        return [c + row.discount * values[to] for c, to in zip(signal, row.to, strict=True)]

    def combined(self, weights: Vector) -> Table:
        """Return the weighted sum of the signals."""

        def entries(s: int, a: int) -> list[Fraction]:
            paid = zip(*(signal[s][a] for signal in self.signals), strict=True)
            return [mean(weights, each) for each in paid]

        return [[entries(s, a) for a in range(len(row))] for s, row in enumerate(self.rows)]

    def reachable(self, policy: Rows) -> list[int]:
        """Return the states that the policy may visit under some member of the set."""
        found: set[int] = set()
        new = {s for s, mass in enumerate(self.initial) if mass}
        while new:
            found |= new
            rows = [pair for s in new for pair in zip(policy[s], self.rows[s], strict=True)]
            new = {to for share, row in rows if share and row.discount for to in row.to} - found
        return sorted(found)


def read_model(path: str | os.PathLike[str]) -> ExactModel:
    """Return the model in a file that `RobustCMDP.save` wrote.

    Raises:
        ValueError: the file is not a model, or has a set or a field that the checker does not know.
    """
    try:
        # np.load does not close a file that it cannot read.
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # Deflate expands a byte to at most 1,032; a file may declare more, to exhaust the memory.
            for part in file.zip.infolist():
                fits = part.file_size <= 1032 * (part.compress_size + 1)
                require(fits, f"{part.filename} declares {part.file_size:,} bytes")
            arrays = {name: file[name] for name in file.files}
        return _exact(json.loads(str(arrays["header"])), arrays)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise eight kinds for damaged archives
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: not a model that can be checked: {reason}") from error


def _exact(header: Record, arrays: dict[str, np.ndarray]) -> ExactModel:
    horizon, limits, gamma = header.get("horizon"), header["constraints"], header["discount"]
    known = all(set(limit) <= _CONSTRAINT for limit in limits)
    require(known, "the checker supports sums and averages per step, and no reach rules")
    known = header["format"] == _FORMAT and set(header) - {"about", "horizon"} == _HEADER
    require(known, f"expected the format {_FORMAT!r} with the fields {sorted(_HEADER)}")
    given, steps, discount = header["uncertainty"], header.get("horizon", 1), Fraction(gamma)
    fit = 0 <= gamma <= 1 and (gamma < 1 or horizon is not None)
    require(fit, f"the discount {gamma} is out of range")
    kind, metric = given["set"], arrays.get("uncertainty_metric", np.zeros((0, 0)))
    require(kind in KINDS, f"the checker knows the sets {', '.join(KINDS)}, not {kind!r}")
    lists = "successors" in arrays
    entries = arrays["probabilities" if lists else "transitions"]
    states, actions, width = shape = entries.shape[-3:]

    def by_step(array: np.ndarray, axes: int) -> np.ndarray:
        """Return a number, an array over states, or one over steps and states as the last of these."""
        shapes = (), shape[:axes], (horizon, *shape[:axes])
        require(array.shape in shapes, f"an array has the shape {array.shape}")
        return np.broadcast_to(array, (steps, *shape[:axes]))

    every = np.broadcast_to(np.arange(states), (states, actions, states))
    p, to = by_step(entries, 3), by_step(arrays.get("successors", every), 3)
    require(to.min() >= 0 and to.max() < states, "a successor is not a state")
    fit = kind != "wasserstein" or metric.shape == (states, states)
    fit = fit and bool((metric >= 0).all() and not metric.diagonal().any())
    require(fit, "the metric is not a distance")
    # These sets may move mass to any state. Their rows are over states, not over listed entries.
    anywhere = not given.get("within_support", kind in ("kl", "chi-square", "interval"))
    radius = by_step(arrays["uncertainty_radius"], 2)
    sides = ("uncertainty_lower", "uncertainty_upper") if kind == "interval" else ()
    bounds = [by_step(arrays[side], 3) for side in sides]
    allowed = arrays.get("allowed", np.ones(shape[:2])).astype(bool)
    require(allowed.shape == shape[:2] and bool(allowed.any(-1).all()), "a state has no action")
    # An action that is not allowed is a copy of the first allowed one.
    action = np.where(allowed, np.arange(actions), allowed.argmax(-1)[:, None]).tolist()

    def row(t: int, s: int, a: int) -> ExactRow:
        at = t, s, a
        require(radius[at] >= 0, f"the radius at {at} is {radius[at]}")
        size = Fraction(radius[at]) if radius[at] < np.inf else None
        nominal, ends = distribution(p[at].tolist(), f"the row {at}"), to[at].tolist()
        room = [(_ZERO, _ZERO)] * max(width, states)
        if anywhere:
            listed, ends = list(zip(nominal, ends, strict=True)), list(range(states))
            nominal = [total(mass for mass, state in listed if state == k) for k in ends]
        elif kind == "interval":
            low, center, high = (list(map(Fraction, x[at])) for x in (bounds[0], p, bounds[1]))
            room = [
                (_room(size, x - a, x, q), _room(size, b - x, x, 1 - q))
                for a, x, b, q in zip(low, center, high, nominal, strict=True)
            ]
        open_ended = anywhere and (kind == "wasserstein" or size != 0)
        used = [k for k, mass in enumerate(nominal) if open_ended or mass + room[k][1]]
        place, q = {k: n for n, k in enumerate(used)}, [nominal[k] for k in used]
        leads_to = [(t + 1) % steps * states + ends[k] for k in used]
        factor = _ZERO if horizon == t + 1 else discount  # nothing follows the last step
        return ExactRow(place, leads_to, q, size, [room[k] for k in used], factor)

    pairs = [[(t, s, a) for a in action[s]] for t in range(steps) for s in range(states)]
    rows = [[row(*at) for at in of_state] for of_state in pairs]

    def signal(array: np.ndarray, factor: Fraction | int) -> Table:
        by_entry = array.ndim == 4 or array.shape == shape
        require(not (by_entry and anywhere and lists), "a signal has entries for listed successors")
        paid = by_step(array, 2 + by_entry)

        def of_row(at: tuple[int, int, int], place: dict[int, int]) -> list[Fraction]:
            return [factor * Fraction(paid[at][k] if by_entry else paid[at]) for k in place]

        each = zip(pairs, rows, strict=True)
        return [[of_row(at, row.place) for at, row in zip(*both, strict=True)] for both in each]

    visits = total(discount**t for t in range(steps)) if horizon else 1 / (1 - discount)
    signals, thresholds, names = [signal(arrays["reward"], 1)], [], []
    for i, limit in enumerate(limits):
        sign, per = {"at_least": 1, "at_most": -1}[limit["sense"]], limit.get("per", "total")
        factor = {"total": Fraction(sign), "step": sign / visits}[per]
        signals.append(signal(arrays[f"constraint_{i}"], factor))
        thresholds.append(sign * Fraction(limit["threshold"]))
        name = (limit["name"] or ("utility", "cost")[sign < 0]) + " per step" * (per == "step")
        names.append(f"{name} {'≥≤'[sign < 0]} {limit['threshold']:g}")
    initial = distribution(arrays["initial"].tolist(), "the initial distribution")
    initial += [_ZERO] * (len(rows) - states)
    distances = [list(map(Fraction, row)) for row in metric]
    barred = [(t * states + s, a) for t in range(steps) for s, a in np.argwhere(~allowed).tolist()]
    return ExactModel(kind, rows, signals, thresholds, names, initial, distances, visits, barred)


def distribution(numbers: Sequence[float], what: str) -> list[Fraction]:
    """Return non-negative numbers divided by their exact sum.

    Raises:
        RefusedError: a number is negative, or the sum is not close to one.
    """
    exact = [Fraction(number) for number in numbers]
    whole = total(exact)
    fits = min(exact) >= 0 and abs(whole - 1) <= _ROW_SUM_TOLERANCE
    require(fits, f"{what} is not a distribution")
    return [number / whole for number in exact]


def _room(radius: Fraction | None, width: Fraction, p: Fraction, most: Fraction) -> Fraction:
    """Return radius·width, at most `most`; zero times infinity is zero.

    An interval that ends within four rounding errors of p ends at p.
    """
    if width <= p / 2**50 or radius == 0:
        return _ZERO
    return most if radius is None else min(radius * width, most)


def mean(p: Vector, y: Vector) -> Fraction:
    """Return p·y."""
    return total(mass * target for mass, target in zip(p, y, strict=True))


def total(terms: Iterable[Fraction]) -> Fraction:
    """Return the sum of some terms."""
    return sum(terms, _ZERO)


def lower_bound(model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction) -> Fraction:
    """Return a lower bound on min q·y over the set, valid for every multiplier.

    Arguments:
        model: the model.
        row: the row (s, a).
        y: targets of the row's entries.
        multiplier: dual variable of a KL, χ² or Wasserstein set. Zero gives the smallest target for the
            first two.
    """
    lowest, radius, price = min(y), row.radius, multiplier
    pairs = list(zip(row.p, y, strict=True))
    if model.kind == "interval":  # start at the lower ends, and fill up the smallest targets first
        value = total(t * (p - r[0]) for (p, t), r in zip(pairs, row.room, strict=True))
        left = total(below for below, _ in row.room)
        for target, (below, above) in sorted(zip(y, row.room, strict=True)):
            given = min(below + above, left)
            value, left = value + given * target, left - given
    elif radius is None:
        value = lowest
    elif model.kind == "total-variation":  # move mass from the largest targets to the smallest one
        value, left = mean(row.p, y), radius
        for target, p in sorted(zip(y, row.p, strict=True), reverse=True):
            moved = min(p, left)
            value, left = value - moved * (target - lowest), left - moved
    elif model.kind == "contamination":
        share = min(radius, _ONE)
        value = (1 - share) * mean(row.p, y) + share * lowest
    elif model.kind == "wasserstein":  # Σ p_j·min_k(y_k + μ·d(j, k)) − μR
        value = -price * radius
        for (p, _), away in zip(pairs, model.metric, strict=True):
            if p:
                value += p * min(target + price * d for target, d in zip(y, away, strict=True))
    elif not radius:
        value = mean(row.p, y)
    elif model.kind == "chi-square":  # η − √((1 + R)·Σ p·max(η − y, 0)²) with η = min y + μ
        eta = lowest + price
        value = eta - root_up((1 + radius) * total(p * max(eta - t, _ZERO) ** 2 for p, t in pairs))
    else:  # min y − (log Σ p·exp(−β(y − min y)) + R)/β
        value = lowest
        if price:
            mass = total(p * _exp_up(price * (lowest - target)) for p, target in pairs)
            value -= (log_up(mass) + radius) / price
    return max(lowest, value)


def member(
    model: ExactModel, row: ExactRow, moves: Sequence[tuple[int, int, Fraction]]
) -> list[Fraction] | None:
    """Return the row q that results from p by the moves, or None if q is not in the set.

    Arguments:
        model: the model.
        row: the row (s, a).
        moves: entry that loses mass, another entry that receives it, and the mass.
    """
    q, sent, cost = list(row.p), [_ZERO] * len(row.p), _ZERO
    for source, sink, mass in moves:
        if mass < 0 or source == sink or source not in row.place or sink not in row.place:
            return None
        start, end = row.place[source], row.place[sink]
        q[start] -= mass
        q[end] += mass
        sent[start] += mass
        cost += mass * model.metric[start][end] if model.metric else 0
    if min(q) < 0:
        return None
    radius, pairs = row.radius, list(zip(q, row.p, strict=True))
    if model.kind == "interval":
        ends = zip(pairs, row.room, strict=True)
        inside = all(-below <= new - p <= above for (new, p), (below, above) in ends)
    elif radius is None or q == row.p:
        inside = True
    elif model.kind == "kl":  # the terms are exact except for the logarithms, which are rounded up
        inside = total(new * log_up(new / p) for new, p in pairs if new) <= radius
    elif model.kind == "chi-square":
        inside = total((new - p) ** 2 / p for new, p in pairs) <= radius
    elif model.kind == "total-variation":
        inside = total(max(new - p, _ZERO) for new, p in pairs) <= radius
    elif model.kind == "contamination":
        inside = all(new >= (1 - min(radius, _ONE)) * p for new, p in pairs)
    else:  # a plan moves no more mass than there is
        inside = cost <= radius and all(out <= p for out, p in zip(sent, row.p, strict=True))
    return q if inside else None


def _rounded_up(number: Fraction) -> decimal.Decimal:
    """Return the least decimal of the working precision that is not below a number."""
    return _UP.divide(decimal.Decimal(number.numerator), decimal.Decimal(number.denominator))


def _short(number: Fraction) -> Fraction:
    """Return a number rounded up to 200 bits after the point: sums of decimals would grow long."""
    return Fraction(math.ceil(number * (1 << _BITS)), 1 << _BITS)


def _exp_up(exponent: Fraction) -> Fraction:
    """Return an upper bound on an exponential."""
    return _short(Fraction(_UP.exp(_rounded_up(max(exponent, _LEAST_EXPONENT)))) * _NEXT)


def log_up(number: Fraction) -> Fraction:
    """Return an upper bound on a logarithm."""
    found = Fraction(_UP.ln(_rounded_up(number)))
    return _short(found * _NEXT if found > 0 else found / _NEXT)


def root_up(number: Fraction) -> Fraction:
    """Return an upper bound on a square root: √(n/d) = √(n·d)/d."""
    product = number.numerator * number.denominator
    shift = max(0, _BITS - product.bit_length() // 2)
    return Fraction(math.isqrt(product << 2 * shift) + 1, number.denominator << shift)
