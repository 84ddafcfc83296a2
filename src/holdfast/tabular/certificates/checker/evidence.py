"""The records of a proof file in exact arithmetic, and what a tree of regions of policies proves.

Nature is confined to a few members q_k of the set, which can only help the policy. A feasible policy π
with the visits X_k(s) and x_k(s, a) = π(a|s)·X_k(s) under each q_k and the worst-case reward t satisfies
a linear program in every region that contains it (`ExactProgram`). Every step of the tree is an upper
bound on an objective c over such a program, by weak duality: for multipliers y, which are non-negative
on inequalities,

    c·z ≤ y·b + Σ_v max(g_v·lower_v, g_v·upper_v),   g = c − Aᵀy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

from holdfast.tabular.certificates.checker import exact_model as rational
from holdfast.tabular.certificates.checker import exact_sets
from holdfast.tabular.certificates.checker.exact_model import ExactModel, Record, Rows, require

Pairs = list[tuple[int, int]]
Copy = tuple[Rows, int]
# Probabilities and ratios are multiples of 2⁻²⁰. Coefficients and right-hand sides are rounded to
# multiples of 2⁻²⁰⁰, and the bound allows for that.
_GRID, _BITS = 20, 200
# Kinds of steps. The others are 2f + 1, an upper end of the cone f, and 2f, a lower end. Ends take
# effect with the next step of the kind `NARROWED`.
BOUND, EMPTY, NARROWED = -1, -2, -3


def read_policy(proof: Record, model: ExactModel) -> list[list[Fraction]]:
    """Return the policy with rows that sum to one exactly."""
    given = numbers(proof, "policy", (len(model.rows), len(model.rows[0])), "the proof")
    rows = [rational.distribution(row, f"row {s} of the policy") for s, row in enumerate(given)]
    fits = not any(rows[s][a] for s, a in model.barred)
    require(fits, "the policy takes an action that is not allowed")
    return rows


def read_kernel(model: ExactModel, record: Record, where: str) -> rational.Table:
    """Return the kernel that the moves of a record describe, a member of the set in every row."""
    moves: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = {}
    for move in read_list(record, "moves", where):
        fits = isinstance(move, list) and len(move) == 5 and all(type(n) is int for n in move[:4])
        fits = fits and 0 <= move[0] < len(model.rows) and 0 <= move[1] < len(model.rows[0])
        require(fits, f"{where}: moves: {move!r} is not [state, action, from, to, mass]")
        s, a, source, sink, mass = move
        moves.setdefault((s, a), []).append((source, sink, number(mass, f"{where}: moves")))
    kernel = [[row.p for row in rows] for rows in model.rows]
    for (s, a), of_row in moves.items():
        q = exact_sets.member(model, model.rows[s][a], of_row)
        if q is None:
            raise rational.RefusedError(f"{where}: the kernel is not in the set at ({s}, {a})")
        kernel[s][a] = q
    return kernel


def numbers(record: Record, name: str, shape: tuple[int, ...], where: str) -> Any:
    """Return nested lists of numbers as fractions; null counts as zero."""

    def read(value: Any, shape: tuple[int, ...]) -> Any:
        if not shape:
            return number(0 if value is None else value, f"{where}: {name}")
        fits = isinstance(value, list) and len(value) == shape[0]
        require(fits, f"{where}: {name} does not have the shape that the model requires")
        return [read(each, shape[1:]) for each in value]

    return read(record.get(name), shape)


def number(value: Any, where: str) -> Fraction:
    """Return a JSON number as a fraction."""
    if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
        raise rational.RefusedError(f"{where}: {value!r} is not a finite number")
    return Fraction(value)


def check_claim(
    record: Record, name: str, where: str, proved: Fraction, *, at_most: bool
) -> Fraction:
    """Return a claimed number that does not flatter: at most, or at least, what is proved."""
    claimed = number(record.get(name), f"{where}: {name}")
    fits = claimed <= proved if at_most else claimed >= proved
    require(fits, f"{where}: {name} is claimed as {record[name]}, proved {float(proved)}")
    return claimed


def read_list(record: Record, name: str, where: str, kind: type = object) -> list[Any]:
    """Return the list under a name, with entries of one kind."""
    found = record.get(name)
    if not isinstance(found, list) or not all(isinstance(each, kind) for each in found):
        raise rational.RefusedError(f"{where}: {name} is not a list of {kind.__name__}")
    return found


def whole(value: Any, count: int, where: str, least: int = 0) -> int:
    """Return a whole number from `least` to count − 1."""
    fits = type(value) is int and least <= value < count
    require(fits, f"{where}: {value!r} is not a whole number from {least} to {count - 1}")
    return value


class KnownRegion(NamedTuple):
    """What is known in a node.

    Attributes:
        low: lower ends of π, in units of 2⁻²⁰.
        high: upper ends of π.
        ends: for 2f the slope a and the slack α of X_k ≥ a·X_0 − α, for 2f + 1 those of
            X_k ≤ b·X_0 + β, in units of 2⁻²⁰ and 2⁻²⁰⁰. An end that is missing bounds nothing.
        bound: upper bound on t.
    """

    low: list[int]
    high: list[int]
    ends: dict[int, tuple[int, int]]
    bound: Fraction


class ExactProgram:
    """The linear program of a node; `docs/how-to/proofs.md` lists its variables and rows.

    Arguments:
        model: the model.
        pairs: the (state, action) pairs that policies may use, in row-major order.
        copies: members of the set, one row for each pair, each with the number of the signal that its
            visits end with; 0 for the reward and all sums.
        cutoff: least worst-case reward of the policies that are looked for.
    """

    def __init__(self, model: ExactModel, pairs: Pairs, copies: list[Copy], cutoff: Fraction):
        self.pairs, self.states, self.cutoff = pairs, len(model.rows), cutoff
        self.cones = (len(copies) - 1) * self.states
        self.own = [[j for j, (t, _) in enumerate(pairs) if t == s] for s in range(self.states)]
        self.width = 1 + len(copies) * (len(pairs) + self.states)
        # Rows that depend on the node: kernel, pair, and number of the row.
        self.products: dict[int, tuple[int, int, int]] = {}
        self.rows: list[tuple[Pairs, int, bool]] = []
        limits = [cutoff]
        for k, (kernel, rule) in enumerate(copies):
            x, X = self.column(k), self.column(k) + len(pairs)
            signal = model.signals[rule]
            for s, group in enumerate(self.own):
                self._add({x + j: Fraction(1) for j in group} | {X + s: Fraction(-1)}, 0, True)
            flow = [{X + s: Fraction(1)} for s in range(self.states)]
            for j, (s, a) in enumerate(pairs):
                row = model.rows[s][a]
                for to, q in zip(row.to, kernel[j], strict=True):
                    if to not in signal.ends:
                        flow[to][x + j] = flow[to].get(x + j, Fraction()) - row.discount * q
            for balance, mass in zip(flow, signal.initial, strict=True):
                self._add(balance, mass, True)
            reward, *utilities = (
                [rational.mean(kernel[j], each.paid[s][a]) for j, (s, a) in enumerate(pairs)]
                for each in model.signals
            )
            for each, utility in zip(model.signals[1:], utilities, strict=True):
                if each is signal or not (rule or each.ends):
                    costs = {x + j: -u for j, u in enumerate(utility)}
                    self._add(costs, each.start - each.threshold, False)
            if not rule:
                self._add({0: Fraction(1)} | {x + j: -r for j, r in enumerate(reward)}, 0, False)
            limits.append(max(reward) * model.visits)
            for j, (s, _) in enumerate(pairs):
                for kind in ((0, 1, 2, 3) if k else (0, 2)) if len(self.own[s]) > 1 else ():
                    self.products[len(self.rows)] = k, j, kind
                    self._add({}, 0, False)
        visits = Fraction(), model.visits
        self.ranges: Rows = [(cutoff, max(limits)), *[visits] * (self.width - 1)]
        self.largest = max(1 + abs(end) for ends in self.ranges[:2] for end in ends)

    def _add(self, row: dict[int, Fraction], right: Fraction | int, equation: bool) -> None:
        entries = [(v, round(c * 2**_BITS)) for v, c in row.items()]
        self.rows.append((entries, round(right * 2**_BITS), equation))

    def column(self, k: int) -> int:
        """Return the column of x_k(0); X_k(0) is n columns further."""
        return 1 + k * (len(self.pairs) + self.states)

    def root(self) -> KnownRegion:
        """Return the region of all policies."""
        low = [(len(self.own[s]) == 1) << _GRID for s, _ in self.pairs]
        return KnownRegion(low, [1 << _GRID] * len(low), {}, self.ranges[0][1])

    def part(self, region: KnownRegion, place: int, point: int, above: bool) -> KnownRegion | None:
        """Return what is above, or below, a point, with the box as small as possible; None if empty."""
        cone = place - len(self.pairs)
        if cone >= 0:
            return region._replace(ends=region.ends | {2 * cone + (not above): (point, 0)})
        low, high = list(region.low), list(region.high)
        (low if above else high)[place] = point
        group = self.own[self.pairs[place][0]]
        least, most = (2**_GRID - sum(ends[j] for j in group) for ends in (low, high))
        for j in group:
            low[j], high[j] = max(low[j], most + high[j]), min(high[j], least + low[j])
        fits = all(low[j] <= high[j] for j in group)
        return region._replace(low=low, high=high) if fits else None

    def bound(self, region: KnownRegion, step: Record, where: str) -> Fraction:
        """Return the upper bound on a step's objective that its multipliers prove.

        The objective is t for `BOUND`, 0 for `EMPTY`, and ±(X_k − slope·X_0) for an end of a cone.
        """
        rows, kind = read_list(step, "rows", where), step["kind"]
        multipliers = numbers(step, "multipliers", (len(rows),), where)
        unit = math.lcm(*(y.denominator for y in multipliers))
        left, right, error = [0] * self.width, 0, 0  # in units of 2⁻²⁰⁰/unit
        if kind >= 0:
            k, s = divmod(kind // 2, self.states)
            sign, X = (1 if kind % 2 else -1) * unit, 1 + len(self.pairs) + s
            left[X + self.column(k + 1) - 1] = sign << _BITS
            left[X] = -sign * on_grid(step.get("slope"), where) << _BITS - _GRID
        elif kind == BOUND:
            left[0] = unit << _BITS
        for row, multiplier in zip(rows, multipliers, strict=True):
            entries, b, equation = self.rows[whole(row, len(self.rows), where)]
            require(equation or multiplier >= 0, f"{where}: row {row} has a negative multiplier")
            if row in self.products:
                entries, b = self._product(region, *self.products[row])
            y = int(multiplier * unit)
            right += y * b
            error += abs(y) * (1 + len(entries))  # every entry is rounded by at most 2⁻²⁰⁰
            for v, entry in entries:
                left[v] -= y * entry
        terms = rational.total(
            g * ends[g > 0] for g, ends in zip(left, self.ranges, strict=True) if g
        )
        return (right + terms + error * self.largest) / (unit << _BITS)

    def _product(self, region: KnownRegion, k: int, j: int, kind: int) -> tuple[Pairs, int]:
        """Return one of the rows ±(D_k − slope·D_0) ≤ slack·(u − l), D = x − l·X or D = u·X − x."""
        s, low, high = self.pairs[j][0], region.low[j], region.high[j]
        upper, key = kind % 2, 2 * ((k - 1) * self.states + s) + kind % 2
        if upper and key not in region.ends:
            return [], 0
        slope, slack = region.ends.get(key, (0, 0))  # k = 0 has no ends
        sign = (1 if upper else -1) << _BITS - 2 * _GRID
        D = (1 << _GRID, -low) if kind < 2 else (-1 << _GRID, high)
        columns = list(zip((1 + j, 1 + len(self.pairs) + s), D, strict=True))
        entries = [(c + self.column(k) - 1, sign * d << _GRID) for c, d in columns]
        entries += [(c, -sign * slope * d) for c, d in columns]
        return entries, -(-slack * (high - low) >> _GRID)


Settle = Callable[[Record, Fraction, str], Fraction]


def replay(
    program: ExactProgram, region: KnownRegion, node: Record, settle: Settle, where: str
) -> Fraction:
    """Return the largest bound of a node's leaves, at least the cutoff.

    Arguments:
        program: the linear program.
        region: what is known at the beginning.
        node: the record of a node, with its parts inside.
        settle: function of a step, its proved bound and its place in words. It returns the bound to use,
            which is not below the proved one.
        where: the node in words.
    """
    moved: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(read_list(node, "steps", where, dict)):
        at = f"{where}, step {i}"
        kind = whole(step.get("kind"), 2 * program.cones, at, least=NARROWED)
        if kind == NARROWED:
            region, moved = region._replace(ends=region.ends | moved), {}
            continue
        value = settle(step, program.bound(region, step, at), at)
        if kind == EMPTY and value < 0:
            return program.cutoff
        if kind == BOUND:
            region = region._replace(bound=min(value, region.bound))
        elif kind >= 0:
            slack = math.ceil(max(value, 0) * 2**_BITS)
            moved[kind] = on_grid(step.get("slope"), at), slack
    if "place" not in node:
        return max(program.cutoff, region.bound)
    place = whole(node["place"], len(program.pairs) + program.cones, where)
    point, worst = on_grid(node.get("point"), where), program.cutoff
    for side, above in (("below", False), ("above", True)):
        part = program.part(region, place, point, above)
        if part is not None:
            require(isinstance(node.get(side), dict), f"{where}: {side} is missing")
            worst = max(worst, replay(program, part, node[side], settle, f"{where}.{side}"))
    return worst


def check_tree(model: ExactModel, record: Record) -> str:
    """Check a bound on stationary policies by branch and bound; return it in words."""
    where = "bound 'occupancies'"
    pairs = _pairs(model, record, where)
    given = read_list(record, "kernels", where, dict)
    require(bool(given), f"{where}: there is no kernel")
    cutoff, count = number(record.get("cutoff"), f"{where}: cutoff"), len(model.signals)
    kernels = [read_kernel(model, each, where) for each in given]
    rows = [[q[s][a] for s, a in pairs] for q in kernels]
    rules = [whole(each.get("rule", 0), count, f"{where}: rule") for each in given]
    program = ExactProgram(model, pairs, list(zip(rows, rules, strict=True)), cutoff)

    def settle(step: Record, proved: Fraction, at: str) -> Fraction:
        if step["kind"] != EMPTY:
            return check_claim(step, "value", at, proved, at_most=False)
        require(proved < 0, f"{at}: policies may be left")
        return proved

    require(isinstance(record.get("tree"), dict), f"{where}: there is no tree")
    worst = replay(program, program.root(), record["tree"], settle, f"{where}: tree")
    check_claim(record, "value", where, worst, at_most=False)
    return f"no feasible policy given as a table has a worst-case reward above {record['value']!r}"


def _pairs(model: ExactModel, record: Record, where: str) -> Pairs:
    """Return the pairs that stand for all: the others have the same row, set and signals."""
    shape = len(model.rows), len(model.rows[0])
    table = numbers(record, "representative", shape, where)
    pairs = []
    for s, rows in enumerate(model.rows):
        stands = [whole(int(a), shape[1], f"{where}: representative") for a in table[s]]
        for a, b in enumerate(stands):
            same = all(each.paid[s][a] == each.paid[s][b] for each in model.signals)
            fits = b == table[s][a] and stands[b] == b and rows[a] == rows[b] and same
            require(fits, f"{where}: action {b} cannot stand for {a} in state {s}")
        pairs += [(s, a) for a, b in enumerate(stands) if a == b]
    return pairs


def on_grid(value: Any, where: str) -> int:
    """Return a non-negative multiple of 2⁻²⁰ in units of 2⁻²⁰."""
    found = number(value, where) * 2**_GRID
    fits = found >= 0 and found.denominator == 1
    require(fits, f"{where}: {value!r} is not a multiple of 2⁻²⁰ from 0 on")
    return int(found)
