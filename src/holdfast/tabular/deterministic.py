"""Search for the best deterministic policy, starting at a stochastic one.

Constraints can make randomising pay: the best policy may mix two actions in a few states. People often
want one action for each state. The search starts at the most likely actions and at the best
deterministic policies of the single signals, changes one state at a time, and evaluates every candidate
exactly in the worst case. Small models are searched completely. With a horizon the steps are further
rows of a policy, and a row is changed at a time. Only allowed actions are tried.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast._support.precision import float64
from holdfast.model.table import TableLayout
from holdfast.tabular.evaluation.optimum import best_of
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import WorstCase, worst_case

# Models with at most this many deterministic policies are searched completely: about a second.
_MOST_TO_ENUMERATE = 256
# Candidates that one search evaluates at most: some seconds for a small model.
_MOST_CANDIDATES = 2000
# A change has to gain this much, relative to max(1, |reward|), or it is rounding.
_LEAST_GAIN = 1e-9

Actions = Int[np.ndarray, " rows"]


class Score(NamedTuple):
    """How good a candidate is; larger is better: first feasibility, then the reward.

    Attributes:
        shortfall: minus the sum of the violated margins, in the signals' own units; 0 if feasible.
        reward: worst-case reward.
    """

    shortfall: float
    reward: float

    def beats(self, other: Score) -> bool:
        """Whether this score is better by more than rounding."""
        scale = _LEAST_GAIN * max(1.0, abs(other.reward))
        if self.shortfall != other.shortfall:
            return self.shortfall > other.shortfall + (0.0 if self.shortfall == 0 else _LEAST_GAIN)
        return self.reward > other.reward + scale


class _Found(NamedTuple):
    actions: Actions
    score: Score
    values: PolicyValues


@float64
def best_deterministic(
    layout: TableLayout, policy: Float[np.ndarray, "*H S A"], method: WorstCase
) -> Float[np.ndarray, "*H S A"]:
    """Return the best deterministic policy of a small model, or a good one of a larger model.

    Arguments:
        layout: the model and its table.
        policy: the policy to start from.
        method: how worst cases are found.
    """
    shape, actions = policy.shape, policy.shape[-1]
    judged: dict[bytes, _Found] = {}

    def judge(candidate: Actions) -> _Found:
        key = candidate.tobytes()
        if key not in judged:
            rows = layout.pad_policy(np.eye(actions)[candidate].reshape(shape))
            values = dataclasses.replace(worst_case(layout.table, rows, method), kernel=None)
            judged[key] = _Found(candidate, _score(layout, values), values)
        return judged[key]

    allowed = _allowed(layout)
    # The most likely actions first: they win where the action does not matter.
    likely = np.where(allowed, policy.reshape(-1, actions), -1.0)
    if math.prod(map(int, allowed.sum(-1))) <= _MOST_TO_ENUMERATE:
        order = np.argsort(-likely, axis=-1, kind="stable")
        choices = [row[: allowed[i].sum()] for i, row in enumerate(order)]
        found = _best(judge(np.array(each)) for each in itertools.product(*choices))
    else:
        optima = [best_of(layout.table, i).policy for i in range(len(layout.table.signals))]
        starts = [policy, *map(layout.unpad_policy, optima)]
        found = _best(
            _climb(layout, judge(start.reshape(-1, actions).argmax(-1)), judge, lambda: len(judged))
            for start in starts
        )
    return np.eye(actions)[found.actions].reshape(shape)


def _allowed(layout: TableLayout) -> Bool[np.ndarray, "rows A"]:
    """Return which actions are allowed in every row of a policy."""
    model = layout.model
    shape = (model.horizon or 1, model.states, model.actions)
    mask = True if model.allowed is None else np.asarray(model.allowed)
    return np.broadcast_to(mask, shape).reshape(-1, model.actions)


def _best(candidates: Iterator[_Found]) -> _Found:
    best = next(candidates)
    for each in candidates:
        best = each if each.score.beats(best.score) else best
    return best


def _climb(
    layout: TableLayout,
    found: _Found,
    judge: Callable[[Actions], _Found],
    judged: Callable[[], int],
) -> _Found:
    """Change one row at a time while that helps; promising changes are tried first."""
    while judged() < _MOST_CANDIDATES:
        better = None
        for s, a in _changes(layout, found):
            candidate = found.actions.copy()
            candidate[s] = a
            result = judge(candidate)
            if result.score.beats(found.score):
                better = result
                break
            if judged() >= _MOST_CANDIDATES:
                break
        if better is None:
            break
        found = better
    return found


def _changes(layout: TableLayout, found: _Found) -> Iterator[tuple[int, int]]:
    """Yield (row, action) by their first-order gain, the largest first.

    d(s)·A(s, a) is the slope of a value in the direction of a change. While constraints are violated,
    the gain is that of the violated ones.
    """
    weight = np.zeros(len(found.values.value))
    weight[0] = 1.0
    if found.score.shortfall < 0:
        weight = np.r_[0.0, _margins(layout, found.values) < 0]
    allowed = _allowed(layout)
    advantages = np.stack([layout.unpad(a).reshape(allowed.shape) for a in found.values.advantages])
    occupancy = np.stack([layout.unpad(each).reshape(-1) for each in found.values.occupancy])
    gain = np.einsum("n,ns,nsa->sa", weight, occupancy, advantages)
    gain[~allowed] = -np.inf
    gain[np.arange(len(gain)), found.actions] = -np.inf
    for flat in np.argsort(-gain, axis=None, kind="stable"):
        s, a = np.unravel_index(flat, gain.shape)
        if gain[s, a] > -np.inf:
            yield int(s), int(a)


def _margins(layout: TableLayout, values: PolicyValues) -> Float[np.ndarray, " m"]:
    return np.asarray(values.value)[1:] - np.asarray(layout.table.thresholds)


def _score(layout: TableLayout, values: PolicyValues) -> Score:
    short = np.minimum(_margins(layout, values), 0.0).sum()
    return Score(float(short), float(values.value[0]))
