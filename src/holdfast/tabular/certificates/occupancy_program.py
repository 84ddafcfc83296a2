"""The linear program over occupancies that bounds the reward of all policies in a box.

Any kernel q of the set gives V_q ≥ V, so that nature confined to a few kernels q_1, …, q_K is a
relaxation. Under q_k a policy π has the discounted visits X_k(s) and x_k(s, a) = π(a|s)·X_k(s). They
satisfy the flow equations of q_k; a feasible policy satisfies every constraint under every q_k, and
its worst-case reward t is at most r·x_k for every k. The products are the only part that is not linear.
For l ≤ π ≤ u and L ≤ X ≤ H they satisfy McCormick's inequalities, which come from
(π − l)(X − L) ≥ 0 and its three relatives.

Actions with identical rows, signals and sets are interchangeable. One *representative* stands for all
of them, and the *pairs* (s, a) below are those of representatives, j = 0, …, n − 1 in row-major order;
s_j is the state of pair j. A node of the search is a box l ≤ π ≤ u with intervals [L_k(s), H_k(s)].

The variables, in this order: t; π(j) for j < n; then for each k, x_k(j) for j < n and X_k(s) for
s < S. Their bounds: t in [cutoff, reward_limit], π(j) in [l_j, u_j], x_k(j) in
[l_j·L_k(s_j), u_j·H_k(s_j)], X_k(s) in [L_k(s), H_k(s)].

The rows, in this order: the equation Σ_j π(j) = 1 over the pairs of s, for each s; then for each k

1. for each s, the equation Σ_j x_k(j) − X_k(s) = 0, over the pairs of s;
2. for each s', the equation X_k(s') − γ Σ_j q_k(s'|j)·x_k(j) = ρ(s');
3. for each constraint i, −Σ_j u_i(j)·x_k(j) ≤ −d_i, u_i(j) the mean of its utility under q_k;
4. t − Σ_j r(j)·x_k(j) ≤ 0, r(j) the mean reward under q_k;
5. for each pair j of a state with at least two pairs, with x = x_k(j), X = X_k(s_j), π = π(j) and the
   bounds l, u, L, H of that pair, the four rows
   −x + l·X + L·π ≤ l·L,  −x + u·X + H·π ≤ u·H,  x − u·X − L·π ≤ −u·L,  x − l·X − H·π ≤ −l·H.

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

from holdfast.model import Kernel, RobustCMDP

_EPS = np.finfo(float).eps
# Roundings of one term beyond the length of its sum: normalising and multiplying a coefficient,
# multiplying it by a multiplier, and by the bound of a variable, with room to spare.
_TERM_ROUNDINGS = 16
# Factor on sums of error bounds, which are themselves rounded.
_OUTWARD = 1 + 1e-9


class PolicyBox(NamedTuple):
    """A node's bounds.

    Attributes:
        lower: least probability of each pair, (n,).
        upper: largest probability of each pair, (n,).
        least: lower ends of the visits X_k(s), (K·S,).
        most: upper ends of the visits, (K·S,).
    """

    lower: Float[np.ndarray, " n"]
    upper: Float[np.ndarray, " n"]
    least: Float[np.ndarray, " visits"]
    most: Float[np.ndarray, " visits"]


class LinearProgram(NamedTuple):
    """The numbers of one node's program: entries, right-hand sides, bounds of the variables."""

    entries: Float[np.ndarray, " entries"]
    right: Float[np.ndarray, " rows"]
    lower: Float[np.ndarray, " columns"]
    upper: Float[np.ndarray, " columns"]


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
        kernels: number of kernels K.
        cutoff: least reward of the policies under consideration.
        reward_limit: upper bound on t.
        visit_limit: upper bound on every X_k(s), at least 1/(1−γ).
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
        return 1 + self.pairs + self.kernels * (self.pairs + self.states)

    @functools.cached_property
    def divisible(self) -> Bool[np.ndarray, " n"]:
        """Whether the state of each pair has at least two pairs."""
        return np.bincount(self.pair_states, minlength=self.states)[self.pair_states] > 1

    def visit_column(self, f: int) -> int:
        """Return the column of X_k(s), where f = k·S + s."""
        k, s = divmod(f, self.states)
        return 1 + self.pairs + k * (self.pairs + self.states) + self.pairs + s

    def policy(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, " n"]:
        """Return π of a point, (n,)."""
        return point[1 : 1 + self.pairs]

    def slack(self, point: Float[np.ndarray, " columns"]) -> Float[np.ndarray, "K n"]:
        """Return |x_k(j) − π(j)·X_k(s_j)| of a point: how far each product is from being one."""
        blocks = point[1 + self.pairs :].reshape(self.kernels, -1)
        taken, visits = blocks[:, : self.pairs], blocks[:, self.pairs :]
        return np.abs(taken - self.policy(point) * visits[:, self.pair_states])

    def everything(self) -> PolicyBox:
        """Return the box of all policies."""
        count = self.kernels * self.states
        return PolicyBox(
            lower=np.where(self.divisible, 0.0, 1.0),
            upper=np.ones(self.pairs),
            least=np.zeros(count),
            most=np.full(count, self.visit_limit),
        )

    def extended(self, box: PolicyBox) -> PolicyBox:
        """Return a box of a program with fewer kernels, with no knowledge of the further visits."""
        more = self.kernels * self.states - len(box.least)
        return box._replace(
            least=np.append(box.least, np.zeros(more)),
            most=np.append(box.most, np.full(more, self.visit_limit)),
        )

    def at(self, box: PolicyBox) -> LinearProgram:
        """Return the program of a node."""
        least, most = (end.reshape(self.kernels, self.states) for end in (box.least, box.most))
        low, high = least[:, self.pair_states], most[:, self.pair_states]
        # The products are rounded outwards, to either side of the exact ones.
        lower = np.hstack([box.lower * low * (1 - 2 * _EPS), least]).ravel()
        upper = np.hstack([box.upper * high * (1 + 2 * _EPS), most]).ravel()
        chosen = self.divisible
        L, H = low[:, chosen].ravel(), high[:, chosen].ravel()
        l, u = (np.tile(end[chosen], self.kernels) for end in (box.lower, box.upper))  # noqa: E741
        one = np.ones_like(l)
        entries, right = self._entries.copy(), self._right.copy()
        products = np.stack([-one, l, L, -one, u, H, one, -u, -L, one, -l, -H], axis=1)
        entries[self._is_product[self.row_of]] = products.ravel()
        right[self._is_product] = np.stack([l * L, u * H, -u * L, -l * H], axis=1).ravel()
        return LinearProgram(
            entries=entries,
            right=right,
            lower=np.concatenate([[self.cutoff], box.lower, lower]),
            upper=np.concatenate([[self.reward_limit], box.upper, upper]),
        )

    def needed(self, box: PolicyBox) -> Bool[np.ndarray, " rows"]:
        """Return the rows that the others do not imply.

        Where u_j is 1 less the sum of the other lower bounds of its state, McCormick's rows with u_j are
        sums of those with the lower bounds of the other pairs.
        """
        sums = np.bincount(self.pair_states, weights=box.lower, minlength=self.states)
        implied = box.upper >= 1 - (sums[self.pair_states] - box.lower)
        four = np.array([False, True, True, False])
        needed = np.ones(self.rows, bool)
        left_out = np.tile((implied[self.divisible][:, None] & four).ravel(), self.kernels)
        needed[self._is_product] = ~left_out
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
    model: RobustCMDP,
    kernels: list[np.ndarray | Kernel],
    representative: Int[np.ndarray, "S A"],
    cutoff: float,
) -> OccupancyProgram:
    """Return the program for a model and members of its uncertainty set.

    Arguments:
        model: the model.
        kernels: members of the set, in the form of the model's kernel. Rows are normalised again.
        representative: the action that stands for each action, from `representatives`.
        cutoff: least reward of the policies under consideration.
    """
    states, actions = np.nonzero(representative == np.arange(model.actions))
    S, n = model.states, len(states)
    initial = np.asarray(model.initial, float)
    own = [np.flatnonzero(states == s) for s in range(S)]
    pairs = np.arange(n)
    rows: list[_Row] = [_Row(1 + own[s], np.ones(len(own[s])), 1.0, "=") for s in range(S)]
    largest, longest = -np.inf, 0
    for k, kernel in enumerate(kernels):
        taken = 1 + n + k * (n + S) + pairs
        visits = 1 + n + k * (n + S) + n + np.arange(S)
        successors, q = rows_of(kernel)
        q = q[states, actions]
        q = q / q.sum(-1, keepdims=True)
        longest = max(longest, q.shape[-1])
        flow = np.zeros((n, S))
        target = np.arange(S) if successors is None else successors[states, actions]
        np.add.at(flow, (pairs[:, None], target), model.discount * q)
        utilities = [_mean(c.utility[states, actions], q) for c in model.constraints]
        reward, size = _mean(model.reward[states, actions], q)
        largest = max(largest, float((reward + 4 * longest * _EPS * size).max()))

        for s in range(S):
            columns = np.append(taken[own[s]], visits[s])
            rows.append(_Row(columns, np.append(np.ones(len(own[s])), -1.0), 0.0, "="))
        for s in range(S):
            into = np.flatnonzero(flow[:, s])
            columns = np.append(visits[s], taken[into])
            entries = np.append(1.0, -flow[into, s])
            rows.append(_Row(columns, entries, float(initial[s]), "="))
        for constraint, (mean, mean_size) in zip(model.constraints, utilities, strict=True):
            rows.append(_Row(taken, -mean, -constraint.utility_threshold, "<", mean_size))
        columns = np.append(0, taken)
        rows.append(_Row(columns, np.append(1.0, -reward), 0.0, "<", np.append(1.0, size)))
        for j in pairs[[len(own[s]) > 1 for s in states]]:
            columns = np.array([taken[j], visits[states[j]], 1 + j])
            rows += [_Row(columns, np.zeros(3), 0.0, "product")] * 4
    lengths = [len(row.columns) for row in rows]
    columns = np.concatenate([row.columns for row in rows]).astype(np.int32)
    # Every sum has at most as many terms as there are rows and variables.
    roundings = len(rows) + columns.max() + 1 + longest + S + _TERM_ROUNDINGS
    above = largest * (1 + np.sign(largest) * 8 * _EPS) / (1 - model.discount)
    return OccupancyProgram(
        representative=representative,
        pair_states=states,
        pair_actions=actions,
        kernels=len(kernels),
        cutoff=float(cutoff),
        reward_limit=max(float(cutoff), float(above)),
        visit_limit=(1 + 4 * _EPS) / (1 - model.discount),
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


def representatives(model: RobustCMDP) -> Int[np.ndarray, "S A"]:
    """Return the first action of each state that has the same row, signals and set as each action.

    Example:
        >>> import holdfast as hf
        >>> representatives(hf.environments.gambler())[2]     # stakes are cut to the balance of 2
        array([0, 1, 1, 1, 1, 1, 1, 1])
    """
    shape = model.states, model.actions
    uncertainty = model.uncertainty
    assert uncertainty is not None
    fields = uncertainty.to_arrays()[1]
    parts = [model.nominal, model.reward, *(c.signal for c in model.constraints)]
    parts += [f for name, f in fields.items() if name not in uncertainty.shared and f.ndim >= 2]
    if isinstance(model.transitions, Kernel):
        parts.append(model.transitions.successors)
    keys = np.concatenate([np.asarray(p, float).reshape(*shape, -1) for p in parts], axis=-1)
    same = (keys[:, :, None] == keys[:, None]).all(-1)
    return same.argmax(-1)


def rows_of(kernel: np.ndarray | Kernel) -> tuple[np.ndarray | None, np.ndarray]:
    """Return successors (None if dense) and probabilities."""
    if isinstance(kernel, Kernel):
        return kernel.successors, kernel.probabilities
    return None, kernel


def _mean(signal: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of a signal under the rows of a kernel, and the mean of its absolute value."""
    if signal.ndim == 1:
        return signal, np.abs(signal)
    return (q * signal).sum(-1), (q * np.abs(signal)).sum(-1)
