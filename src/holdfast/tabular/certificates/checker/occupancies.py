"""The part of the proof checker that replays a branch and bound over boxes of stationary policies.

Nature is confined to a few members q_k of the set, which can only help the policy. A feasible policy π
with the visits X_k(s) and x_k(s, a) = π(a|s)·X_k(s) under each q_k and the worst-case reward t satisfies
a linear program in every box of policies that contains it (`ExactProgram`). Every step of the tree is an
upper bound on an objective c over such a program, by weak duality: for multipliers y, which are
non-negative on inequalities,

    c·z ≤ y·b + Σ_v max(g_v·lower_v, g_v·upper_v),   g = c − Aᵀy.

All numbers are integers over a common denominator; only the terms of the last sum are rounded, up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, lcm
from typing import NamedTuple

from holdfast.tabular.certificates.checker.model import ExactModel, Vector, mean

# Policies in boxes are multiples of 2⁻²⁰, ends of intervals of visits are rounded outwards to multiples
# of 2⁻⁶⁴, and the terms of a bound are rounded up to multiples of 2⁻²⁰⁰.
BOX_BITS, END_BITS, TERM_BITS = 20, 64, 200
# Kinds of steps. The others are 2f + 1, an upper end of visit f = k·S + s, and 2f, a lower end. Ends
# take effect with the next step of the kind `NARROWED`.
BOUND, EMPTY, NARROWED = -1, -2, -3


class ProofNode(NamedTuple):
    """A box of policies: its parent's, with π(pair) ≥ point if `above`, π(pair) ≤ point otherwise."""

    parent: int
    pair: int
    point: Fraction
    above: bool


class ProofStep(NamedTuple):
    """A bound in a node: its kind, the multipliers that prove it by row, and its value."""

    kind: int
    multipliers: Sequence[tuple[int, Fraction]]
    value: Fraction | None


@dataclass(frozen=True)
class KnownRegion:
    """What is known in a node: box of policies, intervals of visits, and a bound on the reward.

    Attributes:
        low: lower ends of π, in units of 2⁻²⁰.
        high: upper ends of π.
        least: lower ends of the visits, in units of 2⁻⁶⁴.
        most: upper ends of the visits.
        bound: upper bound on t; None while there is none.
        empty: whether no policy with t ≥ cutoff is left.
    """

    low: list[int]
    high: list[int]
    least: list[int]
    most: list[int]
    bound: Fraction | None
    empty: bool


class ExactProgram:
    """The linear program of a node; `docs/how-to/proofs.md` lists its variables and rows.

    Arguments:
        model: the model.
        pairs: the (state, action) pairs that policies may use, in row-major order.
        kernels: members of the set, one row for each pair.
        cutoff: least worst-case reward of the policies that are looked for.
    """

    def __init__(
        self,
        model: ExactModel,
        pairs: Sequence[tuple[int, int]],
        kernels: Sequence[Sequence[Vector]],
        cutoff: Fraction,
    ) -> None:
        states, size = len(model.rows), len(pairs)
        self.pairs, self.kernels, self.discount = pairs, len(kernels), model.discount
        self.of_state = [[j for j, pair in enumerate(pairs) if pair[0] == s] for s in range(states)]
        self.divided = [j for j, (s, _) in enumerate(pairs) if len(self.of_state[s]) > 1]
        self.width = 1 + size + self.kernels * (size + states)
        # Rows that depend on the node, McCormick's, are listed here and have no coefficients below.
        self.envelopes: dict[int, tuple[int, int, int]] = {}
        one, zero = Fraction(1), Fraction()
        rows: list[tuple[dict[int, Fraction], Fraction, bool]] = []
        rows += [({1 + j: one for j in group}, one, True) for group in self.of_state]
        limits = [cutoff]
        for k, kernel in enumerate(kernels):
            x, X = self.first(k), self.first(k) + size
            for s, group in enumerate(self.of_state):
                rows.append(({x + j: one for j in group} | {X + s: -one}, zero, True))
            flow = [{X + s: one} for s in range(states)]
            for j, (s, a) in enumerate(pairs):
                for to, q in zip(model.rows[s][a].to, kernel[j], strict=True):
                    flow[to][x + j] = flow[to].get(x + j, zero) - model.discount * q
            rows += [(row, mass, True) for row, mass in zip(flow, model.initial, strict=True)]
            reward, *utilities = (
                [mean(kernel[j], signal[s][a]) for j, (s, a) in enumerate(pairs)]
                for signal in model.signals
            )
            for utility, d in zip(utilities, model.thresholds, strict=True):
                rows.append(({x + j: -u for j, u in enumerate(utility)}, -d, False))
            rows.append(({0: one} | {x + j: -r for j, r in enumerate(reward)}, zero, False))
            limits.append(max(reward) / (1 - model.discount))
            for j in self.divided:
                for kind in range(4):
                    self.envelopes[len(rows)] = k, j, kind
                    rows.append(({}, zero, False))
        self.reward = cutoff, max(limits)
        self.equation = [is_equation for *_, is_equation in rows]
        # Every column has its own denominator, with which all its coefficients are integers. McCormick's
        # rows have ends of visits in the columns of π, and ends of π in those of X.
        self.scale = [1] * self.width
        for coefficients, *_ in rows:
            for v, value in coefficients.items():
                self.scale[v] = lcm(self.scale[v], value.denominator)
        self.scale[1 : 1 + size] = [1 << END_BITS] * size
        for k in range(self.kernels):
            X = self.first(k) + size
            self.scale[X : X + states] = [1 << BOX_BITS] * states
        self.rows = [
            ([(v, int(value * self.scale[v])) for v, value in coefficients.items() if value], b)
            for coefficients, b, _ in rows
        ]

    def first(self, k: int) -> int:
        """Return the column of x_k(0)."""
        return 1 + len(self.pairs) + k * (len(self.pairs) + len(self.of_state))

    def root(self) -> KnownRegion:
        """Return the region of all policies: visits lie between 0 and 1/(1−γ)."""
        most = ceil((1 << END_BITS) / (1 - self.discount))
        count = self.kernels * len(self.of_state)
        alone = [len(self.of_state[s]) == 1 for s, _ in self.pairs]
        low, high = [only << BOX_BITS for only in alone], [1 << BOX_BITS for _ in alone]
        return KnownRegion(low, high, [0] * count, [most] * count, None, False)

    def part(self, region: KnownRegion, node: ProofNode) -> KnownRegion:
        """Return the part of a region on one side of a point, with the box made as small as possible."""
        low, high, whole = list(region.low), list(region.high), 1 << BOX_BITS
        (low if node.above else high)[node.pair] = int(node.point * whole)
        group = self.of_state[self.pairs[node.pair][0]]
        least, most = sum(low[j] for j in group), sum(high[j] for j in group)
        ends = [
            (max(low[j], whole - most + high[j]), min(high[j], whole - least + low[j]))
            for j in group
        ]
        for j, (down, up) in zip(group, ends, strict=True):
            low[j], high[j] = down, up
        empty = region.empty or any(down > up for down, up in ends)
        return replace(region, low=low, high=high, empty=empty)

    def bound(self, region: KnownRegion, step: ProofStep) -> Fraction:
        """Return the upper bound on a step's objective that its multipliers prove.

        The objective is t for `BOUND`, 0 for `EMPTY`, and X or −X for an end of a visit.
        """
        unit = lcm(*(y.denominator for _, y in step.multipliers))
        left = [0] * self.width  # unit·scale·g
        goal, sign = 0, int(step.kind == BOUND)
        if step.kind >= 0:
            k, s = divmod(step.kind // 2, len(self.of_state))
            goal, sign = self.first(k) + len(self.pairs) + s, 1 if step.kind % 2 else -1
        left[goal] = sign * self.scale[goal] * unit
        total, products = Fraction(), 0
        for row, multiplier in step.multipliers:
            y = int(multiplier * unit)
            if row in self.envelopes:
                products += self._envelope(region, row, y, left)
                continue
            coefficients, b = self.rows[row]
            total += y * b
            for v, value in coefficients:
                left[v] -= y * value
        terms = 0
        for g, scale, (lower, upper, denominator) in zip(
            left, self.scale, self._ranges(region), strict=True
        ):
            if g:
                term = g * (upper if g > 0 else lower) << TERM_BITS
                terms += -(-term // (denominator * scale * unit))
        total = (total + Fraction(products, 1 << BOX_BITS + END_BITS)) / unit
        return total + Fraction(terms, 1 << TERM_BITS)

    def _envelope(self, region: KnownRegion, row: int, y: int, left: list[int]) -> int:
        """Subtract y times one of McCormick's rows; return y times its right-hand side.

        With an end e of π(j), an end E of X and a sign, the row is ±(x − e·X − E·π) ≤ ∓e·E.
        """
        k, j, kind = self.envelopes[row]
        s, x = self.pairs[j][0], self.first(k)
        signed = -y if kind < 2 else y
        end = (region.high if kind in (1, 2) else region.low)[j]
        level = (region.most if kind in (1, 3) else region.least)[k * len(self.of_state) + s]
        left[x + j] -= signed * self.scale[x + j]
        left[x + len(self.pairs) + s] += signed * end
        left[1 + j] += signed * level
        return -signed * end * level

    def _ranges(self, region: KnownRegion) -> list[tuple[int, int, int]]:
        """Return lower end, upper end and their denominator for every variable."""
        cutoff, limit = self.reward
        both = lcm(cutoff.denominator, limit.denominator)
        ranges = [(int(cutoff * both), int(limit * both), both)]
        ranges += [(a, b, 1 << BOX_BITS) for a, b in zip(region.low, region.high, strict=True)]
        states = len(self.of_state)
        for k in range(self.kernels):
            least, most = (
                ends[k * states : (k + 1) * states] for ends in (region.least, region.most)
            )
            for (s, _), low, high in zip(self.pairs, region.low, region.high, strict=True):
                ranges.append((low * least[s], high * most[s], 1 << BOX_BITS + END_BITS))
            ranges += [(a, b, 1 << END_BITS) for a, b in zip(least, most, strict=True)]
        return ranges


def replay(
    program: ExactProgram,
    nodes: Sequence[ProofNode],
    steps: Sequence[Sequence[ProofStep]],
    settle: Callable[[int, int, Fraction], Fraction],
) -> list[KnownRegion]:
    """Return what is known at the end of every node.

    Arguments:
        program: the linear program.
        nodes: the root, then the others, each after its parent.
        steps: the steps of every node, in order.
        settle: function of node, number of the step and proved bound. It returns the bound to use, which
            is not below the proved one.
    """
    regions: list[KnownRegion] = []
    for n, node in enumerate(nodes):
        region = program.part(regions[node.parent], node) if n else program.root()
        ends: list[tuple[int, Fraction]] = []
        for i, (kind, *_) in enumerate(steps[n]):
            if region.empty:
                break
            if kind == NARROWED:
                region, ends = _narrowed(region, ends), []
                continue
            value = settle(n, i, program.bound(region, steps[n][i]))
            if kind == EMPTY:
                region = replace(region, empty=value < 0)
            elif kind == BOUND:
                least = value if region.bound is None else min(region.bound, value)
                region = replace(region, bound=least)
            else:
                ends.append((kind, value))
        regions.append(region)
    return regions


def _narrowed(region: KnownRegion, ends: Sequence[tuple[int, Fraction]]) -> KnownRegion:
    """Return a region with narrower intervals of visits."""
    least, most = list(region.least), list(region.most)
    for kind, value in ends:
        f = kind // 2
        if kind % 2:
            most[f] = min(most[f], ceil(value * (1 << END_BITS)))
        else:
            least[f] = max(least[f], floor(-value * (1 << END_BITS)))
    # An end beyond the other one shows that nothing is left.
    crossed = any(a > b for a, b in zip(least, most, strict=True))
    return replace(region, least=least, most=most, empty=crossed)
