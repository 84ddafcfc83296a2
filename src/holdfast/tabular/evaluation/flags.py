"""The largest value of a sum of signals, some of which are probabilities to reach states.

A `reach` rule ends when its event has happened, while the reward continues. A sum of the two is
therefore a function of the state and of flags that say which events have happened. With f' the flags
after state s,

    V_f(s) = pays_f(s) + V_f'(s) where an open rule stops in s,   max over a of min q·y elsewhere,

so that the flags need no states of their own, and work with every uncertainty set.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from holdfast.model.boundaries import Boundaries
from holdfast.model.table import Table
from holdfast.tabular.evaluation.backward import SignalTask, backward_induction
from holdfast.tabular.evaluation.optimum import Optimum, robust_optimum
from holdfast.tabular.evaluation.rounding import initial_error, initial_value
from holdfast.uncertainty.rows import EPS

# Largest number of different events in one model: 64 sets of flags, each with its own values.
_MOST_EVENTS = 6


class Flags(NamedTuple):
    """The sets of events that may have happened, from none, set 0, to all.

    Attributes:
        stops: whether an event that has not happened in set f happens or fails in state s.
        following: the set after state s.
        pays: boundary value of every signal in state s.
    """

    stops: Bool[np.ndarray, "F S"]
    following: Int[np.ndarray, "F S"]
    pays: Float[np.ndarray, "F n S"]


def flags_of(table: Table) -> Flags:
    """Return the flags of a table; a single set if no signal has boundary values.

    Raises:
        ValueError: the model has too many different events.
    """
    count = len(table.signals)
    if table.boundaries is None:
        nowhere = np.zeros((1, table.states), int)
        return Flags(nowhere.astype(bool), nowhere, np.zeros((1, count, table.states)))
    stops, pays = np.asarray(table.boundaries.stops), np.asarray(table.boundaries.pays)
    events = np.unique(stops[stops.any(-1)], axis=0)
    if len(events) > _MOST_EVENTS:
        raise ValueError(
            f"constraints: expected reach rules on at most {_MOST_EVENTS} different sets of states, "
            f"got {len(events)}"
        )
    bits = 1 << np.arange(len(events))
    sets = np.arange(1 << len(events))
    following = sets[:, None] | (bits[:, None] * events).sum(0)
    # The event of each signal; 0 for sums, whose boundary values are zero.
    own = (bits[:, None] * (stops[:, None] == events).all(-1).T).sum(0)
    is_open = (sets[:, None] & own) == 0
    return Flags(following != sets[:, None], following, is_open[..., None] * pays)


def sum_optimum(
    table: Table, weights: Float[np.ndarray, " n"], start: Optimum | None = None
) -> Optimum:
    """Return the largest worst-case value of Σ_i w_i·signal_i, to a certified upper bound.

    With `reach` rules among the signals policies and nature remember which events have happened. For
    policies that do not remember them the maximum is an upper bound, since it makes no difference for
    them what nature remembers. The policy returned is that of no event so far, and the lower bound is
    −inf.

    Arguments:
        table: the model.
        weights: the weight of every signal.
        start: the optimum for similar weights.
    """
    if table.boundaries is None:
        return robust_optimum(table, combined(table, weights), start)
    flags = flags_of(table)
    paid = np.einsum("n,fns->fs", weights, flags.pays)
    solve = _with_horizon if table.horizon is not None else _without_horizon
    return solve(table, weights, flags, paid)


def combined(table: Table, weights: Float[np.ndarray, " n"]) -> Float[Array, "*H S A J"]:
    """Return Σ_i w_i·signal_i."""
    return jnp.tensordot(jnp.asarray(weights), table.signals, axes=1)


def _with_horizon(table: Table, weights: np.ndarray, flags: Flags, paid: np.ndarray) -> Optimum:
    # Probabilities are not discounted. Discounts in the signals let both share one recursion.
    signal, horizon = combined(table, weights), table.horizon
    assert horizon is not None
    if float(table.discount) < 1:
        falling = (table.discount ** jnp.arange(horizon)).reshape(-1, 1, 1, 1)
        signal = falling * signal
    steps, state = np.arange(horizon + 1)[:, None], np.arange(table.states)
    values = np.zeros((len(paid), horizon + 1, table.states))
    errors = np.zeros_like(values)
    guess = jnp.zeros((table.rows, table.probabilities.shape[-2]))
    for f in reversed(range(len(paid))):
        after = flags.following[f]
        given = np.where(flags.stops[f], paid[f] + values[after, steps, state], 0.0)
        missing = errors[after, steps, state] * (1 + EPS) + EPS * np.abs(given)
        task = SignalTask(
            signal, jnp.asarray(flags.stops[f]), jnp.zeros(table.states), jnp.asarray(1.0)
        )
        found = backward_induction(table, task, guess, (jnp.asarray(given), jnp.asarray(missing)))
        values[f], errors[f] = np.asarray(found.values), np.asarray(found.errors)
        guess = found.multipliers
    first = jnp.asarray(values[0, 0])
    missing = (table.initial * errors[0, 0]).sum()
    upper = float(initial_value(table, first)) + float(initial_error(table, first, missing))
    return Optimum(found.policy, -np.inf, np.inf if np.isnan(upper) else upper, None)


def _without_horizon(table: Table, weights: np.ndarray, flags: Flags, paid: np.ndarray) -> Optimum:
    signal, state = combined(table, weights), np.arange(table.states)
    above = np.zeros(paid.shape)
    for f in reversed(range(len(paid))):
        stops = flags.stops[f]
        given = np.where(stops, paid[f] + above[flags.following[f], state], 0.0)
        given = np.where(stops, given + 4 * EPS * np.abs(given), 0.0)
        boundary = Boundaries(jnp.asarray(stops)[None], jnp.asarray(given)[None])
        found = robust_optimum(table, signal, boundaries=boundary)
        assert found.values is not None
        # The distance of the upper bound from the value bounds the excess in every state.
        excess = found.upper - float(found.values.value[0])
        above[f] = np.asarray(found.values.values[0]) + excess
    return found._replace(lower=-np.inf, values=None)
