"""The linear program over occupancies that bounds the reward of all policies in a region.

Any kernel q of the set gives V_q ≥ V, so that nature confined to a few kernels q_0, …, q_{K−1} is a
relaxation. Under q_k a policy π has the discounted visits X_k(s) and x_k(s, a) = π(a|s)·X_k(s). They
satisfy the flow equations of q_k; a feasible policy satisfies every constraint under every q_k, and
its worst-case reward t is at most r·x_k for every k.

The probability of a `reach` rule is not a sum over these visits, which go on after the event. A copy of
the visits for a kernel and a rule is *stopped*: it starts outside the states where the rule ends, and
what enters them leaves it. The probability under q_k is then linear in x_k: what enters the states to
reach, and the initial mass in them. So a copy is either for the reward and all sums, or for one rule.

Only the products are not linear: all copies have the same π. The program does not contain π. It compares
every copy with the copy of q_0, by the ratio of their visits. If l ≤ π ≤ u and
a·X_0 − α ≤ X_k ≤ b·X_0 + β, then (π − l)·(X_k − a·X_0 + α) ≥ 0 and its three relatives are linear in the
products. Where the ratio or the probability is known, they are equations. A state has as many unknown
ratios as there are further kernels, however many actions it has.

Actions with identical rows, signals and sets are interchangeable. One *representative* stands for all
of them, and the *pairs* (s, a) below are those of representatives, j = 0, …, n − 1 in row-major order;
s_j is the state of pair j. A node of the search is a box l ≤ π ≤ u with a *cone* (a, α, b, β) for every
k ≥ 1 and s, numbered f = (k − 1)·S + s; b may be infinite. With a horizon the states are those of all
steps (`occupancy_model`), and γ is zero after the last one.

The variables, in this order: t; then for each copy k, x_k(j) for j < n and X_k(s) for s < S. Their
bounds: t in [cutoff, reward_limit], the others in [0, visit_limit].

The rows, in this order, for each k:

1. for each s, the equation Σ_j x_k(j) − X_k(s) = 0, over the pairs of s;
2. for each s', the equation X_k(s') − γ Σ_j q_k(s'|j)·x_k(j) = ρ(s'); in a stopped copy X_k(s') = 0
   where its rule ends;
3. for each constraint i on a sum, −Σ_j u_i(j)·x_k(j) ≤ −d_i, u_i(j) the mean of its utility under q_k;
   in a stopped copy only the row of its rule, with the initial mass in the states to reach in d_i;
4. t − Σ_j r(j)·x_k(j) ≤ 0, r(j) the mean reward under q_k; not in a stopped copy;
5. for each pair j of a state with at least two pairs, with D_k = x_k(j) − l·X_k(s_j) and
   U_k = u·X_k(s_j) − x_k(j): for k = 0 the two rows −D_0 ≤ 0, −U_0 ≤ 0; for k ≥ 1 the four rows
   −D_k + a·D_0 ≤ α·(u − l),  D_k − b·D_0 ≤ β·(u − l),  −U_k + a·U_0 ≤ α·(u − l),
   U_k − b·U_0 ≤ β·(u − l); those with an infinite b are empty.

A further kernel appends variables and rows, and leaves the numbers of the others as they are.

For an objective c and multipliers y, non-negative on the inequalities, every point z of the program has

    c·z ≤ y·b + Σ_v max(g_v·lower_v, g_v·upper_v),   g = c − Aᵀy.

`OccupancyProgram.proved_bound` computes the right-hand side with a bound on its rounding error
(Neumaier and Shcherbina 2004), so that it holds for whatever multipliers a solver returned.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast.model import Kernel
from holdfast.tabular.certificates.occupancy_model import OccupancyModel, rows_of

_EPS = np.finfo(float).eps
# Roundings of one term beyond the length of its sum: normalising and multiplying a coefficient, dividing
# it by the number of steps, multiplying it by a multiplier, and by the bound of a variable, with room to
# spare.
_TERM_ROUNDINGS = 16
# Factor on sums of error bounds, which are themselves rounded.
_OUTWARD = 1 + 1e-9
# Visits added to every pair when a policy is computed from visits: it is uniform where there are none.
_LEAST_VISITS = 1e-12


class PolicyRegion(NamedTuple):
    """A node's knowledge of policies and of ratios of visits.

    Attributes:
        lower: least probability of each pair, l, (n,).
        upper: largest probability of each pair, u, (n,).
        least: a in X_k ≥ a·X_0 − α, (cones,).
        least_slack: α, (cones,).
        most: b in X_k ≤ b·X_0 + β, (cones,); may be inf.
        most_slack: β, (cones,).
    """

    lower: Float[np.ndarray, " n"]
    upper: Float[np.ndarray, " n"]
    least: Float[np.ndarray, " cones"]
    least_slack: Float[np.ndarray, " cones"]
    most: Float[np.ndarray, " cones"]
    most_slack: Float[np.ndarray, " cones"]


class LinearProgram(NamedTuple):
    """The numbers of one node's program: entries, right-hand sides, bounds of the variables."""

    entries: Float[np.ndarray, " entries"]
    right: Float[np.ndarray, " rows"]
    lower: Float[np.ndarray, " columns"]
    upper: Float[np.ndarray, " columns"]


class KernelCopy(NamedTuple):
    """A copy of a policy's visits.

    Attributes:
        kernel: a member of the set, from `kernel_of_all_steps`.
        rule: number of the `reach` rule that the copy is for, among the constraints from 1; 0 for the
            reward and all sums.
    """

    kernel: np.ndarray | Kernel
    rule: int = 0


class _Row(NamedTuple):
    columns: np.ndarray
    entries: np.ndarray
    right: float
    kind: Literal["=", "<", "product"]
    sizes: np.ndarray | None = None  # what the errors of the entries are relative to


@dataclasses.dataclass(frozen=True, eq=False)
class OccupancyProgram:
    """The parts of the program that all nodes share.

    Attributes:
        representative: the action that stands for each action, (S, A).
        pair_states: s_j, (n,).
        pair_actions: the action of each pair, (n,).
        kernels: number of copies K.
        cutoff: least reward of the policies under consideration.
        reward_limit: upper bound on t.
        visit_limit: upper bound on every X_k(s), at least Σ_t γ^t.
        starts: position of the first entry of each row, (rows + 1,).
        columns: column of each entry.
        row_of: row of each entry.
        is_equation: whether each row is an equation.
    """

    representative: Int[np.ndarray, "S A"]
    pair_states: Int[np.ndarray, " n"]
    pair_actions: Int[np.ndarray, " n"]
    kernels: int
    cutoff: float
    reward_limit: float
    visit_limit: float
    starts: Int[np.ndarray, " rows_and_one"]
    columns: Int[np.ndarray, " entries"]
    row_of: Int[np.ndarray, " entries"]
    is_equation: Bool[np.ndarray, " rows"]
    _entries: np.ndarray  # with zeros in place of the entries of row 5
    _sizes: np.ndarray  # what the errors of the entries are relative to
    _right: np.ndarray
    _is_product: np.ndarray  # whether each row is one of row 5
    _roundings: float

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.representative)

    @property
    def pairs(self) -> int:
        """Number of pairs n."""
        return len(self.pair_states)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    @property
    def width(self) -> int:
        """Number of variables."""
        return 1 + self.kernels * (self.pairs + self.states)

    @property
    def cones(self) -> int:
        """Number of pairs of a further kernel and a state."""
        return (self.kernels - 1) * self.states

    @functools.cached_property
    def divisible(self) -> Bool[np.ndarray, " n"]:
        """Whether the state of each pair has at least two pairs."""
        return np.bincount(self.pair_states, minlength=self.states)[self.pair_states] > 1

    def cone_columns(self, f: int) -> tuple[int, int]:
        """Return the columns of X_k(s) and X_0(s), where f = (k − 1)·S + s."""
        k, s = divmod(f, self.states)
        reference = 1 + self.pairs + s
        return reference + (k + 1) * (self.pairs + self.states), reference

    def taken(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, "K n"]:
        """Return x_k(j) of a point."""
        return point[1:].reshape(self.kernels, -1)[:, : self.pairs]

    def visits(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, "K S"]:
        """Return X_k(s) of a point."""
        return point[1:].reshape(self.kernels, -1)[:, self.pairs :]

    def policy(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, " n"]:
        """Return the policy with the frequencies of all copies together; uniform where none comes."""
        taken = np.maximum(self.taken(point).sum(0), 0.0) + _LEAST_VISITS
        return taken / np.bincount(self.pair_states, taken, self.states)[self.pair_states]

    def slack(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, "K n"]:
        """Return |x_k(j) − π(j)·X_k(s_j)| of a point: how far each product is from being one."""
        visits = self.visits(point)[:, self.pair_states]
        return np.abs(self.taken(point) - self.policy(point) * visits)

    def everything(self) -> PolicyRegion:
        """Return the region of all policies, with no knowledge of the ratios."""
        nothing = np.zeros(self.cones)
        return PolicyRegion(
            lower=np.where(self.divisible, 0.0, 1.0),
            upper=np.ones(self.pairs),
            least=nothing,
            least_slack=nothing,
            most=np.full(self.cones, np.inf),
            most_slack=nothing,
        )

    def extended(self, region: PolicyRegion) -> PolicyRegion:
        """Return a region of a program with fewer kernels, with no knowledge of the further ratios."""
        known, new = len(region.least), self.everything()
        ends = [np.append(old, end[known:]) for old, end in zip(region[2:], new[2:], strict=True)]
        return PolicyRegion(region.lower, region.upper, *ends)

    def at(self, region: PolicyRegion) -> LinearProgram:
        """Return the program of a node."""
        chosen = self.divisible
        l, u = region.lower[chosen], region.upper[chosen]  # noqa: E741
        one, states = np.ones_like(l), self.pair_states[chosen]
        a, alpha, b, beta = (end.reshape(-1, self.states)[:, states] for end in region[2:])
        finite = np.isfinite(b)
        f, b = finite.astype(float), np.where(finite, b, 0.0)
        entries, right = self._entries.copy(), self._right.copy()
        first = np.stack([-one, l, one, -u], axis=-1)
        minus = np.broadcast_to(-one, a.shape)
        rows = [minus, l - 0 * a, a, -a * l, f, -f * l, -b, b * l]
        rows += [-minus, -u - 0 * a, -a, a * u, -f, f * u, b, -b * u]
        products = np.append(first.ravel(), np.stack(rows, axis=-1).ravel())
        entries[self._is_product[self.row_of]] = products
        slack = np.stack([alpha, beta, alpha, beta], axis=-1) * (u - l)[:, None]
        right[self._is_product] = np.append(np.zeros(2 * len(l)), slack.ravel())
        upper = np.full(self.width, self.visit_limit)
        lower = np.zeros(self.width)
        lower[0], upper[0] = self.cutoff, self.reward_limit
        return LinearProgram(entries, right, lower, upper)

    def needed(self, region: PolicyRegion) -> Bool[np.ndarray, " rows"]:
        """Return the rows that are not empty and that the others do not imply.

        Where u_j is 1 less the sum of the other lower bounds of its state, the rows with u_j are sums of
        those with the lower bounds of the other pairs.
        """
        chosen = self.divisible
        sums = np.bincount(self.pair_states, weights=region.lower, minlength=self.states)
        own = (region.upper < 1 - (sums[self.pair_states] - region.lower))[chosen]
        most = region.most.reshape(-1, self.states)[:, self.pair_states[chosen]]
        finite, own_too = np.isfinite(most), np.broadcast_to(own, most.shape)
        first = np.stack([np.ones_like(own), own], axis=-1)
        others = np.stack([np.ones_like(finite), finite, own_too, finite & own_too], axis=-1)
        needed = np.ones(self.rows, bool)
        needed[self._is_product] = np.append(first.ravel(), others.ravel())
        return needed

    def proved_bound(
        self,
        program: LinearProgram,
        objective: Float[np.ndarray, " columns"],
        multipliers: Float[np.ndarray, " rows"],
    ) -> float:
        """Return an upper bound on the objective, from multipliers of the right signs.

        Rounding errors are bounded from above. NaN becomes inf, which proves nothing.
        """
        spread = multipliers[self.row_of]
        left = objective - np.bincount(self.columns, program.entries * spread, self.width)
        sizes = np.maximum(self._sizes, np.abs(program.entries)) * np.abs(spread)
        size = np.abs(objective) + np.bincount(self.columns, sizes, self.width)
        reach = np.maximum(np.abs(program.lower), np.abs(program.upper))
        bound = multipliers @ program.right
        bound += np.maximum(left * program.lower, left * program.upper).sum()
        terms = size @ reach + np.abs(left) @ reach + np.abs(multipliers) @ np.abs(program.right)
        bound += self._roundings * _EPS * _OUTWARD * terms
        return float(bound) if np.isfinite(bound) else np.inf


def occupancy_program(
    model: OccupancyModel, copies: list[KernelCopy], cutoff: float
) -> OccupancyProgram:
    """Return the program for a model and members of its uncertainty set.

    Arguments:
        model: the model.
        copies: the copies; the first one is for the reward. Rows of kernels are normalised again.
        cutoff: least reward of the policies under consideration.
    """
    representative = model.representative
    states, actions = np.nonzero(representative == np.arange(representative.shape[1]))
    S, n = len(model.initial), len(states)
    own = [np.flatnonzero(states == s) for s in range(S)]
    pairs = np.arange(n)
    rows: list[_Row] = []
    largest, longest = -np.inf, 0
    for k, copy in enumerate(copies):
        taken = 1 + k * (n + S) + pairs
        visits = 1 + k * (n + S) + n + np.arange(S)
        successors, q = rows_of(copy.kernel)
        q = q[states, actions]
        q = q / q.sum(-1, keepdims=True)
        longest = max(longest, q.shape[-1])
        target = np.arange(S) if successors is None else successors[states, actions]
        reward, size = _mean(model.reward[states, actions], q)
        largest = max(largest, float((reward + 4 * longest * _EPS * size).max()))
        stays = np.ones(S, bool)
        thresholds = model.thresholds
        utilities = [_mean(utility[states, actions], q) for utility in model.utilities]
        if copy.rule:
            stays, pays, threshold = model.rules[copy.rule]
            thresholds, utilities = [threshold], [_mean(np.broadcast_to(pays[target], q.shape), q)]
        flow = np.zeros((n, S))
        leaving = model.discount[states, None] * stays[target] * q
        np.add.at(flow, (pairs[:, None], target), leaving)
        initial = np.where(stays, model.initial, 0.0)

        for s in range(S):
            columns = np.append(taken[own[s]], visits[s])
            rows.append(_Row(columns, np.append(np.ones(len(own[s])), -1.0), 0.0, "="))
        for s in range(S):
            into = np.flatnonzero(flow[:, s])
            columns = np.append(visits[s], taken[into])
            entries = np.append(1.0, -flow[into, s])
            rows.append(_Row(columns, entries, float(initial[s]), "="))
        for threshold, (mean, mean_size) in zip(thresholds, utilities, strict=True):
            rows.append(_Row(taken, -mean, -threshold, "<", mean_size))
        if not copy.rule:
            columns = np.append(0, taken)
            entries, sizes = np.append(1.0, -reward), np.append(1.0, size)
            rows.append(_Row(columns, entries, 0.0, "<", sizes))
        for j in pairs[[len(own[s]) > 1 for s in states]]:
            columns = np.array([taken[j], visits[states[j]], 1 + j, 1 + n + states[j]])
            columns, count = (columns, 4) if k else (columns[:2], 2)
            rows += [_Row(columns, np.zeros(len(columns)), 0.0, "product")] * count
    lengths = [len(row.columns) for row in rows]
    columns = np.concatenate([row.columns for row in rows]).astype(np.int32)
    # Every sum has at most as many terms as there are rows and variables.
    roundings = len(rows) + columns.max() + 1 + longest + S + _TERM_ROUNDINGS
    above = largest * (1 + np.sign(largest) * 8 * _EPS) * model.visits
    return OccupancyProgram(
        representative=representative,
        pair_states=states,
        pair_actions=actions,
        kernels=len(copies),
        cutoff=float(cutoff),
        reward_limit=max(float(cutoff), float(above)),
        visit_limit=model.visits,
        starts=np.append(0, np.cumsum(lengths)).astype(np.int32),
        columns=columns,
        row_of=np.repeat(np.arange(len(rows)), lengths),
        is_equation=np.array([row.kind == "=" for row in rows]),
        _entries=np.concatenate([row.entries for row in rows]),
        _sizes=np.concatenate([np.abs(r.entries) if r.sizes is None else r.sizes for r in rows]),
        _right=np.array([row.right for row in rows]),
        _is_product=np.array([row.kind == "product" for row in rows]),
        _roundings=float(roundings),
    )


def _mean(signal: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of a signal under the rows of a kernel, and the mean of its absolute value."""
    if signal.ndim == 1:
        return signal, np.abs(signal)
    return (q * signal).sum(-1), (q * np.abs(signal)).sum(-1)
