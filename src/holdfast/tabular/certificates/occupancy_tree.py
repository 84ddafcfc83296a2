"""Branch and bound over boxes of policies, with the linear program over occupancies as its bound.

A node is closed when its bound is at most the cutoff, a little above the reward of the policy at hand,
or when its program is empty. An open node first narrows the intervals of its visits: each end is
optimised over the node's own program (optimality-based bound tightening). Then the box is divided at a
probability whose products are far from being products, the one whose parts promise the lowest bounds.
The open node with the largest bound is next, so that an interrupted search has the best bound it can
have. Where the solution of a node is a policy, its own worst kernels join the program.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast.model import Kernel, RobustCMDP
from holdfast.tabular.certificates.occupancy_program import (
    OccupancyProgram,
    PolicyBox,
    occupancy_program,
    representatives,
    rows_of,
)
from holdfast.tabular.certificates.occupancy_proof import (
    EMPTY,
    NARROWED,
    REWARD,
    OccupancyProof,
    ProofRecorder,
)

if TYPE_CHECKING:
    from holdfast.tabular.certificates.occupancy_solver import Basis, ProvedBound

# Rounds of narrowing at the root and at other nodes. A round follows if the last one moved the bound by
# this share of its distance from the cutoff.
_ROOT_ROUNDS, _ROUNDS, _WORTH_ANOTHER = 8, 1, 0.1
# An end of an interval is moved if that narrows the interval by this share.
_LEAST_NARROWING = 0.01
# Products closer than this, relative to all visits, are products: dividing would not change them.
_NO_SLACK = 1e-6
# Probabilities known to this width are not divided further.
_WIDTH = 1e-5
# Points of division are multiples of this, so that sums of probabilities are exact.
_GRID = 2.0**-20
# The point of division: the solution's probability, moved by this share towards the middle, and at least
# this share of the width away from the ends.
_TO_MIDDLE, _FROM_ENDS = 0.3, 0.15
# Pairs that are compared for a division, those with the most slack and at least this share of the
# largest slack, and the number of divisions after which their gains are estimated and not computed.
_CANDIDATES, _LEAST_SHARE, _RELIABLE = 8, 0.05, 8
# Least gain in a product of two gains, as a share of the distance from the cutoff.
_LEAST_GAIN = 1e-4
# Number of policies that are returned: the first ones, and the last one found.
_POLICIES = 4


class _Open(NamedTuple):
    """An open node: its number, bound, box, the solution of its program, and its basis."""

    number: int
    bound: float
    box: PolicyBox
    point: Float[np.ndarray, " columns"]
    basis: Basis | None


class TreeProgress(NamedTuple):
    """The state of a search: nodes so far, bound so far, seconds so far."""

    nodes: int
    bound: float
    seconds: float


class TreeLimits(NamedTuple):
    """Limits of a search: the largest number of nodes (None: no limit), and seconds."""

    nodes: int | None
    seconds: float


class TreeResult(NamedTuple):
    """The result of a search.

    Attributes:
        value: upper bound on the worst-case reward of every feasible stationary policy.
        nodes: number of nodes.
        proof: the record that proves it.
        policies: a few policies of the relaxation, (S, A) each, the root's own first.
        interrupted: whether a KeyboardInterrupt ended the search.
    """

    value: float
    nodes: int
    proof: OccupancyProof
    policies: tuple[Float[np.ndarray, "S A"], ...]
    interrupted: bool


# From a policy (S, A): the worst kernels of the signals that keep it from being feasible and at least as
# good as the cutoff.
FindKernels = Callable[[Float[np.ndarray, "S A"]], list[np.ndarray | Kernel]]


def occupancy_tree(
    model: RobustCMDP,
    kernels: list[np.ndarray | Kernel],
    cutoff: float,
    limits: TreeLimits,
    find_kernels: FindKernels,
    progress: Callable[[TreeProgress], None] | None = None,
) -> TreeResult:
    """Return an upper bound on the worst-case reward of every feasible stationary policy.

    The search ends when no policy is left whose reward may exceed the cutoff, or at a limit, or at a
    KeyboardInterrupt. The bound is then the larger of the cutoff and the bounds of the open nodes.

    Arguments:
        model: the model.
        kernels: members of the uncertainty set to start with.
        cutoff: reward that is near enough to the policy at hand.
        limits: limits of the search.
        find_kernels: function that returns further kernels for a policy of the relaxation.
        progress: function called after each division.
    """
    search = _Search(model, distinct([], kernels), cutoff, limits, find_kernels)
    interrupted = False
    try:
        search.run(progress)
    except KeyboardInterrupt:
        interrupted = True
    return search.result(interrupted)


def distinct(
    known: list[np.ndarray | Kernel], found: list[np.ndarray | Kernel]
) -> list[np.ndarray | Kernel]:
    """Return the known kernels, then the found ones that differ from all before them.

    Kernels that differ by less than 1e-6 in every entry bound the reward alike.
    """
    kept = list(known)
    for kernel in found:
        rows = rows_of(kernel)[1]
        if all(np.abs(rows - rows_of(other)[1]).max() > 1e-6 for other in kept):
            kept.append(kernel)
    return kept


@dataclasses.dataclass
class _Search:
    model: RobustCMDP
    kernels: list[np.ndarray | Kernel]
    cutoff: float
    limits: TreeLimits
    find_kernels: FindKernels

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        self.recorder = ProofRecorder()
        self.merged = representatives(self.model)
        self.heap: list[tuple[float, int, _Open]] = []
        # The bounds of closed nodes, and of nodes that were being processed when the search ended.
        self.closed = -np.inf
        self.pending: list[float] = []
        self.policies: list[np.ndarray] = []
        self._use_kernels()
        # Sums of what the parts of divisions at each pair gained, by slack, and their numbers.
        self.gains, self.tries = np.zeros((2, self.program.pairs)), np.zeros(self.program.pairs)

    def _use_kernels(self) -> None:
        # The core runs without a solver of linear programs with warm starts; only the tree needs it.
        from holdfast.tabular.certificates.occupancy_solver import OccupancySolver

        self.program = occupancy_program(self.model, self.kernels, self.merged, self.cutoff)
        self.solver = OccupancySolver(self.program)
        self.reward = np.zeros(self.program.width)
        self.reward[0] = 1.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def exhausted(self) -> bool:
        nodes = self.limits.nodes
        over = nodes is not None and self.recorder.nodes >= nodes
        return over or self.seconds >= self.limits.seconds

    @property
    def bound(self) -> float:
        largest = -self.heap[0][0] if self.heap else -np.inf
        return max(self.cutoff, self.closed, largest, *self.pending)

    def run(self, progress: Callable[[TreeProgress], None] | None) -> None:
        self.pending = [np.inf]
        self._settle(0, np.inf, self.program.everything(), None, _ROOT_ROUNDS)
        while self.heap and not self.exhausted:
            node = self._pop()
            if node is None:
                continue
            pair, point = self._division(node)
            if pair < 0:
                self.closed, self.pending = max(self.closed, node.bound), []
                continue
            numbers = self.recorder.divide(node.number, pair, point)
            self.pending = [node.bound, node.bound]
            for above, number in enumerate(numbers):
                box = divided(self.program, node.box, pair, point, bool(above))
                self._settle(number, node.bound, box, node.basis, _ROUNDS)
            if progress is not None:
                progress(TreeProgress(self.recorder.nodes, self.bound, self.seconds))

    def _pop(self) -> _Open | None:
        """Return the open node with the largest bound, after its policy has been asked for kernels."""
        node = self.heap[0][2]
        self.pending = [node.bound]  # an interrupt must find the node here or on the heap
        heapq.heappop(self.heap)
        if len(node.point) == self.program.width and self._is_product(node.point):
            found = distinct(self.kernels, self.find_kernels(self._policy(node.point)))
            if len(found) > len(self.kernels):
                self.kernels = found
                self._use_kernels()
        if len(node.point) < self.program.width:  # the node is older than the last kernels
            box = self.program.extended(node.box)
            self._settle(node.number, node.bound, box, None, _ROUNDS)
            return None
        return node

    def _is_product(self, point: np.ndarray) -> bool:
        """Whether the point is that of a policy, so that only further kernels can lower the bound."""
        return bool(self.program.slack(point).sum() <= _NO_SLACK * self.program.visit_limit)

    def _policy(self, point: np.ndarray) -> Float[np.ndarray, "S A"]:
        program = self.program
        policy = np.zeros((self.model.states, self.model.actions))
        policy[program.pair_states, program.pair_actions] = np.maximum(program.policy(point), 0.0)
        return policy / policy.sum(-1, keepdims=True)

    def _division(self, node: _Open) -> tuple[int, float]:
        """Return the pair to divide at and the point, or −1 if every width is small.

        Of the pairs with the most slack, it is the one whose parts have the lowest bounds. They are
        computed for pairs that were rarely divided, and estimated from earlier divisions for others.
        """
        box = node.box
        slack = self.program.slack(node.point).sum(0) + _NO_SLACK
        slack = np.where(box.upper - box.lower > _WIDTH, slack, -1.0)
        best, chosen = -1.0, (-1, 0.0)
        for pair in np.argsort(-slack)[:_CANDIDATES]:
            if slack[pair] < max(0.0, _LEAST_SHARE * slack.max()):
                break
            point = self._point(node, int(pair))
            gains = self.gains[:, pair] / np.maximum(self.tries[pair], 1) * slack[pair]
            if self.tries[pair] < _RELIABLE:
                gains = self._try(node, int(pair), point)
                self.gains[:, pair] += gains / slack[pair]
                self.tries[pair] += 1
            score = float(np.maximum(gains, _LEAST_GAIN * (node.bound - self.cutoff)).prod())
            if score > best:
                best, chosen = score, (int(pair), point)
        return chosen

    def _point(self, node: _Open, pair: int) -> float:
        lower, upper = node.box.lower[pair], node.box.upper[pair]
        point = self.program.policy(node.point)[pair]
        point = (1 - _TO_MIDDLE) * point + _TO_MIDDLE * (lower + upper) / 2
        margin = _FROM_ENDS * (upper - lower)
        return float(np.round(np.clip(point, lower + margin, upper - margin) / _GRID) * _GRID)

    def _try(self, node: _Open, pair: int, point: float) -> Float[np.ndarray, " 2"]:
        """Return by how much the bounds of both parts are below the node's."""
        gains = []
        for above in (False, True):
            self.solver.load(divided(self.program, node.box, pair, point, above), node.basis)
            bound = min(max(self.solver.maximise(self.reward).value, self.cutoff), node.bound)
            gains.append(node.bound - bound)
        return np.array(gains)

    def _settle(
        self, number: int, bound: float, box: PolicyBox, basis: Basis | None, rounds: int
    ) -> None:
        """Bound a node, and close it or put it on the heap. Its bound is at most the given one."""
        solver = self.solver
        solver.load(box, basis)
        for turn in itertools.count():
            found = solver.maximise(self.reward)
            before, bound = bound, self._record(number, found, bound)
            if bound <= self.cutoff or found.point is None:
                break
            self.policies = [*self.policies[: _POLICIES - 1], self._policy(found.point)]
            basis = solver.basis()
            worth = before - bound > _WORTH_ANOTHER * (before - self.cutoff)
            if turn == rounds or (turn > 0 and not worth) or self.seconds >= self.limits.seconds:
                break
            narrowed = self._narrow(number, box, found.point)
            if narrowed is None:
                bound = -np.inf
                break
            if narrowed is box:
                break
            box = narrowed
            self.recorder.step(number, NARROWED, 0.0, np.zeros(0))
            solver.load(box, basis)
        # Without a point the solver has failed: the bound stands, and cannot be lowered.
        if bound <= self.cutoff or found.point is None:
            self.closed = max(self.closed, bound)
        else:
            node = _Open(number, bound, box, found.point, basis)
            heapq.heappush(self.heap, (-bound, number, node))
        self.pending.pop()

    def _record(self, number: int, found: ProvedBound, bound: float) -> float:
        """Return the bound of a node after a step on its reward."""
        if found.multipliers is None or not found.value < bound:
            return bound
        kind = EMPTY if found.value == -np.inf else REWARD
        self.recorder.step(number, kind, found.value, found.multipliers)
        return found.value

    def _narrow(self, number: int, box: PolicyBox, point: np.ndarray) -> PolicyBox | None:
        """Return the box with narrower intervals of visits, the same box, or None if it is empty.

        Only intervals of states whose products have slack are narrowed. An end that some solution of the
        same program has nearly attained is left alone.
        """
        program, solver = self.program, self.solver
        columns = np.array([program.visit_column(f) for f in range(len(box.least))])
        slack = np.zeros((program.kernels, program.states))
        np.add.at(slack.T, program.pair_states, program.slack(point).T)
        # One state after the other: the visits of one state under several kernels have similar optima.
        tense = np.arange(slack.size).reshape(slack.shape).T[slack.T > _NO_SLACK]
        least, most = box.least.copy(), box.most.copy()
        smallest, largest = point[columns].copy(), point[columns].copy()
        for sign, f in itertools.product((-1.0, 1.0), tense):
            width = most[f] - least[f]
            room = most[f] - largest[f] if sign > 0 else smallest[f] - least[f]
            if room <= _LEAST_NARROWING * width or self.seconds >= self.limits.seconds:
                continue
            objective = np.zeros(program.width)
            objective[columns[f]] = sign
            found = solver.maximise(objective)
            if found.value == -np.inf and found.multipliers is not None:
                self.recorder.step(number, EMPTY, -np.inf, found.multipliers)
                return None
            if found.point is not None:
                smallest = np.minimum(smallest, found.point[columns])
                largest = np.maximum(largest, found.point[columns])
            end = sign * found.value
            crossed = end < least[f] if sign > 0 else end > most[f]
            gained = (most[f] - end) if sign > 0 else (end - least[f])
            if found.multipliers is None or crossed or not gained > _LEAST_NARROWING * width:
                continue
            (most if sign > 0 else least)[f] = end
            self.recorder.step(number, 2 * int(f) + (sign > 0), end, found.multipliers)
        if (least == box.least).all() and (most == box.most).all():
            return box
        return box._replace(least=least, most=most)

    def result(self, interrupted: bool) -> TreeResult:
        program = self.program
        rows = [rows_of(kernel) for kernel in self.kernels]
        proof = OccupancyProof(
            value=self.bound,
            representative=self.merged,
            kernels=np.stack([q for _, q in rows]),
            successors=rows[0][0],
            cutoff=program.cutoff,
            reward_limit=program.reward_limit,
            visit_limit=program.visit_limit,
            **self.recorder.columns(),
        )
        return TreeResult(self.bound, self.recorder.nodes, proof, tuple(self.policies), interrupted)


def divided(
    program: OccupancyProgram, box: PolicyBox, pair: int, point: float, above: bool
) -> PolicyBox:
    """Return the part of a box in which the probability of a pair is above, or below, a point."""
    lower, upper = box.lower.copy(), box.upper.copy()
    (lower if above else upper)[pair] = point
    own = program.pair_states == program.pair_states[pair]
    low, high = lower[own], upper[own]
    # The sum of one bounds each probability by the others.
    lower[own] = np.maximum(low, 1 - (high.sum() - high))
    upper[own] = np.minimum(high, 1 - (low.sum() - low))
    return box._replace(lower=lower, upper=upper)
