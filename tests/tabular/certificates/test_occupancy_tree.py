"""Branch and bound over occupancies: an exact replay of its record, and independent searches for a
counter-example."""

import dataclasses
import os
from fractions import Fraction

import numpy as np
import pytest
from tests.tabular.certificates.random_models import SETS, certified, random_model

import holdfast as hf
from holdfast.tabular.certificates.member_kernels import strict_member
from holdfast.tabular.certificates.occupancy_program import (
    occupancy_program,
    representatives,
    rows_of,
)
from holdfast.tabular.certificates.occupancy_tree import distinct

CAMPAIGN = bool(os.environ.get("HOLDFAST_CAMPAIGN"))
# One shape serves all sets, since a shape is compiled anew for some of them.
SHAPE = None if CAMPAIGN else (4, 2)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(300 if CAMPAIGN else 2))
def test_no_search_finds_a_better_policy_than_the_bound_allows(seed):
    """`benchmarks/random_gaps.py` prints the gaps of the campaign's models."""
    quick = {} if CAMPAIGN else {"shape": SHAPE, "nodes": 60, "starts": 1, "search": (4, 12)}
    certificate, reward = certified(seed, **quick)
    assert certificate.feasible
    assert certificate.upper_bound >= reward - 1e-8
    assert CAMPAIGN or certificate.gap <= 0.05


# An exact replay -------------------------------------------------------------------------------------


def exact(array):
    return [Fraction(float(x)) for x in np.ravel(array)]


class Replay:
    """The program as its documentation describes it, in rational arithmetic."""

    def __init__(self, model, proof):
        S, A = model.states, model.actions
        self.pairs = [(s, a) for s in range(S) for a in range(A) if proof.representative[s, a] == a]
        self.S, self.n, self.K = S, len(self.pairs), len(proof.kernels)
        self.own = [[j for j, (s, _) in enumerate(self.pairs) if s == t] for t in range(S)]
        self.proof = proof
        gamma, rho = Fraction(model.discount), exact(model.initial)
        assert Fraction(proof.visit_limit) >= 1 / (1 - gamma)
        rho = [x / sum(rho) for x in rho]
        self.rows = [({1 + j: 1 for j in self.own[s]}, 1, True) for s in range(S)]
        for k in range(self.K):
            mean, flow = [], []
            for s, a in self.pairs:
                q = exact(proof.kernels[k][s, a])
                q = [x / sum(q) for x in q]
                to = range(S) if proof.successors is None else proof.successors[s, a]
                flow.append(
                    [sum(x for x, t in zip(q, to, strict=True) if t == u) for u in range(S)]
                )
                signals = [c.utility for c in model.constraints] + [model.reward]
                each = [np.broadcast_to(np.atleast_1d(sig[s, a]), (len(q),)) for sig in signals]
                mean.append([sum(x * y for x, y in zip(q, exact(e), strict=True)) for e in each])
            assert Fraction(proof.reward_limit) >= max(m[-1] for m in mean) / (1 - gamma)
            x, X = self.taken(k, 0), self.taken(k, self.n)
            for s in range(S):
                self.rows.append(({**{x + j: 1 for j in self.own[s]}, X + s: -1}, 0, True))
            for s in range(S):
                row = {x + j: -gamma * flow[j][s] for j in range(self.n)}
                self.rows.append(({**row, X + s: 1}, rho[s], True))
            for i, c in enumerate(model.constraints):
                row = {x + j: -mean[j][i] for j in range(self.n)}
                self.rows.append((row, -Fraction(c.utility_threshold), False))
            row = {x + j: -mean[j][-1] for j in range(self.n)}
            self.rows.append(({**row, 0: 1}, 0, False))
            for j, (s, _) in enumerate(self.pairs):
                if len(self.own[s]) > 1:
                    self.rows += [(k, j, number) for number in range(4)]

    def taken(self, k, j):
        return 1 + self.n + k * (self.n + self.S) + j

    def row(self, i, node):
        if not isinstance(self.rows[i][0], int):
            return self.rows[i]
        k, j, number = self.rows[i]
        s = self.pairs[j][0]
        end = node["high" if number in (1, 2) else "low"][j]
        level = node["most" if number in (1, 3) else "least"][k * self.S + s]
        sign = -1 if number < 2 else 1
        row = {
            self.taken(k, j): sign,
            self.taken(k, self.n + s): -sign * end,
            1 + j: -sign * level,
        }
        return row, -sign * end * level, False

    def bound(self, node, step, kind):
        part = slice(self.proof.step_start[step], self.proof.step_start[step + 1])
        left = {}
        if kind == -1:
            left[0] = Fraction(1)
        elif kind >= 0:
            k, s = divmod(kind // 2, self.S)
            left[self.taken(k, self.n + s)] = Fraction(1 if kind % 2 else -1)
        total = Fraction(0)
        for i, y in zip(self.proof.rows[part], exact(self.proof.multipliers[part]), strict=True):
            row, right, equation = self.row(i, node)
            assert equation or y >= 0
            total += y * right
            for column, entry in row.items():
                left[column] = left.get(column, 0) - y * entry
        for column, g in left.items():
            total += max(g * end for end in self.ends(column, node))
        return total

    def ends(self, column, node):
        if column == 0:
            return Fraction(self.proof.cutoff), Fraction(self.proof.reward_limit)
        if column <= self.n:
            return node["low"][column - 1], node["high"][column - 1]
        k, place = divmod(column - 1 - self.n, self.n + self.S)
        if place >= self.n:
            f = k * self.S + place - self.n
            return node["least"][f], node["most"][f]
        f = k * self.S + self.pairs[place][0]
        return node["low"][place] * node["least"][f], node["high"][place] * node["most"][f]


def replayed_bound(model, proof):
    """The bound that the record proves; an AssertionError if one of its steps proves less."""
    replay = Replay(model, proof)
    alone = [len(replay.own[s]) == 1 for s, _ in replay.pairs]
    root = {
        "low": [Fraction(int(x)) for x in alone],
        "high": [Fraction(1)] * replay.n,
        "least": [Fraction(0)] * (replay.K * replay.S),
        "most": [Fraction(proof.visit_limit)] * (replay.K * replay.S),
    }
    nodes, bounds, children = [], [], [[] for _ in proof.node_parent]
    for number, parent in enumerate(proof.node_parent):
        node, bound = root, np.inf
        if number:
            children[parent].append(number)
            node, bound = dict(nodes[parent]), bounds[parent]
            j, point = proof.node_pair[number], Fraction(float(proof.node_point[number]))
            low, high = list(node["low"]), list(node["high"])
            (low if proof.node_above[number] else high)[j] = point
            own = replay.own[replay.pairs[j][0]]
            node["low"], node["high"] = low, high
            others = {b: [c for c in own if c != b] for b in own}
            new_low = {b: max(low[b], 1 - sum(high[c] for c in others[b])) for b in own}
            new_high = {b: min(high[b], 1 - sum(low[c] for c in others[b])) for b in own}
            node["low"] = [new_low.get(b, low[b]) for b in range(replay.n)]
            node["high"] = [new_high.get(b, high[b]) for b in range(replay.n)]
        moved = []
        for step in np.flatnonzero(proof.step_node == number):
            kind, value = int(proof.step_kind[step]), float(proof.step_value[step])
            if kind == -3:
                node = {**node, "least": list(node["least"]), "most": list(node["most"])}
                for f, upper, end in moved:
                    node["most" if upper else "least"][f] = end
                moved = []
                continue
            found = replay.bound(node, step, kind)
            if kind == -2:
                assert found < 0
                bound = -np.inf
            elif kind == -1:
                assert found <= Fraction(value)
                bound = min(bound, value)
            else:
                assert found <= Fraction(value) * (1 if kind % 2 else -1)
                moved.append((kind // 2, kind % 2, Fraction(value)))
        nodes.append(node)
        bounds.append(bound)
    for several in children:
        assert len(several) in (0, 2)
        if several:
            first, second = several
            assert proof.node_pair[first] == proof.node_pair[second]
            assert proof.node_point[first] == proof.node_point[second]
            assert proof.node_above[first] != proof.node_above[second]
    leaves = [bounds[i] for i, several in enumerate(children) if not several]
    return max(proof.cutoff, *leaves)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(60 if CAMPAIGN else 1))
def test_exact_arithmetic_confirms_every_step(seed):
    model, policy = random_model(1000 + seed, SHAPE)
    solution = hf.solve(model, iterations=30, initial_policy=policy)
    certificate = hf.certify(model, solution.policy, nodes=15, target=1e-3)
    if certificate.proof is None:
        assert certificate.regions >= 1
        return
    assert replayed_bound(model, certificate.proof) <= certificate.upper_bound


def test_the_record_of_river_swim_is_confirmed_and_a_changed_one_is_not():
    model = hf.environments.river_swim()
    policy = hf.solve(model, iterations=100).policy
    certificate = hf.certify(model, policy, nodes=None, target=0.05)
    proof = certificate.proof
    assert replayed_bound(model, proof) <= certificate.upper_bound
    assert certificate.gap <= 0.0501
    # Half of the multipliers of a bound prove less; half of a ray would prove as much.
    number = np.flatnonzero(proof.step_kind >= -1)[-1]
    multipliers = proof.multipliers.copy()
    multipliers[proof.step_start[number] : proof.step_start[number + 1]] *= 0.5
    changed = dataclasses.replace(proof, multipliers=multipliers)
    with pytest.raises(AssertionError):
        replayed_bound(model, changed)


# Parts -----------------------------------------------------------------------------------------------


def test_equal_actions_share_a_representative():
    model = hf.environments.gambler()
    stakes = [len(set(row)) for row in representatives(model)]
    assert stakes == [1, *(min(s, 16 - s) for s in range(1, 16)), 1]


@pytest.mark.parametrize("kind", SETS)
def test_kernels_that_serve_in_a_proof_are_members_beyond_rounding(kind):
    model, policy = random_model(SETS.index(kind) + 600, SHAPE)
    evaluation = hf.evaluate(model, policy)
    kernel = strict_member(model, evaluation.reward.kernel)
    assert model.uncertainty.contains(model.nominal, kernel, tolerance=0.0).all() or (
        abs(kernel.sum(-1) - 1).max() <= 1e-15
    )
    assert abs(kernel - evaluation.reward.kernel).max() <= 2e-6
    if kind != "interval":
        divergence = model.uncertainty.divergence(model.nominal, kernel)
        assert (divergence <= model.uncertainty.radius).all()


def test_nan_proves_nothing():
    model, policy = random_model(0, SHAPE)
    kernel = hf.evaluate(model, policy).reward.kernel
    program = occupancy_program(model, [kernel], representatives(model), 0.0)
    numbers = program.at(program.everything())
    objective = np.eye(program.width)[0]
    multipliers = np.full(program.rows, np.nan)
    assert program.proved_bound(numbers, objective, multipliers) == np.inf


def test_a_policy_satisfies_every_row_of_its_program():
    """Visits of a policy under the kernels, by linear solves, against all rows of a box around it."""
    model, policy = random_model(7, SHAPE)
    evaluation = hf.evaluate(model, policy)
    kernels = [evaluation.reward.kernel, evaluation.constraints[0].kernel]
    program = occupancy_program(model, kernels, representatives(model), -100.0)
    states, actions = program.pair_states, program.pair_actions
    pi = policy[states, actions]
    point = [-100.0, *pi]
    for kernel in kernels:
        chain = np.einsum("sa,sat->st", policy, rows_of(kernel)[1])
        visits = np.linalg.solve(np.eye(model.states) - model.discount * chain.T, model.initial)
        point += [*(pi * visits[states]), *visits]
    box = program.everything()
    for low, high in ((0.0, 1.0), (0.5, 0.1)):
        box = box._replace(
            lower=np.maximum(pi - 1 + low, 0.0) if low else box.lower,
            upper=np.minimum(pi + high, 1.0),
        )
        numbers = program.at(box)
        rows = np.bincount(
            program.row_of, numbers.entries * np.array(point)[program.columns], program.rows
        )
        assert (rows <= numbers.right + 1e-9).all()
        assert (np.abs(rows - numbers.right)[program.is_equation] <= 1e-9).all()


def test_an_interrupt_returns_the_bound_reached_so_far():
    model = hf.environments.river_swim()
    policy = hf.solve(model, iterations=100).policy
    seen = []

    def interrupt(progress):
        seen.append(progress)
        if len(seen) == 3:
            raise KeyboardInterrupt

    certificate = hf.certify(model, policy, nodes=None, progress=interrupt)
    assert certificate.regions == seen[-1].nodes
    assert certificate.upper_bound == seen[-1].bound
    assert certificate.gap > 0.01
    assert replayed_bound(model, certificate.proof) <= certificate.upper_bound
    whole = hf.certify(model, policy, nodes=None)
    assert whole.gap <= 0.01 + 1e-12
    assert whole.upper_bound <= certificate.upper_bound


def test_without_time_the_lagrangian_bound_stands():
    model = hf.environments.river_swim()
    policy = hf.solve(model, iterations=100).policy
    plain = hf.certify(model, policy)
    hurried = hf.certify(model, policy, nodes=None, seconds=0.0)
    assert hurried.upper_bound <= plain.upper_bound
    assert plain.proof is None


def test_kernels_that_differ_little_are_one():
    first = np.full((1, 1, 2), 0.5)
    other = first + 1e-8 * np.array([1, -1])
    assert len(distinct([], [first, other, np.array([[[0.4, 0.6]]])])) == 2
