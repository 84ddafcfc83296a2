"""The best policy for a weighted sum of signals and nature's kernel against it, for a proof file.

Both act on the checker's states, which know the events of `reach` rules that have happened. The search
is nature's policy iteration (Hoffman and Karp 1966): the best values W under one kernel, then the worst
response to W in every row. W only falls. It runs in double precision, and proves nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from holdfast.model import Kernel, Reach
from holdfast.model.allowed import allowed_copies
from holdfast.model.boundaries import Boundaries
from holdfast.model.table import Table, TableLayout
from holdfast.tabular.certificates.checker import exact_model as rational
from holdfast.tabular.evaluation import backward
from holdfast.tabular.evaluation.worst_case import response_kernel

# Limits on the rounds of the two policy iterations, which end by themselves within about ten. With a
# horizon the outer one may need one round for each step.
_MAX_ROUNDS, _LEAST_NATURE_ROUNDS = 100, 100
# Changes of values below this, relative to the largest, are rounding.
_ROUNDING = 1e-13


class RowEntries(NamedTuple):
    """The entries of all rows, one after the other, with those of a signal.

    Attributes:
        state: the state of each entry's row.
        action: its action.
        place: its index in the row of the model file.
        to: the next state.
        paid: what the signal pays.
        factor: factor on the value of the next state.
    """

    state: Int[np.ndarray, " entries"]
    action: Int[np.ndarray, " entries"]
    place: Int[np.ndarray, " entries"]
    to: Int[np.ndarray, " entries"]
    paid: Float[np.ndarray, " entries"]
    factor: Float[np.ndarray, " entries"]

    @classmethod
    def of(cls, exact: rational.ExactModel, signal: rational.Payoff) -> RowEntries:
        """Return the entries of a model and a signal that does not end."""
        entries = [
            (s, a, place, to, float(c), float(row.discount))
            for s, rows in enumerate(exact.rows)
            for a, row in enumerate(rows)
            for place, to, c in zip(row.place, row.to, signal.paid[s][a], strict=True)
        ]
        return cls(*map(np.array, zip(*entries, strict=True)))


def best_values(
    entries: RowEntries, q: Float[np.ndarray, " entries"], values: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the largest values under one kernel, by policy iteration.

    Arguments:
        entries: the rows and the signal.
        q: the kernel.
        values: first guess.
    """
    states, actions = len(values), int(entries.action.max()) + 1
    pair = entries.state * actions + entries.action
    reward = np.bincount(pair, q * entries.paid, states * actions)
    flow = q * entries.factor, (pair, entries.to)
    chain = scipy.sparse.csr_array(flow, (states * actions, states))
    identity = scipy.sparse.eye_array(states)
    chosen = None
    for _ in range(_MAX_ROUNDS):
        found = (reward + chain @ values).reshape(states, actions)
        best = found.argmax(-1)
        # An action changes only if another one is better by more than rounding.
        if chosen is not None:
            rows = np.arange(states)
            gain = found[rows, best] - found[rows, chosen]
            best = np.where(gain > _ROUNDING * np.abs(found).max(), best, chosen)
            if (best == chosen).all():
                break
        chosen = best
        taken = np.arange(states) * actions + chosen
        system = scipy.sparse.csc_array(identity - chain[taken])
        values = scipy.sparse.linalg.splu(system).solve(reward[taken])
    return values


def optimum_and_kernel(
    layout: TableLayout,
    exact: rational.ExactModel,
    entries: RowEntries,
    weights: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n A K"]]:
    """Return the largest worst-case values of a weighted sum of signals, and nature's kernel.

    Arguments:
        layout: the model.
        exact: the same for the checker.
        entries: the rows of states that know the events, and the weighted sum.
        weights: weight of every signal of the table.
    """
    nature = _Nature.of(layout, exact, weights)
    count = len(nature.after) * len(exact.rows)
    nominal = [float(p) for rows in exact.rows for row in rows for p in row.p]
    values = best_values(entries, np.tile(nominal, len(nature.after)), np.zeros(count))
    for _ in range(max(_LEAST_NATURE_ROUNDS, layout.model.horizon or 1)):
        q = nature.kernel(values)
        taken = q[entries.state, entries.action, entries.place]
        following = best_values(entries, taken, values)
        if not (values - following).max() > _ROUNDING * np.abs(values).max():
            break
        values = following
    return values, q


class _Nature(NamedTuple):
    """What nature needs for a worst response on states that know the events.

    Attributes:
        layout: the model.
        signal: the weighted sum of the signals, without the rules.
        after: the set of events after each state, by the set before it, (F, S).
        gift: what the rules pay in each state, by the set of events before it, (F, S).
    """

    layout: TableLayout
    signal: Float[Array, "*H S A J"]
    after: Int[np.ndarray, "F S"]
    gift: Float[np.ndarray, "F S"]

    @classmethod
    def of(
        cls, layout: TableLayout, exact: rational.ExactModel, weights: Float[np.ndarray, " n"]
    ) -> _Nature:
        table, model = layout.table, layout.model
        states = range(model.states)
        events = [*dict.fromkeys(each.ends for each in exact.signals if each.ends)]
        bits = [sum((s in ends) << e for e, ends in enumerate(events)) for s in states]
        sets = np.arange(1 << len(events))
        gift = np.zeros((len(sets), model.states))
        for constraint, each, weight in zip(
            model.constraints, exact.signals[1:], weights[1:], strict=True
        ):
            if isinstance(constraint, Reach):
                is_open = (sets >> events.index(each.ends) & 1) == 0
                gift += weight * is_open[:, None] * constraint.pays
        signal = jnp.tensordot(jnp.asarray(weights), table.signals, axes=1)
        if table.horizon is not None and events:
            falling = table.discount ** jnp.arange(table.horizon)
            signal = falling.reshape(-1, 1, 1, 1) * signal
        return cls(layout, signal, sets[:, None] | np.array(bits), gift)

    def kernel(self, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n A K"]:
        """Return the worst responses to values, in the layout of the model file."""
        model, table = self.layout.model, self.layout.table
        steps, states = model.horizon or 1, np.arange(model.states)
        by_set = values.reshape(len(self.after), steps, model.states)
        found = []
        for after, gift in zip(self.after, self.gift, strict=True):
            entered = by_set[after, :, states].T + gift
            q = _response(table, self.signal, entered, gift, len(self.after))
            found.append(own_rows(self.layout, q))
        return np.concatenate(found)


def own_rows(layout: TableLayout, kernel: Float[Array, "rows A K"]) -> Float[np.ndarray, "n A K"]:
    """Return a kernel of the table in the layout of the model file, over the states of all steps.

    Actions that are not allowed have the rows of an allowed one.
    """
    own = layout.kernel(kernel)
    q = own.probabilities if isinstance(own, Kernel) else own
    states = np.arange(layout.model.states)[:, None]
    q = np.broadcast_to(q, (layout.model.horizon or 1, *q.shape[-3:]))
    q = q[:, states, allowed_copies(layout.model), :]
    return q.reshape(-1, *q.shape[2:])


def _response(
    table: Table, signal: Array, entered: np.ndarray, gift: np.ndarray, sets: int
) -> Float[Array, "rows A K"]:
    """Return the worst responses to the values of entering each state at each step, (H, S)."""
    nobody = jnp.zeros((table.rows, table.probabilities.shape[-2]))
    room = [(0, 0), (0, table.states - entered.shape[1])]
    padded = jnp.asarray(np.pad(entered, room)).ravel()
    if table.horizon is None:
        return response_kernel(table.with_signals(signal[None]), padded, nobody)
    boundaries = None
    if sets > 1:  # nothing is discounted, and the last step leads to what the rules pay
        boundaries = Boundaries(jnp.ones((1, table.states), bool), jnp.asarray(gift)[None])
    return backward.worst_kernel(table.with_signals(signal[None], boundaries), padded, nobody)
