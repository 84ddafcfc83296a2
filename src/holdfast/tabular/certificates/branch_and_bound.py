"""A tighter upper bound: branch and bound over the rows of policies.

The Lagrangian bound lets nature be one kernel for all signals, though each signal has a worst case of
its own. Here is more of the truth. Run a copy of the chain for every signal, all from the same start.
While the copies are together, in the same state, they take the same action, and nature moves each by a
kernel of its own; what these kernels have in common moves them together, the rest parts them. Once
parted, each copy goes on by itself: it takes the actions that are best for its own signal, and nature
answers with that signal's worst case; its value from then on is V*_i. A policy acts within these rules,
so with weights w = (1, λ) the best that can be had by them,

    W(s) = max_a min_{q_0,…,q_m} Σ_i w_i·q_i·y_i − γ Σ_{s'} min_i q_i(s')·(Σ_i w_i V*_i − W)(s'),

y_i = signal_i + γV*_i, is no less than V_r + Σλ_i V_i of any policy; and any choice of the q_i from the
set keeps it so. With all q_i equal this is the Lagrangian bound. In a small region of policies V*_i
comes near V_i, parting costs nature nothing, and the bound comes near the truth; so the policies are
divided, one probability of one row at a time, and the region with the largest bound is divided next.
Regions where a constraint is out of reach, or whose bound is no better than the policy at hand, are
closed.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from holdfast.model.table import Table
from holdfast.tabular.evaluation.values import rounding

# Regions that are judged in one call: enough to pay for it, few enough to stay near the best first.
_AT_ONCE = 32
# Pairs of a state and an action on which a first division is tried, to learn where divisions help.
_TRIED = 256
_MAX_ROUNDS = 25
_SETTLED = 1e-10
_WIDTH = 1e-6
# Multipliers that a region tries besides its parent's, as factors on each in turn.
_FACTORS = (0.0, 0.7, 1.4)


class Region(NamedTuple):
    """The policies between two tables, and what is known of them.

    Attributes:
        lower: (S, A), the least probability of each action.
        upper: (S, A), the largest.
        multipliers: (m,), λ of the bound.
        values: (m + 1, S), V*_i.
        together: (S,), W.
        rows: (m + 2, S, A), the rows that are best for each signal, then for all together.
        visits: (S,), how often each state is seen while together.
    """

    lower: Any
    upper: Any
    multipliers: Any
    values: Any
    together: Any
    rows: Any
    visits: Any


class Outcome(NamedTuple):
    """What branch and bound came to.

    Attributes:
        value: no feasible policy has a worst-case reward over this.
        judged: regions that a bound was computed for.
        open: regions that are left to divide.
    """

    value: float
    judged: int
    open: int


@dataclasses.dataclass
class _Search:
    table: Table
    incumbent: float
    unit: Float[np.ndarray, " m"]
    closing: float
    judged: int = 0
    closed: float = -np.inf  # the largest bound of a region that was closed

    def __post_init__(self) -> None:
        shape = (2, *self.table.probabilities.shape[:2])
        self.gains, self.tries = np.zeros(shape), np.zeros(shape)

    def judge(self, regions: list[Region], ceilings: list[float]) -> list[tuple[float, Region]]:
        """Bounds of regions, none above that of the region it is part of."""
        found: list[tuple[float, Region]] = []
        for start in range(0, len(regions), _AT_ONCE):
            some = regions[start : start + _AT_ONCE]
            padded = [*some, *[some[-1]] * (_AT_ONCE - len(some))]
            batch = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
            probes = self._probes(batch.multipliers)
            bounds, judged = jax.device_get(_judge(self.table, batch, jnp.asarray(probes)))
            found += [
                (float(bounds[i]), jax.tree.map(lambda leaf, i=i: leaf[i], judged))
                for i in range(len(some))
            ]
        self.judged += len(regions)
        return [(min(b, c), region) for (b, region), c in zip(found, ceilings, strict=True)]

    def _probes(self, multipliers: np.ndarray) -> Float[np.ndarray, "b probes m"]:
        base = np.maximum(multipliers, 0.02 * self.unit)
        probes = [multipliers]
        for i, factor in itertools.product(range(multipliers.shape[1]), _FACTORS):
            probes.append(
                np.where(np.arange(multipliers.shape[1]) == i, factor * base, multipliers)
            )
        return np.stack(probes, axis=1)

    def divide(self, region: Region, state: int, action: int) -> list[Region]:
        """The policies with the smaller probabilities of an action in a state, and with the larger."""
        middle = (region.lower[state, action] + region.upper[state, action]) / 2
        parts = []
        for larger in (False, True):
            lower, upper = region.lower.copy(), region.upper.copy()
            (lower if larger else upper)[state, action] = middle
            low, high = lower[state].copy(), upper[state].copy()
            # What the row's sum of one leaves to each.
            lower[state] = np.maximum(low, 1 - (high.sum() - high))
            upper[state] = np.minimum(high, 1 - (low.sum() - low))
            parts.append(region._replace(lower=lower, upper=upper))
        return parts

    def learn(
        self, bound: float, parts: list[float], region: Region, state: int, action: int
    ) -> None:
        """How much each side of a division lowered the bound, per width of what was divided."""
        width = region.upper[state, action] - region.lower[state, action]
        for side, part in enumerate(parts):
            self.gains[side, state, action] += (bound - max(part, self.incumbent)) / width
            self.tries[side, state, action] += 1

    def choose(self, region: Region) -> tuple[int, int] | None:
        """The pair whose division promises most; None where there is nothing left to divide."""
        width = region.upper - region.lower
        if width.max() <= _WIDTH:
            return None
        gains = self.gains / np.maximum(self.tries, 1)
        promise = 0.8 * gains.min(0) + 0.2 * gains.max(0) + 1e-9 * max(1.0, abs(self.incumbent))
        score = promise * width * (1e-3 + self.tension(region))
        return divmod(int(np.where(width > _WIDTH, score, -1.0).argmax()), width.shape[1])

    @staticmethod
    def tension(region: Region) -> Float[np.ndarray, "S A"]:
        """Where the signals would act differently, each alone or all together, in states that matter."""
        apart = np.abs(region.rows[:, None] - region.rows[None]).max((0, 1))
        return apart * (1e-4 + np.maximum(region.visits, 0.0))[:, None]


@dataclasses.dataclass(order=True)
class _Open:
    rank: float
    order: int
    region: Region = dataclasses.field(compare=False)


def branch_and_bound(
    table: Table,
    multipliers: Float[np.ndarray, " m"],
    unit: Float[np.ndarray, " m"],
    ceiling: float,
    incumbent: float,
    nodes: int,
    target: float,
) -> Outcome:
    """Divides the policies until the bound is close to the incumbent, or so many regions were judged.

    Arguments:
        table: the model, without padding.
        multipliers: λ to start from.
        unit: of λ.
        ceiling: an upper bound that is known already.
        incumbent: the worst-case reward of a feasible policy.
        nodes: regions to judge.
        target: the gap at which to stop, as a share of the bound.
    """
    states, actions = table.probabilities.shape[:2]
    count = len(table.signals)
    everything = Region(
        lower=np.zeros((states, actions)),
        upper=np.ones((states, actions)),
        multipliers=np.asarray(multipliers, float),
        values=np.zeros((count, states)),
        together=np.zeros(states),
        rows=np.zeros((count + 1, states, actions)),
        visits=np.zeros(states),
    )
    closing = incumbent + target * max(abs(incumbent), 1e-12)
    search = _Search(table, incumbent, np.asarray(unit), closing)
    [(bound, region)] = search.judge([everything], [ceiling])
    _try_everywhere(search, bound, region, nodes)
    queue = [_Open(-bound, 0, region)]
    orders = itertools.count(1)
    while queue and -queue[0].rank > closing and search.judged < nodes:
        chosen: list[tuple[_Open, tuple[int, int]]] = []
        parts: list[Region] = []
        ceilings: list[float] = []
        while queue and len(parts) < _AT_ONCE and -queue[0].rank > closing:
            top = heapq.heappop(queue)
            pair = search.choose(top.region)
            if pair is None:
                search.closed = max(search.closed, -top.rank)
                continue
            chosen.append((top, pair))
            parts += search.divide(top.region, *pair)
            ceilings += [-top.rank] * 2
        judged = search.judge(parts, ceilings)
        for k, (top, pair) in enumerate(chosen):
            both = judged[2 * k : 2 * k + 2]
            search.learn(-top.rank, [b for b, _ in both], top.region, *pair)
            for bound, region in both:
                if bound > closing:
                    heapq.heappush(queue, _Open(-bound, next(orders), region))
                else:
                    search.closed = max(search.closed, bound)
    largest = -queue[0].rank if queue else -np.inf
    value = min(ceiling, max(largest, search.closed, incumbent))
    return Outcome(value, search.judged, len(queue))


def _try_everywhere(search: _Search, bound: float, region: Region, nodes: int) -> None:
    """One division of all policies for each of the most promising pairs, so that gains are known."""
    tension = search.tension(region)
    most = min(_TRIED, nodes // 8, tension.size)
    pairs = [divmod(int(i), tension.shape[1]) for i in np.argsort(-tension, axis=None)[:most]]
    parts = [part for pair in pairs for part in search.divide(region, *pair)]
    judged = [b for b, _ in search.judge(parts, [bound] * len(parts))]
    for k, pair in enumerate(pairs):
        search.learn(bound, judged[2 * k : 2 * k + 2], region, *pair)


@eqx.filter_jit
def _judge(
    table: Table, regions: Region, probes: Float[Array, "b probes m"]
) -> tuple[Float[Array, " b"], Region]:
    return lax.map(lambda each: _bound(table, *each), (regions, probes))


def _bound(
    table: Table, region: Region, probes: Float[Array, "probes m"]
) -> tuple[Float[Array, ""], Region]:
    """The smallest bound of the multipliers tried; −inf where a constraint is out of reach."""
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
    """V* of one signal within the region, from above; nature's response to it; the best rows."""

    def step(values: Array) -> tuple[Array, Array, Array]:
        y = jnp.broadcast_to(
            signal + table.discount * table.following(values), table.probabilities.shape
        )
        response = table.uncertainty.respond(table.probabilities, y)
        rows = _best_rows(region, response.value)
        return (rows * response.value).sum(-1), rows, response.kernel

    def solve(rows: Array, kernel: Array) -> Array:
        reward = (rows[..., None] * kernel * signal).sum((-2, -1))
        return _values(table, rows, kernel, reward)

    values, rows, kernel = _settle(table, step, solve, start)
    return _Alone(values + rounding(table, signal, values), kernel, rows)


class _Together(NamedTuple):
    bound: Float[Array, ""]
    values: Float[Array, " S"]
    rows: Float[Array, "S A"]
    visits: Float[Array, " S"]


def _together(table: Table, region: Region, each: _Alone, multipliers: Array) -> _Together:
    """W at given multipliers, from above, and the bound that it gives."""
    weights = jnp.r_[1.0, multipliers]
    discount, p = table.discount, table.probabilities
    joint = jnp.tensordot(weights, table.signals, axes=1)
    apart = weights @ each.values
    following = jax.vmap(table.following)(each.values)
    if table.successors is None:
        following = following[:, None, None]
    y = table.signals + discount * following
    lost = jnp.broadcast_to(table.following(apart), p.shape)
    shares = jnp.asarray(_shares(len(weights)))

    def step(values: Array) -> tuple[Array, Array, tuple[Array, Array]]:
        after = jnp.broadcast_to(table.following(values), p.shape)
        common = table.uncertainty.respond(p, joint + discount * after).kernel

        def played(share: Array) -> tuple[Array, Array, Array]:
            share = share[:, None, None, None]
            kernels = (1 - share) * common + share * each.kernel
            shared = kernels.min(0)
            fixed = jnp.tensordot(weights, (kernels * y).sum(-1), axes=1)
            fixed = fixed - discount * (shared * lost).sum(-1)
            return fixed + discount * (shared * after).sum(-1), fixed, shared

        worth, fixed, shared = jax.vmap(played)(shares)
        least = worth.argmin(0)
        worth, fixed = (jnp.take_along_axis(x, least[None], 0)[0] for x in (worth, fixed))
        shared = jnp.take_along_axis(shared, least[None, ..., None], 0)[0]
        rows = _best_rows(region, worth)
        return (rows * worth).sum(-1), rows, (fixed, shared)

    def solve(rows: Array, kernel: tuple[Array, Array]) -> Array:
        fixed, shared = kernel
        return _values(table, rows, shared, (rows * fixed).sum(-1))

    values, rows, (_, shared) = _settle(table, step, solve, jnp.asarray(region.together))
    values = values + rounding(table, joint, values)
    bound = table.initial @ values - multipliers @ table.thresholds
    chain = jnp.eye(table.states) - discount * _chain(table, rows, shared).T
    return _Together(bound, values, rows, jnp.linalg.solve(chain, table.initial))


def _shares(count: int) -> Float[np.ndarray, "n signals"]:
    """How far each copy's kernel goes from the common worst case to its own: alike, or one alone."""
    alike = np.outer([0.0, 0.25, 0.5, 0.75, 1.0], np.ones(count))
    return np.concatenate([alike, np.eye(count), 0.5 * np.eye(count)])


def _settle(table, step, solve, start):  # type: ignore[no-untyped-def]
    """A value from above of a max–min operator, by Newton steps: both sides' choices, then their value.

    Newton's steps may circle. Wherever they stop, V + max(0, max(TV − V))/(1−γ) is above the fixed
    point.
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
    """The rows within the region that make Σ_a π(a)·worth largest: the best actions are filled first."""
    order = jnp.argsort(-worth, axis=-1)
    lower = jnp.take_along_axis(jnp.asarray(region.lower), order, -1)
    room = jnp.take_along_axis(jnp.asarray(region.upper), order, -1) - lower
    before = jnp.cumsum(room, -1) - room
    left = 1 - lower.sum(-1, keepdims=True)
    filled = lower + jnp.clip(left - before, 0.0, room)
    return jnp.take_along_axis(filled, jnp.argsort(order, axis=-1), -1)


def _chain(table: Table, rows: Array, kernel: Array) -> Float[Array, "S S"]:
    flow = rows[..., None] * kernel
    if table.successors is None:
        return flow.sum(-2)
    states = jnp.arange(table.states)[:, None, None]
    return jnp.zeros((table.states, table.states)).at[states, table.successors].add(flow)


def _values(table: Table, rows: Array, kernel: Array, reward: Array) -> Float[Array, " S"]:
    return jnp.linalg.solve(
        jnp.eye(table.states) - table.discount * _chain(table, rows, kernel), reward
    )
