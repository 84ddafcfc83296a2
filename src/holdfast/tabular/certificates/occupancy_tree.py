"""Branch and bound over regions of policies, with the linear program over occupancies as its bound.

A node is closed when its bound is at most the cutoff, a little above the reward of the policy at hand,
or when its program is empty. An open node first narrows its ratios of visits: each end is optimised over
the node's own program (optimality-based bound tightening). Then it is divided at a probability or at a
ratio whose products are far from being products, the one whose parts promise the lowest bounds. The open
node with the largest bound is next, so that an interrupted search has the best bound it can have. Where
the policy of a node's solution is itself above the cutoff under all kernels, only further kernels can
lower the bound, and its own worst kernels join the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast.tabular.certificates.occupancy_division import (
    GRID,
    NO_SLACK,
    DivisionGains,
    OpenNode,
    divided,
    slack_by_state,
    visit_ratios,
)
from holdfast.tabular.certificates.occupancy_model import OccupancyModel, rows_of
from holdfast.tabular.certificates.occupancy_program import (
    KernelCopy,
    PolicyRegion,
    occupancy_program,
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
_ROOT_ROUNDS, _ROUNDS, _WORTH_ANOTHER = 3, 1, 0.1
# An end of a ratio is moved if that changes it by this share.
_LEAST_NARROWING = 0.01
# Limit on the linear programs for one end. Dinkelbach's method converges faster than linearly.
_RATIO_ROUNDS = 6
# An end is found where the visits exceed it by at most this share of all visits, as far as can be
# proved. What the solver's tolerances cost is some 1e-8.
_ATTAINED = 1e-6
# Number of policies that are returned: the first ones, and the last one found.
_POLICIES = 4


class TreeProgress(NamedTuple):
    """The state of a search.

    Attributes:
        nodes: number of nodes so far.
        bound: upper bound so far.
        seconds: seconds so far.
        gap: relative distance of the certified reward from the bound, which `certify` sets.
    """

    nodes: int
    bound: float
    seconds: float
    gap: float = math.nan

    def __str__(self) -> str:
        return f"{self.bound:.6g}, gap {100 * self.gap:.2g} %, {self.nodes} boxes"


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
    """

    value: float
    nodes: int
    proof: OccupancyProof
    policies: tuple[Float[np.ndarray, "S A"], ...]


# From a policy (S, A): the worst kernels of the signals that keep it from being feasible and at least as
# good as the cutoff.
FindKernels = Callable[[Float[np.ndarray, "S A"]], list[KernelCopy]]


def occupancy_tree(
    model: OccupancyModel,
    kernels: list[KernelCopy],
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
        kernels: members of the uncertainty set to start with, and what each is for. The first one is
            for the reward.
        cutoff: reward that is near enough to the policy at hand.
        limits: limits of the search.
        find_kernels: function that returns further kernels for a policy of the relaxation.
        progress: function called after each division.
    """
    search = _Search(model, distinct([], kernels), cutoff, limits, find_kernels)
    with contextlib.suppress(KeyboardInterrupt):
        search.run(progress)
    return search.result()


def distinct(known: list[KernelCopy], found: list[KernelCopy]) -> list[KernelCopy]:
    """Return the known kernels, then the found ones that differ from all before them for the same rule.

    Kernels that differ by less than 1e-6 in every entry bound the reward alike.
    """
    kept = list(known)
    for copy in found:
        rows = rows_of(copy.kernel)[1]
        others = [rows_of(other.kernel)[1] for other in kept if other.rule == copy.rule]
        if all(np.abs(rows - other).max() > 1e-6 for other in others):
            kept.append(copy)
    return kept


@dataclasses.dataclass
class _Search:
    model: OccupancyModel
    kernels: list[KernelCopy]
    cutoff: float
    limits: TreeLimits
    find_kernels: FindKernels

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        self.recorder = ProofRecorder()
        self.heap: list[tuple[float, int, OpenNode]] = []
        # The bounds of closed nodes, and of nodes that were being processed when the search ended.
        self.closed = -np.inf
        self.pending: list[float] = []
        self.policies: list[np.ndarray] = []
        self.gains = DivisionGains.none()
        self._use_kernels()

    def _use_kernels(self) -> None:
        # The core runs without a solver of linear programs with warm starts; only the tree needs it.
        from holdfast.tabular.certificates.occupancy_solver import OccupancySolver

        self.program = occupancy_program(self.model, self.kernels, self.cutoff)
        self.solver = OccupancySolver(self.program)
        self.reward = np.zeros(self.program.width)
        self.reward[0] = 1.0
        self.gains.extend(self.program.pairs + self.program.cones)

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
            place, point = self.gains.choose(self.solver, node, self.cutoff)
            if place < 0:
                self.closed, self.pending = max(self.closed, node.bound), []
                continue
            numbers = self.recorder.divide(node.number, place, point)
            self.pending = [node.bound, node.bound]
            for above, number in enumerate(numbers):
                region = divided(self.program, node.region, place, point, bool(above))
                self._settle(number, node.bound, region, node.basis, _ROUNDS)
            if progress is not None:
                progress(TreeProgress(self.recorder.nodes, self.bound, self.seconds))

    def _pop(self) -> OpenNode | None:
        """Return the open node with the largest bound, after its policy has been asked for kernels."""
        node = self.heap[0][2]
        self.pending = [node.bound]  # an interrupt must find the node here or on the heap
        heapq.heappop(self.heap)
        if len(node.point) == self.program.width and self._above_cutoff(node.point):
            found = distinct(self.kernels, self.find_kernels(self._policy(node.point)))
            if len(found) > len(self.kernels):
                self.kernels = found
                self._use_kernels()
        if len(node.point) < self.program.width:  # the node is older than the last kernels
            region = self.program.extended(node.region)
            self._settle(node.number, node.bound, region, None, _ROUNDS)
            return None
        return node

    def _above_cutoff(self, point: np.ndarray) -> bool:
        """Whether the policy of a point meets its constraints and the cutoff under all kernels."""
        policy = self.program.policy(point)
        self.solver.load(self.program.everything()._replace(lower=policy, upper=policy))
        found = self.solver.maximise(self.reward)
        return found.point is not None and found.value > self.cutoff

    def _policy(self, point: np.ndarray) -> Float[np.ndarray, "S A"]:
        program = self.program
        policy = np.zeros(self.model.representative.shape)
        policy[program.pair_states, program.pair_actions] = program.policy(point)
        return policy / policy.sum(-1, keepdims=True)

    def _settle(
        self, number: int, bound: float, region: PolicyRegion, basis: Basis | None, rounds: int
    ) -> None:
        """Bound a node, and close it or put it on the heap. Its bound is at most the given one."""
        solver = self.solver
        solver.load(region, basis)
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
            narrowed = self._narrow(number, region, found.point)
            if narrowed is None:
                bound = -np.inf
                break
            if narrowed is region:
                break
            region = narrowed
            self.recorder.step(number, NARROWED, 0.0, np.zeros(0))
            solver.load(region, basis)
        # Without a point the solver has failed: the bound stands, and cannot be lowered.
        if bound <= self.cutoff or found.point is None:
            self.closed = max(self.closed, bound)
        else:
            node = OpenNode(number, bound, region, found.point, basis)
            heapq.heappush(self.heap, (-bound, number, node))
        self.pending.pop()

    def _record(self, number: int, found: ProvedBound, bound: float) -> float:
        """Return the bound of a node after a step on its reward."""
        if found.multipliers is None or not found.value < bound:
            return bound
        kind = EMPTY if found.value == -np.inf else REWARD
        self.recorder.step(number, kind, found.value, found.multipliers)
        return found.value

    def _narrow(self, number: int, region: PolicyRegion, point: np.ndarray) -> PolicyRegion | None:
        """Return the region with narrower ratios of visits, the same region, or None if it is empty.

        Only ratios of states whose products have slack are narrowed. An end that some solution of the
        same program has nearly attained is left alone.
        """
        program = self.program
        least, least_slack, most, most_slack = (end.copy() for end in region[2:])
        smallest = largest = visit_ratios(program, point)
        tense = np.flatnonzero(slack_by_state(program, program.slack(point)[1:]) > NO_SLACK)
        narrowed = False
        for f, upper in itertools.product(tense.tolist(), (True, False)):
            end, slack = (most, most_slack) if upper else (least, least_slack)
            for _ in range(_RATIO_ROUNDS):
                ratio = (largest if upper else smallest)[f]
                slope = (np.ceil if upper else np.floor)(ratio / GRID) * GRID
                if not np.isfinite(slope) or self.seconds >= self.limits.seconds:
                    break
                gained = end[f] - slope if upper else slope - end[f]
                if not gained > _LEAST_NARROWING * slope:
                    break
                found = self._beyond(f, slope, upper)
                if found.value == -np.inf and found.multipliers is not None:
                    self.recorder.step(number, EMPTY, -np.inf, found.multipliers)
                    return None
                if found.point is None or found.multipliers is None:
                    break
                ratios = visit_ratios(program, found.point)
                smallest, largest = np.minimum(smallest, ratios), np.maximum(largest, ratios)
                if found.value <= _ATTAINED * program.visit_limit:
                    end[f], slack[f], narrowed = slope, max(found.value, 0.0), True
                    kind = 2 * f + upper
                    self.recorder.step(number, kind, slack[f], found.multipliers, slope)
                    break
        if not narrowed:
            return region
        return PolicyRegion(region.lower, region.upper, least, least_slack, most, most_slack)

    def _beyond(self, f: int, slope: float, upper: bool) -> ProvedBound:
        """Return a bound on X_k − slope·X_0, or on its negative if not `upper`."""
        objective = np.zeros(self.program.width)
        sign = 1.0 if upper else -1.0
        objective[list(self.program.cone_columns(f))] = sign, -sign * slope
        return self.solver.maximise(objective)

    def result(self) -> TreeResult:
        program = self.program
        rows = [rows_of(copy.kernel) for copy in self.kernels]
        proof = OccupancyProof(
            value=self.bound,
            representative=self.model.representative,
            kernels=np.stack([q for _, q in rows]),
            successors=rows[0][0],
            rules=np.array([copy.rule for copy in self.kernels]),
            cutoff=program.cutoff,
            reward_limit=program.reward_limit,
            visit_limit=program.visit_limit,
            **self.recorder.columns(),
        )
        return TreeResult(self.bound, self.recorder.nodes, proof, tuple(self.policies))
