"""A second decision on proof files, written from the format's document: dense, slow and obvious.

It shares no code with the checker. Rows are arrays of fractions, polytopes are minimised by their duals
instead of by sorting, logarithms and roots are decimals of 150 digits without directed rounding, and
linear programs are dense matrices.
"""

from __future__ import annotations

import decimal
import itertools
import json
from fractions import Fraction

import numpy as np

import holdfast as hf
from holdfast.model import Reach

DIGITS = decimal.Context(prec=150, Emin=-99999, Emax=99999)


def fractions(array):
    return np.vectorize(Fraction, otypes=[object])(np.asarray(array, float))


def decimal_of(x):
    return DIGITS.divide(decimal.Decimal(x.numerator), decimal.Decimal(x.denominator))


class Oracle:
    """A model as arrays of fractions: rows over listed entries, or over states."""

    def __init__(self, model: hf.RobustCMDP):
        self.set = model.uncertainty
        self.decided = {}
        S, A = model.states, model.actions
        kernel = model.transitions
        floats = model.nominal
        p = fractions(floats)
        p = p / p.sum(-1, keepdims=True)
        lists = isinstance(kernel, hf.Kernel)
        to = kernel.successors if lists else np.broadcast_to(np.arange(S), floats.shape)
        self.anywhere = not self.set.fits_lists
        self.room = None
        if isinstance(self.set, hf.Interval):
            self.room = self._room(fractions(floats), p)
        if self.anywhere:
            dense = np.full((S, A, S), Fraction(0))
            for s, a, k in np.ndindex(*to.shape):
                dense[s, a, to[s, a, k]] += p[s, a, k]
            p, to = dense, np.broadcast_to(np.arange(S), dense.shape)
        self.p, self.to = p, to
        signals = [model.reward, *(c.utility for c in model.constraints)]
        self.signals = [
            np.broadcast_to(fractions(c) if c.ndim == 3 else fractions(c)[..., None], p.shape)
            for c in signals
        ]
        self.d = [Fraction(c.utility_threshold) for c in model.constraints]
        rho = fractions(model.initial)
        self.rho = rho / rho.sum()
        self.gamma = Fraction(model.discount)
        self.ends, self.start = [np.zeros(S, bool)], [Fraction(0)]
        for i, c in enumerate(model.constraints, start=1):
            enters = fractions(c.pays if isinstance(c, Reach) else np.zeros(S))
            self.ends.append(np.array(c.stops) if isinstance(c, Reach) else np.zeros(S, bool))
            self.start.append((self.rho * enters).sum())
            if isinstance(c, Reach):
                self.signals[i] = self.gamma * enters[self.to]
        self.radius = np.broadcast_to(np.asarray(self.set.radius), (S, A))

    def _room(self, floats, p):
        radius = np.broadcast_to(np.asarray(self.set.radius), p.shape[:2])
        below, above = np.full(p.shape, Fraction(0)), np.full(p.shape, Fraction(0))
        lower, upper = (
            fractions(np.broadcast_to(np.asarray(b), p.shape))
            for b in (self.set.lower, self.set.upper)
        )
        for i in np.ndindex(*p.shape):
            for room, width, most in (
                (below, floats[i] - lower[i], p[i]),
                (above, upper[i] - floats[i], 1 - p[i]),
            ):
                if width > floats[i] / 2**50 and radius[i[:2]] > 0:
                    infinite = np.isinf(radius[i[:2]])
                    room[i] = most if infinite else min(most, Fraction(radius[i[:2]]) * width)
        return below, above

    def allowed(self, s, a):
        """Return the entries that a member may use."""
        p = self.p[s, a]
        if isinstance(self.set, hf.Interval):
            return p + self.room[1][s, a] > 0
        if isinstance(self.set, hf.Wasserstein) or (self.anywhere and self.radius[s, a] > 0):
            return np.ones(len(p), bool)
        return p > 0

    def reached(self, policy, ends):
        S = len(self.p)
        link = np.zeros((S, S), bool)
        for s, a in np.ndindex(*policy.shape):
            if policy[s, a] > 0:
                link[s, self.to[s, a][self.allowed(s, a)]] = True
        seen = (self.rho > 0) & ~ends
        for _ in range(S):
            seen = (seen | (seen[:, None] & link).any(0)) & ~ends
        return np.flatnonzero(seen)

    def lower(self, s, a, y, multiplier):
        """Return the lower bound on the worst response that the document defines."""
        use = self.allowed(s, a)
        p, y = self.p[s, a][use], y[use]
        low, R = min(y), self.radius[s, a]
        if isinstance(self.set, hf.Interval):
            lo, hi = p - self.room[0][s, a][use], p + self.room[1][s, a][use]
            zero = Fraction(0)
            return max(
                t + sum(lo * np.maximum(y - t, zero)) - sum(hi * np.maximum(t - y, zero)) for t in y
            )
        if np.isinf(R):
            return low
        R = Fraction(R)
        if isinstance(self.set, hf.TotalVariation):
            return max(sum(p * np.minimum(y, t)) - min(R, 1) * (t - low) for t in y)
        if isinstance(self.set, hf.Contamination):
            return min((1 - min(R, 1)) * sum(p * y) + min(R, 1) * target for target in y)
        if isinstance(self.set, hf.Wasserstein):
            metric, price = fractions(self.set.metric), multiplier or Fraction(0)
            best = np.min(y[None, :] + price * metric, axis=1)
            return max(low, sum(p * best) - price * R)
        if R == 0:
            return sum(p * y)
        if not multiplier:
            return low
        if isinstance(self.set, hf.ChiSquare):
            eta = low + multiplier
            inner = (1 + R) * sum(p * np.maximum(eta - y, Fraction(0)) ** 2)
            return max(low, eta - Fraction(DIGITS.sqrt(decimal_of(inner))))
        total = decimal.Decimal(0)
        for mass, target in zip(p, y, strict=True):
            exponent = max(decimal_of(-multiplier * (target - low)), decimal.Decimal(-9000))
            total = DIGITS.add(total, DIGITS.multiply(decimal_of(mass), DIGITS.exp(exponent)))
        return max(low, low - (Fraction(DIGITS.ln(total)) + R) / multiplier)

    def kernel(self, moves):
        """Return q, or None if it is not a member of the set."""
        q = self.p.copy()
        plans = {}
        for s, a, i, j, mass in moves:
            row = q[s, a]
            if mass < 0 or i == j or not (0 <= i < len(row) and 0 <= j < len(row)):
                return None
            if not (self.allowed(s, a)[i] and self.allowed(s, a)[j]):
                return None
            plan = plans.setdefault((s, a), np.diag(self.p[s, a]))
            row[i] -= Fraction(mass)
            row[j] += Fraction(mass)
            plan[i, j], plan[i, i] = plan[i, j] + Fraction(mass), plan[i, i] - Fraction(mass)
        assert (q.sum(-1) == 1).all()
        inside = all(self.inside(s, a, q[s, a], plan) for (s, a), plan in plans.items())
        return q if inside else None

    def inside(self, s, a, q, plan):
        p, R = self.p[s, a], self.radius[s, a]
        if (q < 0).any():
            return False
        if isinstance(self.set, hf.Interval):
            return ((q >= p - self.room[0][s, a]) & (q <= p + self.room[1][s, a])).all()
        if np.isinf(R) or (q == p).all():
            return True
        R = Fraction(R)
        if isinstance(self.set, hf.TotalVariation):
            return sum(abs(q - p)) / 2 <= R
        if isinstance(self.set, hf.Contamination):
            return (q - (1 - min(R, 1)) * p >= 0).all()
        if isinstance(self.set, hf.Wasserstein):
            return (np.diag(plan) >= 0).all() and (plan * fractions(self.set.metric)).sum() <= R
        p, q = p[p > 0], q[p > 0]
        if isinstance(self.set, hf.ChiSquare):
            return sum(q * q / p) - 1 <= R
        logs = [
            mass
            * (Fraction(DIGITS.ln(decimal_of(mass))) - Fraction(DIGITS.ln(decimal_of(nominal))))
            for mass, nominal in zip(q, p, strict=True)
            if mass > 0
        ]
        return sum(logs) <= R

    def follows(self, proof):
        """Return whether every claim follows from the evidence."""
        policy = fractions(proof["policy"])
        sums = policy.sum(-1)
        if (policy < 0).any() or any(abs(total - 1) > Fraction(1e-8) for total in sums):
            return False
        policy = policy / sums[:, None]
        low, high = [], []
        for i, record in enumerate(proof["signals"]):
            ends = self.bracket(i, record, policy, self.reached(policy, self.ends[i]))
            if (
                ends is None
                or Fraction(record["lower"]) > ends[0]
                or Fraction(record["upper"]) < ends[1]
            ):
                return False
            low, high = [*low, ends[0]], [*high, ends[1]]
        for i, d in enumerate(self.d, start=1):
            if Fraction(proof["signals"][i]["margin"]) > low[i] - d:
                return False
        holds = all(v >= d for v, d in zip(low[1:], self.d, strict=True))
        broken = any(v < d for v, d in zip(high[1:], self.d, strict=True))
        if not {True: holds, False: broken, None: True}[proof["feasible"]]:
            return False
        return all(self.remembered(record) for record in proof["bounds"])

    def remembered(self, record):
        """Return `bounded`, computed once for every content: most corruptions leave the tree alone."""
        text = json.dumps(record)
        if text not in self.decided:
            self.decided[text] = self.bounded(record)
        return self.decided[text]

    def bracket(self, i, record, policy, states):
        L, U = fractions(record["lower_values"]), fractions(record["upper_values"])
        table = record["multipliers"] or [[None] * policy.shape[1]] * policy.shape[0]
        if any(m is not None and m < 0 for row in table for m in row):
            return None
        q = self.kernel(record["moves"])
        if q is None:
            return None
        L, U = (np.where(self.ends[i], Fraction(0), values) for values in (L, U))
        y = self.signals[i] + self.gamma * L[self.to]
        above = (q * (self.signals[i] + self.gamma * U[self.to])).sum(-1)
        for s in states:
            worst = sum(
                policy[s, a] * self.lower(s, a, y[s, a], None if m is None else Fraction(m))
                for a, m in enumerate(table[s])
                if policy[s, a] > 0
            )
            if L[s] > worst or U[s] < (policy[s] * above[s]).sum():
                return None
        return self.start[i] + (self.rho * L).sum(), self.start[i] + (self.rho * U).sum()

    def bounded(self, record):
        if record["method"] == "occupancies":
            return self.divided(record)
        weights = fractions(record["weights"]) if record["weights"] else np.array([], object)
        if any(w < 0 for w in weights):
            return False
        S, W = len(self.p), fractions(record["values"])
        weights = np.append(Fraction(record["method"] == "lagrangian"), weights)
        # The number of a set of events: event e is that of the e-th different rule.
        events = [ends for i, ends in enumerate(self.ends) if ends.any() and self.first(i)]
        happened = [sum(2**e for e, ends in enumerate(events) if ends[s]) for s in range(S)]
        for f in range(2 ** len(events)):
            moves = [[s - f * S, *move] for s, *move in record["moves"] if s // S == f]
            q = self.kernel(moves)
            if q is None:
                return False
            over = [ends for e, ends in enumerate(events) if f // 2**e % 2]
            signal = Fraction(0) * self.p
            for w, c, ends in zip(weights, self.signals, self.ends, strict=True):
                if not any(np.array_equal(ends, each) for each in over):
                    signal = signal + w * c
            following = np.array([W[(f | happened[s]) * S + s] for s in range(S)])
            best = (q * (signal + self.gamma * following[self.to])).sum(-1).max(-1)
            if (best > W[f * S : (f + 1) * S]).any():
                return False
        first = np.array([W[happened[s] * S + s] for s in range(S)])
        bound = (self.rho * first).sum() + sum(weights * self.start)
        bound -= sum(w * d for w, d in zip(weights[1:], self.d, strict=True))
        return bound < 0 if record["method"] == "infeasible" else Fraction(record["value"]) >= bound

    def first(self, i):
        return not any(np.array_equal(self.ends[i], each) for each in self.ends[:i])

    def divided(self, record):
        """Return whether the tree proves its bound, with its own program for every step."""
        table, cutoff = np.asarray(record["representative"]), Fraction(record["cutoff"])
        for s, a in np.ndindex(*table.shape):
            b = table[s, a]
            same = [self.p, self.to, fractions(self.finite_radius()), *self.signals]
            same += [] if self.room is None else list(self.room)
            if table[s, b] != b or any(np.any(c[s, a] != c[s, b]) for c in same):
                return False
        kernels = [self.kernel(each["moves"]) for each in record["kernels"]]
        if any(q is None for q in kernels):
            return False
        rules = [each.get("rule", 0) for each in record["kernels"]]
        if not all(type(rule) is int and 0 <= rule <= len(self.d) for rule in rules):
            return False
        program = FractionProgram(self, table, kernels, cutoff, rules)
        proved = worst_leaf(program, record["tree"], program.everything(), program.limit)
        return proved is not None and Fraction(record["value"]) >= proved

    def finite_radius(self):
        return np.where(np.isinf(self.radius), -1.0, self.radius)


def worst_leaf(program, node, region, bound):
    """Return the largest bound of the leaves, or None if a step is not proved."""
    waiting = []
    for step in node["steps"]:
        kind = step["kind"]
        if kind == -3:
            for each in waiting:
                region = program.moved(region, *each)
            waiting = []
            continue
        proved = program.dual(region, step)
        if proved is None or (kind == -2 and proved >= 0):
            return None
        if kind >= 0 and not on_grid(step["slope"]):
            return None
        if kind == -2:
            return program.cutoff
        value = Fraction(step["value"])
        if value < proved:
            return None
        if kind == -1:
            bound = min(bound, value)
        else:
            waiting.append((kind, Fraction(step["slope"]), max(value, Fraction(0))))
    if "place" not in node:
        return max(bound, program.cutoff)
    if not on_grid(node["point"]):
        return None
    found = []
    for side in ("below", "above"):
        part = program.split(region, node["place"], Fraction(node["point"]), side)
        if part is not None and side not in node:
            return None
        found.append(
            program.cutoff if part is None else worst_leaf(program, node[side], part, bound)
        )
    return None if None in found else max(found)


def on_grid(number):
    return number >= 0 and (Fraction(number) * 2**20).denominator == 1


class FractionProgram:
    """The linear program of a region as rows of fractions, in the order of the document."""

    def __init__(self, oracle, table, kernels, cutoff, rules=None):
        S, A = table.shape
        self.pairs = [(s, a) for s, a in np.ndindex(S, A) if table[s, a] == a]
        self.S, self.n, self.K = S, len(self.pairs), len(kernels)
        self.cutoff, self.oracle = cutoff, oracle
        self.rules = [0] * self.K if rules is None else list(rules)
        self.group = [[j for j, (t, _) in enumerate(self.pairs) if t == s] for s in range(S)]
        self.width = 1 + self.K * (self.n + S)
        self.flow = np.full((self.K, self.n, S), Fraction(0))
        self.mean = np.full((self.K, len(oracle.signals), self.n), Fraction(0))
        for k, q in enumerate(kernels):
            for j, (s, a) in enumerate(self.pairs):
                np.add.at(self.flow[k, j], oracle.to[s, a], q[s, a])
                for i, c in enumerate(oracle.signals):
                    self.mean[k, i, j] = (q[s, a] * c[s, a]).sum()
        self.limit = max(cutoff, self.mean[:, 0].max() / (1 - oracle.gamma))
        self.last = None, []

    def x(self, k, j):
        return 1 + k * (self.n + self.S) + j

    def visit(self, k, s):
        return self.x(k, self.n) + s

    def everything(self):
        """Lower ends and upper ends of π, and the known ends of ratios: slope and slack."""
        low = [Fraction(len(self.group[s]) == 1) for s, _ in self.pairs]
        return low, [Fraction(1)] * self.n, {}

    def split(self, region, place, point, side):
        if place >= self.n:
            return self.moved(region, 2 * (place - self.n) + (side == "below"), point, Fraction(0))
        low, high, ends = list(region[0]), list(region[1]), region[2]
        (low if side == "above" else high)[place] = point
        group = self.group[self.pairs[place][0]]
        new = {
            b: (
                max(low[b], 1 - sum(high[c] for c in group if c != b)),
                min(high[b], 1 - sum(low[c] for c in group if c != b)),
            )
            for b in group
        }
        for b, (down, up) in new.items():
            low[b], high[b] = down, up
        return None if any(a > b for a, b in zip(low, high, strict=True)) else (low, high, ends)

    def moved(self, region, kind, slope, slack):
        return *region[:2], region[2] | {kind: (slope, slack)}

    def rows(self, region):
        """Return entries by column, right-hand side and whether the row is an equation, for each row."""
        if self.last[0] is not region:  # the steps of a node have the same rows
            self.last = region, list(self._rows(region))
        return self.last[1]

    def _rows(self, region):
        low, high, ends = region
        gamma = self.oracle.gamma

        def row(entries, b, equation):
            return [(v, value) for v, value in entries if value], b, equation

        for k in range(self.K):
            for s, group in enumerate(self.group):
                taken = ((self.x(k, j), Fraction(1)) for j in group)
                yield row([(self.visit(k, s), Fraction(-1)), *taken], Fraction(0), True)
            for s in range(self.S):
                flow = ((self.x(k, j), -gamma * self.flow[k, j, s]) for j in range(self.n))
                ended = self.oracle.ends[self.rules[k]][s]
                flow, mass = ((), Fraction(0)) if ended else (flow, self.oracle.rho[s])
                yield row([(self.visit(k, s), Fraction(1)), *flow], mass, True)
            sums = [i for i in range(1, len(self.oracle.d) + 1) if not self.oracle.ends[i].any()]
            for i in [self.rules[k]] if self.rules[k] else sums:
                least = self.oracle.d[i - 1] - self.oracle.start[i]
                entries = [(self.x(k, j), -self.mean[k, i, j]) for j in range(self.n)]
                yield row(entries, -least, False)
            if not self.rules[k]:
                reward = ((self.x(k, j), -self.mean[k, 0, j]) for j in range(self.n))
                yield row([(0, Fraction(1)), *reward], Fraction(0), False)
            for j, (s, _) in enumerate(self.pairs):
                if len(self.group[s]) < 2:
                    continue
                l, u = low[j], high[j]  # noqa: E741
                f = (k - 1) * self.S + s
                for number in range(4 if k else 2):
                    from_above = number > 1 if k else number == 1
                    upper = bool(k and number % 2)
                    slope, slack = Fraction(0), Fraction(0)
                    if k:
                        known = ends.get(2 * f + upper)
                        if known is None and upper:
                            yield row([], Fraction(0), False)
                            continue
                        slope, slack = known or (slope, slack)
                    sign = Fraction(1 if upper else -1)
                    on_x, on_visit = (Fraction(-1), u) if from_above else (Fraction(1), -l)
                    entries = [(self.x(k, j), sign * on_x), (self.visit(k, s), sign * on_visit)]
                    entries += [(self.x(0, j), -sign * slope * on_x)]
                    entries += [(self.visit(0, s), -sign * slope * on_visit)]
                    yield row(entries, slack * (u - l), False)

    def bounds(self):
        yield self.cutoff, self.limit
        for _ in range(self.width - 1):
            yield Fraction(0), 1 / (1 - self.oracle.gamma)

    def objective(self, kind, slope):
        c = [Fraction(0)] * self.width
        if kind == -1:
            c[0] = Fraction(1)
        elif kind >= 0:
            k, s = divmod(kind // 2, self.S)
            sign = 1 if kind % 2 else -1
            c[self.visit(k + 1, s)], c[self.visit(0, s)] = Fraction(sign), -sign * Fraction(slope)
        return c

    def dual(self, region, step):
        """Return the bound of weak duality, or None for a multiplier of the wrong sign."""
        g, total = self.objective(step["kind"], step.get("slope", 0)), Fraction(0)
        rows = self.rows(region)
        for i, y in zip(step["rows"], step["multipliers"], strict=True):
            entries, b, equation = rows[i]
            if y < 0 and not equation:
                return None
            for v, entry in entries:
                g[v] -= Fraction(y) * entry
            total += Fraction(y) * b
        ends = self.bounds()
        return total + sum(max(c * a, c * b) for c, (a, b) in zip(g, ends, strict=True))


def small_tree(oracle, moves, cutoff, depth=2, tighten=2):
    """Return the record of a tree by SciPy's linear programs, as `bounds` of a proof file hold it."""
    import scipy.optimize

    S, A = oracle.p.shape[:2]
    table = np.tile(np.arange(A), (S, 1))
    kernels = [oracle.kernel(each) for each in moves]
    program = FractionProgram(oracle, table, kernels, Fraction(cutoff))

    def solved(region, kind, slope):
        """Return multipliers and the kind: that of an empty region if no policy is left."""
        rows = program.rows(region)
        equation = np.array([r[2] for r in rows])
        matrix = np.zeros((len(rows), program.width))
        for i, (entries, _, _) in enumerate(rows):
            for v, entry in entries:
                matrix[i, v] += float(entry)
        right = np.array([r[1] for r in rows], float)
        limits = [(float(a), float(b)) for a, b in program.bounds()]
        objective = np.array(program.objective(kind, slope), float)

        def multipliers(cost, matrix, limits):
            found = scipy.optimize.linprog(
                cost,
                matrix[~equation],
                right[~equation],
                matrix[equation],
                right[equation],
                limits,
            )
            if found.status:
                return None
            y = np.zeros(len(rows))
            y[equation], y[~equation] = -found.eqlin.marginals, -found.ineqlin.marginals
            return np.where(equation, y, np.maximum(y, 0)), found.x

        found = multipliers(-objective, matrix, limits)
        if found is not None:
            return *found, kind
        slack = np.hstack([matrix, np.where(equation, 1.0, -1.0)[:, None] * np.eye(len(rows))])
        slack = np.hstack([slack, -np.eye(len(rows))[:, equation]])
        more = slack.shape[1] - program.width
        cost = np.r_[np.zeros(program.width), np.ones(more)]
        return *multipliers(cost, slack, limits + [(0, None)] * more), -2

    def add(node, region, kind, slope=0.0):
        """Record a step; return what it proves and the solution, or None if the region is empty."""
        y, point, kind = solved(region, kind, slope)
        used = np.flatnonzero(np.abs(y) > 1e-12)
        step = {"kind": int(kind), "rows": used.tolist()}
        step |= {"slope": slope} if kind >= 0 else {}
        step["multipliers"] = [round(v * 2**44) / 2**44 for v in y[used].tolist()]
        node["steps"].append(step)
        proved = program.dual(region, step)
        if kind == -2:
            assert proved < 0
            return None
        step["value"] = float(np.nextafter(float(proved), np.inf))
        return Fraction(step["value"]), point

    def grow(region, level):
        """Return the node of a region and the largest bound of its leaves."""
        node = {"steps": []}
        first = add(node, region, -1)
        if first is None:
            return node, Fraction(cutoff)
        bound, point = first
        ends = []
        for f, upper in itertools.product(range(min(tighten, (program.K - 1) * S)), (1, 0)):
            k, s = divmod(f, S)
            ratio = point[program.visit(k + 1, s)] / point[program.visit(0, s)]
            slope = np.round(ratio * (1.5 if upper else 0.5) * 2**20) / 2**20
            found = add(node, region, 2 * f + upper, float(slope))
            if found is None:
                return node, Fraction(cutoff)
            ends.append((2 * f + upper, Fraction(slope), max(found[0], Fraction(0))))
        node["steps"].append({"kind": -3, "rows": [], "multipliers": []})
        for end in ends:
            region = program.moved(region, *end)
        last = add(node, region, -1)
        if last is None:
            return node, Fraction(cutoff)
        bound = min(bound, last[0])
        if level == depth:
            return node, max(bound, Fraction(cutoff))
        # A probability is divided first, then a ratio.
        place = 0 if level == 0 or program.K == 1 else program.n
        node |= {"place": place, "point": 0.5 if place == 0 else 1.0}
        found = []
        for side in ("below", "above"):
            part = program.split(region, place, Fraction(node["point"]), side)
            if part is not None:
                node[side], worst = grow(part, level + 1)
                found.append(worst)
        return node, max(found)

    tree, value = grow(program.everything(), 0)
    return {
        "method": "occupancies",
        "value": float(np.nextafter(float(value), np.inf)),
        "cutoff": cutoff,
        "representative": table.tolist(),
        "kernels": [{"moves": each} for each in moves],
        "tree": tree,
    }
