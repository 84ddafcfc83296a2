"""Lower bounds and members of the six uncertainty sets, in exact arithmetic.

Sums, products and comparisons are exact. Exponentials, logarithms and square roots are rounded in the
direction that keeps the statement true.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction

from holdfast.tabular.certificates.checker.model import ExactModel, ExactRow, Vector, mean

# Digits of exponentials and logarithms. Doubles have 16; the rest absorbs small multipliers and radii.
_UP = decimal.Context(prec=60, rounding=decimal.ROUND_CEILING, Emin=-99_999, Emax=99_999)
# Relative error of `exp` and `ln`, which round to the nearest decimal, with room to spare.
_NEXT = 1 + Fraction(1, 10**58)
# Exponents below this count as this. The bound from above stays valid, and e^-5000 is negligible.
_LEAST_EXPONENT = -5000
# Bits of a square root, and after the point of the other rounded numbers.
_BITS = 200


def lower_bound(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    """Return a lower bound on min q·y over the set, valid for every multiplier.

    Arguments:
        model: the model.
        row: the row (s, a).
        y: targets of the row's entries.
        multiplier: dual variable of a KL, χ² or Wasserstein set; None for the smallest target.
    """
    lowest = min(y)
    if model.kind != "interval" and row.radius is None:
        return lowest
    return max(lowest, _LOWER[model.kind](model, row, y, multiplier))


def _kl_lower(model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None) -> Fraction:
    """Return min y − (log Σ p·exp(−β(y − min y)) + R)/β."""
    del model
    lowest = min(y)
    if not row.radius:
        return mean(row.p, y)
    if not multiplier:
        return lowest
    total = Fraction()
    for p, target in zip(row.p, y, strict=True):
        exponent = max(rounded_up(multiplier * (lowest - target)), decimal.Decimal(_LEAST_EXPONENT))
        total += p * _short(Fraction(_UP.exp(exponent)) * _NEXT)
    return lowest - (log_up(total) + row.radius) / multiplier


def _chi_square_lower(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    """Return η − √((1 + R)·Σ p·max(η − y, 0)²) with η = min y + multiplier."""
    del model
    if not row.radius:
        return mean(row.p, y)
    eta = min(y) + (multiplier or 0)
    square = sum(
        (p * max(eta - t, Fraction()) ** 2 for p, t in zip(row.p, y, strict=True)), Fraction()
    )
    return eta - root_up((1 + row.radius) * square)


def _total_variation_lower(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    """Move the radius of mass from the largest targets to the smallest one."""
    del model, multiplier
    value, lowest, left = mean(row.p, y), min(y), row.radius or Fraction()
    for target, p in sorted(zip(y, row.p, strict=True), reverse=True):
        moved = min(p, left)
        value, left = value - moved * (target - lowest), left - moved
    return value


def _contamination_lower(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    del model, multiplier
    radius = min(row.radius or Fraction(), Fraction(1))
    return (1 - radius) * mean(row.p, y) + radius * min(y)


def _interval_lower(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    """Start at the lower ends, and fill up the smallest targets first."""
    del model, multiplier
    value = sum((t * (p - r[0]) for t, p, r in zip(y, row.p, row.room, strict=True)), Fraction())
    left = sum((below for below, _ in row.room), Fraction())
    for target, (below, above) in sorted(zip(y, row.room, strict=True)):
        given = min(below + above, left)
        value, left = value + given * target, left - given
    return value


def _wasserstein_lower(
    model: ExactModel, row: ExactRow, y: Vector, multiplier: Fraction | None
) -> Fraction:
    """Return Σ p_j·min_k(y_k + μ·d(j, k)) − μR."""
    price, radius = multiplier or Fraction(), row.radius or Fraction()
    value = -price * radius
    for p, away in zip(row.p, model.metric, strict=True):
        if p:
            value += p * min(target + price * d for target, d in zip(y, away, strict=True))
    return value


_LOWER = {
    "kl": _kl_lower,
    "chi-square": _chi_square_lower,
    "total-variation": _total_variation_lower,
    "contamination": _contamination_lower,
    "interval": _interval_lower,
    "wasserstein": _wasserstein_lower,
}


def member(
    model: ExactModel, row: ExactRow, moves: Sequence[tuple[int, int, Fraction]]
) -> list[Fraction] | None:
    """Return the row q that moves of probability make of p, or None if q is not in the set.

    Arguments:
        model: the model.
        row: the row (s, a).
        moves: entry that loses mass, another entry that receives it, and the mass.
    """
    q, sent, cost = list(row.p), [Fraction()] * len(row.p), Fraction()
    for source, sink, mass in moves:
        if mass < 0 or source not in row.place or sink not in row.place:
            return None
        if source == sink:
            return None
        start, end = row.place[source], row.place[sink]
        q[start] -= mass
        q[end] += mass
        sent[start] += mass
        if model.metric:
            cost += mass * model.metric[start][end]
    if min(q) < 0:
        return None
    radius, pairs = row.radius, list(zip(q, row.p, strict=True))
    if model.kind == "interval":
        ends = zip(pairs, row.room, strict=True)
        inside = all(-below <= new - p <= above for (new, p), (below, above) in ends)
    elif radius is None or q == row.p:
        inside = True
    elif model.kind == "kl":
        # The terms are exact except for the logarithms, which are rounded up.
        inside = sum((new * log_up(new / p) for new, p in pairs if new), Fraction()) <= radius
    elif model.kind == "chi-square":
        inside = sum(((new - p) ** 2 / p for new, p in pairs), Fraction()) <= radius
    elif model.kind == "total-variation":
        inside = sum((max(new - p, Fraction()) for new, p in pairs), Fraction()) <= radius
    elif model.kind == "contamination":
        inside = all(new >= (1 - min(radius, Fraction(1))) * p for new, p in pairs)
    else:  # a plan moves no more mass than there is
        inside = cost <= radius and all(out <= p for out, p in zip(sent, row.p, strict=True))
    return q if inside else None


def rounded_up(number: Fraction) -> decimal.Decimal:
    """Return the least decimal of the working precision that is not below a number."""
    return _UP.divide(decimal.Decimal(number.numerator), decimal.Decimal(number.denominator))


def _short(number: Fraction) -> Fraction:
    """Return a number rounded up to 200 bits after the point: sums of decimals would grow long."""
    return Fraction(math.ceil(number * (1 << _BITS)), 1 << _BITS)


def log_up(number: Fraction) -> Fraction:
    """Return an upper bound on a logarithm."""
    found = Fraction(_UP.ln(rounded_up(number)))
    return _short(found * _NEXT if found > 0 else found / _NEXT)


def root_up(number: Fraction) -> Fraction:
    """Return an upper bound on a square root: √(n/d) = √(n·d)/d."""
    product = number.numerator * number.denominator
    shift = max(0, _BITS - product.bit_length() // 2)
    return Fraction(math.isqrt(product << 2 * shift) + 1, number.denominator << shift)
