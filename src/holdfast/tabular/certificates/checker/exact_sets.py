"""Lower bounds and members of the six uncertainty sets in exact arithmetic.

Sums, products and comparisons are exact. Exponentials, logarithms and square roots are rounded in the
direction that keeps the statement true.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction

from holdfast.tabular.certificates.checker.exact_model import ExactModel, ExactRow, mean, total

# Digits of exponentials and logarithms. Doubles have 16; the rest absorbs small multipliers and radii.
_UP = decimal.Context(prec=60, rounding=decimal.ROUND_CEILING, Emin=-99_999, Emax=99_999)
# Relative error of `exp` and `ln`, which round to the nearest decimal, with room to spare.
_NEXT = 1 + Fraction(1, 10**58)
# Exponents below this count as this. The bound from above stays valid, and e^-5000 is negligible.
_LEAST_EXPONENT = Fraction(-5000)
# Bits of a square root, and after the point of the other rounded numbers.
_BITS = 200
_ZERO, _ONE = Fraction(), Fraction(1)


def lower_bound(model: ExactModel, row: ExactRow, y: list[Fraction], price: Fraction) -> Fraction:
    """Return a lower bound on min q·y over the set, valid for every multiplier.

    Arguments:
        model: the model.
        row: the row (s, a).
        y: targets of the row's entries.
        price: multiplier, the dual variable of a KL, χ² or Wasserstein set. Zero gives the smallest
            target for the first two.
    """
    lowest, radius = min(y), row.radius
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
    """Return the row q that moves of probability make of p, or None if q is not in the set.

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
