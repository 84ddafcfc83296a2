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

    def reached(self, policy):
        S = len(self.p)
        link = np.zeros((S, S), bool)
        for s, a in np.ndindex(*policy.shape):
            if policy[s, a] > 0:
                link[s, self.to[s, a][self.allowed(s, a)]] = True
        seen = self.rho > 0
        for _ in range(S):
            seen = seen | (seen[:, None] & link).any(0)
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
        states = self.reached(policy)
        low, high = [], []
        for i, record in enumerate(proof["signals"]):
            ends = self.bracket(i, record, policy, states)
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
        return (self.rho * L).sum(), (self.rho * U).sum()

    def bounded(self, record):
        if record["method"] == "occupancies":
            return self.divided(record)
        weights = fractions(record["weights"]) if record["weights"] else np.array([], object)
        q = self.kernel(record["moves"])
        if q is None or any(w < 0 for w in weights):
            return False
        signal = sum(
            (w * c for w, c in zip(weights, self.signals[1:], strict=True)), Fraction(0) * self.p
        )
        if record["method"] == "lagrangian":
            signal = signal + self.signals[0]
        W = fractions(record["values"])
        if ((q * (signal + self.gamma * W[self.to])).sum(-1).max(-1) > W).any():
            return False
        bound = (self.rho * W).sum() - sum(w * d for w, d in zip(weights, self.d, strict=True))
        return bound < 0 if record["method"] == "infeasible" else Fraction(record["value"]) >= bound

    def divided(self, record):
        """Return whether the tree proves its bound, with one dense program for every step."""
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
        program = DenseProgram(self, table, kernels, cutoff)
        boxes, bounds = [], []
        steps = [[] for _ in range(1 + len(record["nodes"]))]
        for step in record["steps"]:
            steps[step["node"]].append(step)
        for n, of_node in enumerate(steps):
            if n == 0:
                box, bound = program.everything(), None
            else:
                node = record["nodes"][n - 1]
                box, bound = program.split(boxes[node["parent"]], node), bounds[node["parent"]]
            waiting = []
            for step in of_node:
                if box is None:
                    break
                kind = step["kind"]
                if kind == -3:
                    for each in waiting:
                        box = None if box is None else program.narrowed(box, *each)
                    waiting = []
                    continue
                proved = program.dual(box, step)
                if proved is None:
                    return False
                if kind == -2:
                    if proved >= 0:
                        return False
                    box = None
                    continue
                if step["value"] is None or Fraction(step["value"]) < proved:
                    return False
                value = Fraction(step["value"])
                if kind == -1:
                    bound = value if bound is None else min(bound, value)
                else:
                    waiting.append((kind, value))
            boxes.append(box)
            bounds.append(bound)
        parents = [node["parent"] for node in record["nodes"]]
        for parent in set(parents):
            two = [n for n in record["nodes"] if n["parent"] == parent]
            covered = len(two) == 2 and two[0]["above"] != two[1]["above"]
            if not covered or any(two[0][key] != two[1][key] for key in ("pair", "point")):
                return False
        leaves = [n for n in range(len(steps)) if n not in parents and boxes[n] is not None]
        if any(bounds[n] is None for n in leaves):
            return False
        return Fraction(record["value"]) >= max([cutoff, *(bounds[n] for n in leaves)])

    def finite_radius(self):
        return np.where(np.isinf(self.radius), -1.0, self.radius)


class DenseProgram:
    """The linear program of a box as dense rows of fractions, in the order of the document."""

    def __init__(self, oracle, table, kernels, cutoff):
        S, A = table.shape
        self.pairs = [(s, a) for s, a in np.ndindex(S, A) if table[s, a] == a]
        self.S, self.n, self.K = S, len(self.pairs), len(kernels)
        self.cutoff, self.oracle = cutoff, oracle
        self.group = [[j for j, (t, _) in enumerate(self.pairs) if t == s] for s in range(S)]
        self.width = 1 + self.n + self.K * (self.n + S)
        self.flow = np.full((self.K, self.n, S), Fraction(0))
        self.mean = np.full((self.K, len(oracle.signals), self.n), Fraction(0))
        for k, q in enumerate(kernels):
            for j, (s, a) in enumerate(self.pairs):
                np.add.at(self.flow[k, j], oracle.to[s, a], q[s, a])
                for i, c in enumerate(oracle.signals):
                    self.mean[k, i, j] = (q[s, a] * c[s, a]).sum()
        self.limit = max(cutoff, self.mean[:, 0].max() / (1 - oracle.gamma))

    def x(self, k, j):
        return 1 + self.n + k * (self.n + self.S) + j

    def visit(self, k, s):
        return self.x(k, self.n) + s

    def everything(self):
        low = [Fraction(len(self.group[s]) == 1) for s, _ in self.pairs]
        visits = Fraction(1) / (1 - self.oracle.gamma)
        return (
            low,
            [Fraction(1)] * self.n,
            [Fraction(0)] * self.K * self.S,
            [visits] * self.K * self.S,
        )

    def split(self, box, node):
        if box is None:
            return None
        low, high, least, most = list(box[0]), list(box[1]), box[2], box[3]
        (low if node["above"] else high)[node["pair"]] = Fraction(node["point"])
        group = self.group[self.pairs[node["pair"]][0]]
        new = {
            b: (
                max(low[b], 1 - sum(high[c] for c in group if c != b)),
                min(high[b], 1 - sum(low[c] for c in group if c != b)),
            )
            for b in group
        }
        for b, (down, up) in new.items():
            low[b], high[b] = down, up
        return (
            None if any(a > b for a, b in zip(low, high, strict=True)) else (low, high, least, most)
        )

    def narrowed(self, box, kind, value):
        low, high, least, most = box[0], box[1], list(box[2]), list(box[3])
        f = kind // 2
        if kind % 2:
            most[f] = min(most[f], value)
        else:
            least[f] = max(least[f], -value)
        return None if least[f] > most[f] else (low, high, least, most)

    def rows(self, box):
        """Yield coefficients, right-hand side and whether the row is an equation."""
        low, high, least, most = box
        gamma = self.oracle.gamma

        def row(entries, b, equation):
            dense = [Fraction(0)] * self.width
            for v, value in entries:
                dense[v] += value
            return dense, b, equation

        for group in self.group:
            yield row([(1 + j, Fraction(1)) for j in group], Fraction(1), True)
        for k in range(self.K):
            for s, group in enumerate(self.group):
                taken = ((self.x(k, j), Fraction(1)) for j in group)
                yield row([(self.visit(k, s), Fraction(-1)), *taken], Fraction(0), True)
            for s in range(self.S):
                flow = ((self.x(k, j), -gamma * self.flow[k, j, s]) for j in range(self.n))
                yield row([(self.visit(k, s), Fraction(1)), *flow], self.oracle.rho[s], True)
            for i, d in enumerate(self.oracle.d, start=1):
                yield row([(self.x(k, j), -self.mean[k, i, j]) for j in range(self.n)], -d, False)
            reward = ((self.x(k, j), -self.mean[k, 0, j]) for j in range(self.n))
            yield row([(0, Fraction(1)), *reward], Fraction(0), False)
            for j, (s, _) in enumerate(self.pairs):
                if len(self.group[s]) < 2:
                    continue
                y, Y, pi = self.x(k, j), self.visit(k, s), 1 + j
                l, u, lo, hi = low[j], high[j], least[k * self.S + s], most[k * self.S + s]  # noqa: E741
                yield row([(y, Fraction(-1)), (Y, l), (pi, lo)], l * lo, False)
                yield row([(y, Fraction(-1)), (Y, u), (pi, hi)], u * hi, False)
                yield row([(y, Fraction(1)), (Y, -u), (pi, -lo)], -u * lo, False)
                yield row([(y, Fraction(1)), (Y, -l), (pi, -hi)], -l * hi, False)

    def bounds(self, box):
        low, high, least, most = box
        yield self.cutoff, self.limit
        yield from zip(low, high, strict=True)
        for k in range(self.K):
            for j, (s, _) in enumerate(self.pairs):
                yield low[j] * least[k * self.S + s], high[j] * most[k * self.S + s]
            for s in range(self.S):
                yield least[k * self.S + s], most[k * self.S + s]

    def objective(self, kind):
        c = [Fraction(0)] * self.width
        if kind == -1:
            c[0] = Fraction(1)
        elif kind >= 0:
            c[self.visit(*divmod(kind // 2, self.S))] = Fraction(1 if kind % 2 else -1)
        return c

    def dual(self, box, step):
        """Return the bound of weak duality, or None for a multiplier of the wrong sign."""
        g, total = self.objective(step["kind"]), Fraction(0)
        rows = list(self.rows(box))
        for i, y in zip(step["rows"], step["multipliers"], strict=True):
            coefficients, b, equation = rows[i]
            if y < 0 and not equation:
                return None
            g = [c - Fraction(y) * a for c, a in zip(g, coefficients, strict=True)]
            total += Fraction(y) * b
        ends = self.bounds(box)
        return total + sum(max(c * a, c * b) for c, (a, b) in zip(g, ends, strict=True))


def small_tree(oracle, moves, cutoff, depth=2, tighten=2):
    """Return the record of a tree by SciPy's linear programs, as `bounds` of a proof file hold it."""
    import scipy.optimize

    S, A = oracle.p.shape[:2]
    table = np.tile(np.arange(A), (S, 1))
    kernels = [oracle.kernel(each) for each in moves]
    program = DenseProgram(oracle, table, kernels, Fraction(cutoff))
    nodes, steps, leaves = [], [], []

    def solved(box, kind):
        """Return a step's multipliers, or None if the box has no policies above the cutoff."""
        rows = list(program.rows(box))
        equation = np.array([r[2] for r in rows])
        matrix = np.array([r[0] for r in rows], float)
        right = np.array([r[1] for r in rows], float)
        limits = [(float(a), float(b)) for a, b in program.bounds(box)]
        objective = np.array(program.objective(kind), float)
        found = scipy.optimize.linprog(
            -objective,
            matrix[~equation],
            right[~equation],
            matrix[equation],
            right[equation],
            limits,
        )
        if found.status == 0:
            y = np.zeros(len(rows))
            y[equation], y[~equation] = -found.eqlin.marginals, -found.ineqlin.marginals
            return np.where(equation, y, np.maximum(y, 0)), kind
        slack = np.hstack([matrix, np.where(equation, 1.0, -1.0)[:, None] * np.eye(len(rows))])
        slack = np.hstack([slack, -np.eye(len(rows))[:, equation]])
        cost = np.r_[np.zeros(program.width), np.ones(slack.shape[1] - program.width)]
        found = scipy.optimize.linprog(
            cost, slack[~equation], right[~equation], slack[equation], right[equation],
            limits + [(0, None)] * (slack.shape[1] - program.width),
        )  # fmt: skip
        y = np.zeros(len(rows))
        y[equation], y[~equation] = -found.eqlin.marginals, -found.ineqlin.marginals
        return np.where(equation, y, np.maximum(y, 0)), -2

    def add(node, box, kind):
        y, kind = solved(box, kind)
        used = np.flatnonzero(np.abs(y) > 1e-12)
        step = {"node": node, "kind": int(kind), "value": None, "rows": used.tolist()}
        step["multipliers"] = [round(v * 2**44) / 2**44 for v in y[used].tolist()]
        steps.append(step)
        proved = program.dual(box, step)
        if kind == -2:
            assert proved < 0
            return None, None
        step["value"] = float(np.nextafter(float(proved), np.inf))
        return box, Fraction(step["value"])

    def grow(node, box, level):
        ends = []
        for f, side in itertools.product(range(tighten), (1, 0)):
            if box is not None:
                box, value = add(node, box, 2 * f + side)
                ends.append((2 * f + side, value))
        steps.append({"node": node, "kind": -3, "value": None, "rows": [], "multipliers": []})
        for end in ends:
            box = None if box is None else program.narrowed(box, *end)
        if box is None:
            return
        box, bound = add(node, box, -1)
        if box is None:
            return
        if level == depth:
            leaves.append(bound)
            return
        pair = level % program.n
        children = []
        for above in (False, True):
            nodes.append({"parent": node, "pair": pair, "point": 0.5, "above": above})
            children.append((len(nodes), program.split(box, nodes[-1])))
        for number, part in children:
            if part is not None:
                grow(number, part, level + 1)

    grow(0, program.everything(), 0)
    value = max([Fraction(cutoff), *leaves])
    return {
        "method": "occupancies",
        "value": float(np.nextafter(float(value), np.inf)),
        "cutoff": cutoff,
        "representative": table.tolist(),
        "kernels": [{"moves": each} for each in moves],
        "nodes": nodes,
        "steps": steps,
    }
