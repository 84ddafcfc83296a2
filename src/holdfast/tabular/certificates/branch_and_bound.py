"""A tighter upper bound on the reward of feasible policies: branch and bound over the rows of policies.

The Lagrangian bound lets nature choose one kernel for all signals, although each signal has its own
worst case. The bound here is closer. Run one copy of the chain for every signal, all from the same
start. While the copies are together in one state, they take the same action, and nature moves each
by a kernel of its own. The common part of these kernels moves the copies together, and the rest
separates them. A separated copy takes the best actions for its own signal, against that signal's
worst case; its value is V*_i. Every policy follows these rules, so that with weights w = (1, λ)

    W(s) = max_a min_{q_0,…,q_m} Σ_i w_i·q_i·y_i − γ Σ_{s'} min_i q_i(s')·(Σ_i w_i V*_i − W)(s'),

y_i = signal_i + γV*_i, is at least V_r + Σλ_i V_i of any policy. The same holds for any choice of
the q_i from the set; with all q_i equal it is the Lagrangian bound. In a small region of policies
V*_i approaches V_i, separation gains nature nothing, and the bound approaches the truth. The space
of policies is therefore divided, one probability of one row at a time, and the region with the
largest bound is divided next. Regions are closed if a constraint cannot be met in them, or if their
bound is close to the incumbent.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from holdfast._support.compilation import compiled
from holdfast.model.table import Table
from holdfast.tabular.certificates.upper_bound import LagrangianBound
from holdfast.tabular.evaluation.values import (
    Factors,
    chain,
    factorise,
    mean_signal,
    occupancy,
    rounding,
    state_values,
    targets,
)

# Regions in one compiled call: enough to outweigh its overhead, few enough to stay close to best-first.
_AT_ONCE = 32
# Largest number of state–action pairs that are tried first, to learn where a division helps.
_TRIED = 256
# Limit on Newton steps, and the relative change at which they end. The value is raised to an upper bound
# wherever they end, so that neither affects its validity.
_MAX_ROUNDS, _SETTLED = 25, 1e-10
# Probabilities known to this width are not divided further.
_WIDTH = 1e-6
# Multipliers tried in a region besides its parent's: factors on each λ_i in turn, where a λ_i of zero
# counts as this share of its reach.
_FACTORS, _LEAST_MULTIPLIER = (0.0, 0.7, 1.4), 0.02
# Weight of the smaller gain in the score of a division, as usual for pseudo-costs in integer
# programming, and the small numbers that keep untried pairs and unvisited states from a score of
# zero.
_SMALLER_GAIN = 0.8
_LEAST_GAIN, _LEAST_TENSION, _LEAST_VISITS = 1e-9, 1e-3, 1e-4


class Region(NamedTuple):
    """The policies between two tables, with the quantities of their bound.

    Attributes:
        lower: least probability of each action, (S, A).
        upper: largest probability of each action, (S, A).
        multipliers: λ of the bound, (m,).
        values: V*_i, (m + 1, S).
        together: W, (S,).
        rows: best rows for each signal, then for all together, (m + 2, S, A).
        visits: discounted number of visits of each state while together, (S,).
    """

    lower: Any
    upper: Any
    multipliers: Any
    values: Any
    together: Any
    rows: Any
    visits: Any


class BranchAndBoundResult(NamedTuple):
    """The result of branch and bound.

    Attributes:
        value: upper bound on the worst-case reward of every feasible stationary policy.
        judged: number of regions for which a bound was computed.
    """

    value: float
    judged: int


@dataclasses.dataclass
class RegionSearch:
    """The model, the incumbent, and what divisions have gained so far."""

    table: Table
    incumbent: float
    reach: Float[np.ndarray, " m"]
    judged: int = 0
    closed: float = -np.inf  # the largest bound of a closed region

    def __post_init__(self) -> None:
        shape = (2, *self.table.probabilities.shape[:2])
        self.gains, self.tries = np.zeros(shape), np.zeros(shape)

    def judge(self, regions: list[Region], ceilings: list[float]) -> list[tuple[float, Region]]:
        """Return the bounds of regions, at most those of the regions they are parts of."""
        found: list[tuple[float, Region]] = []
        for start in range(0, len(regions), _AT_ONCE):
            some = regions[start : start + _AT_ONCE]
            padded = [*some, *[some[-1]] * (_AT_ONCE - len(some))]
            batch = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
            probes = jnp.asarray(self._probes(batch.multipliers))
            bounds, judged = jax.device_get(_judge(self.table, batch, probes))
            found += [
                (float(bounds[i]), jax.tree.map(lambda leaf, i=i: leaf[i], judged))
                for i in range(len(some))
            ]
        self.judged += len(regions)
        # A NaN proves nothing, so that the ceiling stands.
        return [(b if b < c else c, region) for (b, region), c in zip(found, ceilings, strict=True)]

    def _probes(self, multipliers: np.ndarray) -> Float[np.ndarray, "b probes m"]:
        base = np.maximum(multipliers, _LEAST_MULTIPLIER * self.reach)
        columns = np.arange(multipliers.shape[1])
        tried = [
            np.where(columns == i, factor * base, multipliers)
            for i, factor in itertools.product(columns, _FACTORS)
        ]
        return np.stack([multipliers, *tried], axis=1)

    def learn(
        self, bound: float, parts: list[float], region: Region, state: int, action: int
    ) -> None:
        """Record how much each side of a division lowered the bound, per divided width."""
        width = region.upper[state, action] - region.lower[state, action]
        for side, part in enumerate(parts):
            self.gains[side, state, action] += (bound - max(part, self.incumbent)) / width
            self.tries[side, state, action] += 1

    def choose(self, region: Region) -> tuple[int, int] | None:
        """Return the pair with the most promising division, or None if all widths are small."""
        width = region.upper - region.lower
        if width.max() <= _WIDTH:
            return None
        gains = self.gains / np.maximum(self.tries, 1)
        promise = _SMALLER_GAIN * gains.min(0) + (1 - _SMALLER_GAIN) * gains.max(0)
        promise = promise + _LEAST_GAIN * max(1.0, abs(self.incumbent))
        score = promise * width * (_LEAST_TENSION + _tension(region))
        return divmod(int(np.where(width > _WIDTH, score, -1.0).argmax()), width.shape[1])


def branch_and_bound(
    table: Table,
    known: LagrangianBound,
    incumbent: float,
    closing: float,
    nodes: float,
    seconds: float = np.inf,
) -> BranchAndBoundResult:
    """Return an upper bound on the reward of feasible policies, by dividing the space of policies.

    The search ends when the bound is at most `closing`, after `nodes` regions, or after `seconds`.

    Arguments:
        table: the model, without padding.
        known: the Lagrangian bound, whose multipliers are the first ones.
        incumbent: worst-case reward of a feasible policy.
        closing: bound at which to stop.
        nodes: largest number of regions, or inf.
        seconds: time after which to stop.
    """
    deadline = time.perf_counter() + seconds
    states, actions = table.probabilities.shape[:2]
    count = len(table.signals)
    everything = Region(
        lower=np.zeros((states, actions)),
        upper=np.ones((states, actions)),
        multipliers=np.asarray(known.multipliers, float),
        values=np.zeros((count, states)),
        together=np.zeros(states),
        rows=np.zeros((count + 1, states, actions)),
        visits=np.zeros(states),
    )
    search = RegionSearch(table, incumbent, np.asarray(known.reach))
    [(bound, region)] = search.judge([everything], [known.value])
    _try_everywhere(search, bound, region, nodes)
    # A heap of (−bound, number, region); the numbers are distinct, so that regions are not compared.
    queue = [(-bound, 0, region)]
    numbers = itertools.count(1)
    while (
        queue
        and -queue[0][0] > closing
        and search.judged < nodes
        and time.perf_counter() < deadline
    ):
        chosen: list[tuple[float, Region, tuple[int, int]]] = []
        while queue and len(chosen) < _AT_ONCE // 2 and -queue[0][0] > closing:
            rank, _, region = heapq.heappop(queue)
            pair = search.choose(region)
            if pair is None:
                search.closed = max(search.closed, -rank)
            else:
                chosen.append((-rank, region, pair))
        parts = [part for _, region, pair in chosen for part in _divide(region, *pair)]
        judged = search.judge(parts, [bound for bound, _, _ in chosen for _ in range(2)])
        for k, (parent, region, pair) in enumerate(chosen):
            both = judged[2 * k : 2 * k + 2]
            search.learn(parent, [bound for bound, _ in both], region, *pair)
            for bound, part in both:
                if bound > closing:
                    heapq.heappush(queue, (-bound, next(numbers), part))
                else:
                    search.closed = max(search.closed, bound)
    largest = -queue[0][0] if queue else -np.inf
    value = min(known.value, max(largest, search.closed, incumbent))
    return BranchAndBoundResult(value, search.judged)


def _try_everywhere(search: RegionSearch, bound: float, region: Region, nodes: float) -> None:
    """Divide the whole space once at each of the most promising pairs, to learn their gains."""
    tension = _tension(region)
    most = int(min(_TRIED, nodes // 8, tension.size))
    pairs = [divmod(int(i), tension.shape[1]) for i in np.argsort(-tension, axis=None)[:most]]
    parts = [part for pair in pairs for part in _divide(region, *pair)]
    judged = [b for b, _ in search.judge(parts, [bound] * len(parts))]
    for k, pair in enumerate(pairs):
        search.learn(bound, judged[2 * k : 2 * k + 2], region, *pair)


def _divide(region: Region, state: int, action: int) -> list[Region]:
    """Return the parts with the smaller and with the larger probabilities of an action in a state."""
    middle = (region.lower[state, action] + region.upper[state, action]) / 2
    parts = []
    for larger in (False, True):
        lower, upper = region.lower.copy(), region.upper.copy()
        (lower if larger else upper)[state, action] = middle
        low, high = lower[state].copy(), upper[state].copy()
        # The sum of one bounds each probability by the others.
        lower[state] = np.maximum(low, 1 - (high.sum() - high))
        upper[state] = np.minimum(high, 1 - (low.sum() - low))
        parts.append(region._replace(lower=lower, upper=upper))
    return parts


def _tension(region: Region) -> Float[np.ndarray, "S A"]:
    """Return how much the best rows of the signals differ, weighted by the visits of their states."""
    apart = np.abs(region.rows[:, None] - region.rows[None]).max((0, 1))
    return apart * (_LEAST_VISITS + np.maximum(region.visits, 0.0))[:, None]


@compiled
def _judge(
    table: Table, regions: Region, probes: Float[Array, "b probes m"]
) -> tuple[Float[Array, " b"], Region]:
    return lax.map(lambda each: _bound(table, *each), (regions, probes))


def _bound(
    table: Table, region: Region, probes: Float[Array, "probes m"]
) -> tuple[Float[Array, ""], Region]:
    """Return the smallest bound of the given multipliers, or −inf if a constraint cannot be met."""
    each = lax.map(
        lambda part: _alone(table, region, *part), (table.signals, jnp.asarray(region.values))
    )
    reachable = (each.values[1:] @ table.initial >= table.thresholds).all()
    found = lax.map(lambda lam: _together(table, region, each, lam), probes)
    best = found.bound.argmin()
    chosen = jax.tree.map(lambda leaf: leaf[best], found)
    judged = region._replace(
        multipliers=probes[best],
        values=each.values,
        together=chosen.values,
        rows=jnp.concatenate([each.rows, chosen.rows[None]]),
        visits=chosen.visits,
    )
    return jnp.where(reachable, chosen.bound, -jnp.inf), judged


class _Alone(NamedTuple):
    values: Float[Array, " S"]
    kernel: Float[Array, "S A K"]
    rows: Float[Array, "S A"]


def _alone(table: Table, region: Region, signal: Array, start: Array) -> _Alone:
    """Return an upper bound on V* of one signal in the region, nature's response, and the best rows."""

    def step(values: Array) -> tuple[Array, Array, Array]:
        response = table.uncertainty.respond(table.probabilities, targets(table, signal, values))
        rows = _best_rows(region, response.value)
        return (rows * response.value).sum(-1), rows, response.kernel

    def solve(rows: Array, kernel: Array) -> Array:
        return state_values(_factors(table, rows, kernel), mean_signal(signal, rows, kernel))

    values, rows, kernel = _settle(table, step, solve, start)
    return _Alone(values + rounding(table, signal, values), kernel, rows)


class _Together(NamedTuple):
    bound: Float[Array, ""]
    values: Float[Array, " S"]
    rows: Float[Array, "S A"]
    visits: Float[Array, " S"]


def _together(table: Table, region: Region, each: _Alone, multipliers: Array) -> _Together:
    """Return an upper bound on W for given multipliers, and the bound on the reward."""
    weights = jnp.r_[1.0, multipliers]
    discount, p = table.discount, table.probabilities
    joint = jnp.tensordot(weights, table.signals, axes=1)
    y = jax.vmap(lambda signal, values: targets(table, signal, values))(table.signals, each.values)
    separated = jnp.broadcast_to(table.following(weights @ each.values), p.shape)
    shares = jnp.asarray(_shares(len(weights)))

    def step(values: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        after = jnp.broadcast_to(table.following(values), p.shape)
        common = table.uncertainty.respond(p, joint + discount * after).kernel

        def played(share: Array) -> tuple[Array, Array, Array]:
            share = share[:, None, None, None]
            kernels = (1 - share) * common + share * each.kernel
            shared = kernels.min(0)
            fixed = jnp.tensordot(weights, (kernels * y).sum(-1), axes=1)
            fixed = fixed - discount * (shared * separated).sum(-1)
            return fixed + discount * (shared * after).sum(-1), fixed, shared

        worth, fixed, shared = jax.vmap(played)(shares)
        least = worth.argmin(0)
        worth, fixed = (jnp.take_along_axis(x, least[None], 0)[0] for x in (worth, fixed))
        shared = jnp.take_along_axis(shared, least[None, ..., None], 0)[0]
        rows = _best_rows(region, worth)
        return (rows * worth).sum(-1), rows, (fixed, shared)

    def solve(rows: Array, kernel: tuple[Array, Array]) -> Array:
        fixed, shared = kernel
        return state_values(_factors(table, rows, shared), (rows * fixed).sum(-1))

    values, rows, (_, shared) = _settle(table, step, solve, jnp.asarray(region.together))
    values = values + rounding(table, joint, values)
    bound = table.initial @ values - multipliers @ table.thresholds
    visits = occupancy(table, _factors(table, rows, shared)) / (1 - discount)
    return _Together(bound, values, rows, visits)


def _shares(count: int) -> Float[np.ndarray, "n signals"]:
    """Return mixtures of the common worst case with each copy's own: equal shares, or one copy alone."""
    alike = np.outer([0.0, 0.25, 0.5, 0.75, 1.0], np.ones(count))
    return np.concatenate([alike, np.eye(count), 0.5 * np.eye(count)])


def _settle(table, step, solve, start):  # type: ignore[no-untyped-def]
    """Return an upper bound on the fixed point of a max–min operator T, with rows and kernel.

    Newton steps take both sides' choices and solve for their value. They may cycle. Wherever they end,
    V + max(0, max(TV − V))/(1−γ) is an upper bound.
    """

    def body(state: tuple[Array, Array, Int[Array, ""]]) -> tuple[Array, Array, Array]:
        values, _, count = state
        swept, rows, kernel = step(values)
        change = jnp.abs(swept - values).max()
        settled = change <= _SETTLED * jnp.maximum(1.0, jnp.abs(values).max())
        return jnp.where(settled, values, solve(rows, kernel)), settled, count + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return ~state[1] & (state[2] < _MAX_ROUNDS)

    values, _, _ = lax.while_loop(unfinished, body, (start, jnp.array(False), jnp.array(0)))
    swept, rows, kernel = step(values)
    return values + jnp.maximum((swept - values).max(), 0.0) / (1 - table.discount), rows, kernel


def _best_rows(region: Region, worth: Float[Array, "S A"]) -> Float[Array, "S A"]:
    """Return the rows of the region with the largest Σ_a π(a)·worth, filled from the best action on."""
    order = jnp.argsort(-worth, axis=-1)
    lower = jnp.take_along_axis(jnp.asarray(region.lower), order, -1)
    room = jnp.take_along_axis(jnp.asarray(region.upper), order, -1) - lower
    before = jnp.cumsum(room, -1) - room
    left = 1 - lower.sum(-1, keepdims=True)
    filled = lower + jnp.clip(left - before, 0.0, room)
    return jnp.take_along_axis(filled, jnp.argsort(order, axis=-1), -1)


def _factors(table: Table, rows: Array, kernel: Array) -> Factors:
    return factorise(table, chain(table, rows, kernel))
