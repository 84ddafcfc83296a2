"""The padded arrays of a model, and the conversion of results back to the user's own layout."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from holdfast._support.precision import float64
from holdfast.model.checks import SMALLEST, normalised
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.kernel import Kernel, grouped_sum
from holdfast.uncertainty import UncertaintySet

# Lists of more states than this are evaluated by sweeps; up to it, dense factors are faster.
DENSE_STATES = 1024


class Table(eqx.Module):
    """The padded arrays of a model on the device, with every constraint as a utility.

    Padded states lead to themselves, pay nothing and are never reached. Padded actions are copies of
    the first one, and no policy takes them. Padded successors have probability zero.

    Attributes:
        probabilities: nominal kernel.
        successors: next state of every entry, or None for a dense kernel, whose entry k is state k.
        signals: reward, then utilities; J is K, or 1 if no signal depends on the next state.
        thresholds: least worst-case value of each utility.
        initial: initial distribution ρ.
        discount: γ.
        uncertainty: the uncertainty set, in the layout of the table.
    """

    probabilities: Float[Array, "S A K"]
    successors: Int[Array, "S A K"] | None
    signals: Float[Array, "n S A J"]
    thresholds: Float[Array, " m"]
    initial: Float[Array, " S"]
    discount: Float[Array, ""]
    uncertainty: UncertaintySet

    @property
    def states(self) -> int:
        """Number of states, padding included."""
        return self.probabilities.shape[0]

    @property
    def is_large(self) -> bool:
        """Whether the model is evaluated by sweeps over its successor lists."""
        return self.successors is not None and self.states > DENSE_STATES

    def following(self, values: Float[Array, " S *rest"]) -> Float[Array, "..."]:
        """Return a function of the next state, in a shape that broadcasts to the probabilities."""
        return values if self.successors is None else values[self.successors]

    def with_signals(self, signals: Float[Array, "n S A J"]) -> Table:
        """Return the table with other signals, and no thresholds."""
        return dataclasses.replace(self, signals=signals, thresholds=_no_thresholds())


@functools.cache
@float64
def _no_thresholds() -> Float[Array, " m"]:
    return jnp.zeros(0)


@dataclasses.dataclass(frozen=True, eq=False)
class TableLayout:
    """A model, its `Table`, and the correspondence between their entries.

    Attributes:
        model: the user's model.
        table: its padded arrays.
        place: for each entry of the user's kernel, its position in the table's row, or −1 if it was
            dropped; None for a dense table.
        share: for each entry of the user's kernel, its share of the probability at that position.
    """

    model: RobustCMDP
    table: Table
    place: Int[np.ndarray, "S A K"] | None
    share: Float[np.ndarray, "S A K"] | None

    def pad_policy(self, policy: Float[np.ndarray, "S A"]) -> Float[Array, "padded_S padded_A"]:
        """Return a policy with uniform rows in the padded states and no mass on the padded actions."""
        states, actions = policy.shape
        padded = np.zeros(self.table.probabilities.shape[:2])
        padded[:, :actions] = 1 / actions
        padded[:states, :actions] = policy
        return jnp.asarray(padded)

    def unpad_policy(self, policy: Array) -> Float[np.ndarray, "S A"]:
        """Return a policy of the table as a policy of the model."""
        rows = np.array(policy)[: self.model.states]
        rows[:, 0] += rows[:, self.model.actions :].sum(-1)
        rows = rows[:, : self.model.actions]
        return normalised(np.where(rows < SMALLEST, 0.0, rows))

    def unpad(self, array: Any) -> np.ndarray:
        """Return an array over states, or over states and actions, without the padding."""
        array = np.asarray(array)[: self.model.states]
        return array[:, : self.model.actions] if array.ndim > 1 else array

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the user's kernel layout, with any further axes, in the table's layout."""
        table_shape = self.table.probabilities.shape
        rows = np.zeros((*table_shape, *array.shape[3:]))
        own = _in_rows(self.place, array, table_shape[-1])
        rows[: self.model.states] = own[:, _padded_actions(self.model.actions, table_shape[1])]
        return rows

    def kernel(self, probabilities: Any) -> np.ndarray | Kernel:
        """Return a kernel of the table in the form of the user's own."""
        states = self.model.states
        rows = np.asarray(probabilities)[:states, : self.model.actions]
        if self.place is None:
            rows = rows[..., :states]
        else:
            kept = self.place >= 0
            taken = np.take_along_axis(rows, np.where(kept, self.place, 0), axis=-1)
            rows = np.where(kept, taken * self.share, 0.0)
        rows = normalised(rows)
        if not isinstance(self.model.transitions, Kernel):
            return rows
        if self.place is None:  # the set may reach any state, so the lists contain all of them
            return Kernel(np.broadcast_to(np.arange(states), rows.shape), rows)
        return Kernel(self.model.transitions.successors, rows)


def layout_of(model: RobustCMDP) -> TableLayout:
    """Return the layout of a model, which is made once and kept with the model."""
    cached = model.__dict__.get("_table_layout")
    if cached is None:
        cached = _lay_out(model)
        model.__dict__["_table_layout"] = cached
    return cached


def padded_size(n: int, least: int = 1) -> int:
    """Return a size rounded up, so that models of similar size share compiled programs.

    Sizes are powers of two up to 128, and multiples of 128 beyond, where a power of two would cost more
    time than the compilation it saves.
    """
    return max(least, 1 << (n - 1).bit_length()) if n <= 128 else -(-n // 128) * 128


# Models of up to this many entries (512 KiB) are padded to the same few shapes: computing on them takes
# less time than compiling for another shape.
_SMALL = 1 << 16
_LEAST_STATES, _LEAST_ACTIONS, _LEAST_SUCCESSORS = 64, 8, 4


def _padded_shape(states: int, actions: int, width: int, dense: bool) -> tuple[int, int, int]:
    padded_states = padded_size(states, _LEAST_STATES)
    padded_width = padded_states if dense else padded_size(width, _LEAST_SUCCESSORS)
    padded_actions = padded_size(actions, _LEAST_ACTIONS)
    if padded_states * padded_actions * padded_width > _SMALL:
        padded_actions = actions
    return padded_states, padded_actions, padded_width


def _padded_actions(actions: int, padded: int) -> Int[np.ndarray, " padded_A"]:
    """Return the action that each padded action is a copy of."""
    return np.r_[np.arange(actions), np.zeros(padded - actions, int)]


@float64
def _lay_out(model: RobustCMDP) -> TableLayout:
    uncertainty = cast(UncertaintySet, model.uncertainty)
    successors, probabilities, place, share = _rows(model)
    states, actions, width = probabilities.shape
    dense = successors is None
    shape = states, actions, width
    if uncertainty.fits_lists:  # other sets could move to the padded states
        shape = _padded_shape(states, actions, width, dense)
    copies = _padded_actions(actions, shape[1])
    extra = np.arange(states, shape[0])

    p = np.zeros(shape)
    p[:states, :, :width] = probabilities[:, copies]
    lists = None
    if dense:
        p[extra, :, extra] = 1.0
    else:
        p[extra, :, 0] = 1.0
        lists = np.zeros(shape, np.int32)
        lists[:states, :, :width] = successors[:, copies]
        lists[extra, :, 0] = extra[:, None]

    def pairs(array: np.ndarray) -> np.ndarray:
        laid_out = np.zeros(shape[:2])
        laid_out[:states] = np.broadcast_to(array, (states, actions))[:, copies]
        return laid_out

    def entries(array: np.ndarray) -> np.ndarray:
        if array.ndim == 0:
            array = np.broadcast_to(array, model.nominal.shape)
        laid_out = np.zeros(shape)
        laid_out[:states, :, :width] = _in_rows(place, array, width)[:, copies]
        return laid_out

    signals = [model.reward, *(c.utility for c in model.constraints)]
    if p.size > _SMALL and all(signal.ndim == 2 for signal in signals):
        stacked = np.zeros((len(signals), *shape[:2], 1))
        stacked[:, :states, :, 0] = np.stack(signals)[:, :, copies]
    else:
        stacked = np.zeros((len(signals), *shape))
        for i, signal in enumerate(signals):
            stacked[i] = entries(signal)
    initial = np.zeros(shape[0])
    initial[:states] = model.initial
    table = Table(
        probabilities=jnp.asarray(p),
        successors=None if lists is None else jnp.asarray(lists),
        signals=jnp.asarray(stacked),
        thresholds=jnp.asarray([c.utility_threshold for c in model.constraints], jnp.float64),
        initial=jnp.asarray(initial),
        discount=jnp.asarray(model.discount, jnp.float64),
        uncertainty=jax.tree.map(jnp.asarray, uncertainty.laid_out(pairs, entries)),
    )
    return TableLayout(model, jax.block_until_ready(table), place, share)


def _rows(model: RobustCMDP) -> tuple[Any, np.ndarray, Any, Any]:
    """Return successors (None if dense), probabilities, and place and share of the user's entries."""
    kernel, uncertainty = model.transitions, cast(UncertaintySet, model.uncertainty)
    if not uncertainty.fits_lists:
        return None, kernel.dense() if isinstance(kernel, Kernel) else kernel, None, None
    if isinstance(kernel, Kernel):
        successors, probabilities = kernel.successors, kernel.probabilities
    else:
        widest = int(uncertainty.reach(kernel).sum(-1).max())
        # A dense kernel of mostly zeros is stored as lists.
        if 2 * widest > padded_size(model.states, _LEAST_STATES):
            return None, kernel, None, None
        probabilities = kernel
        successors = np.broadcast_to(np.arange(model.states, dtype=np.int32), kernel.shape)
    signals = [model.reward, *(c.signal for c in model.constraints)]
    telling = [signal for signal in signals if signal.ndim == 3]
    if not uncertainty.merges:
        telling = [np.broadcast_to(np.arange(probabilities.shape[-1]), probabilities.shape)]
    return _compact(successors, probabilities, telling, uncertainty.reach(probabilities))


def _compact(
    successors: np.ndarray,
    probabilities: np.ndarray,
    signals: list[np.ndarray],
    reached: Bool[np.ndarray, "S A K"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return lists without unreachable entries; equal successors with equal signals are merged."""
    states, actions, width = probabilities.shape
    kept = np.flatnonzero(reached)
    row = kept // width
    keys = [successors.ravel()[kept], *(s.ravel()[kept] for s in signals)]
    order = np.lexsort([*reversed(keys), row])
    row, keys = row[order], [key[order] for key in keys]
    fresh_row = np.r_[True, row[1:] != row[:-1]]
    fresh = fresh_row.copy()
    for key in keys:
        fresh[1:] |= key[1:] != key[:-1]
    group = np.cumsum(fresh) - 1
    first_group_of_row = group[fresh_row]  # every row has mass, so no row is missing
    position = group - first_group_of_row[row]
    new_width = int(position.max()) + 1

    own = probabilities.ravel()[kept][order]
    size = states * actions * new_width
    merged = grouped_sum(row * new_width + position, own, size).reshape(-1, new_width)
    lists = np.zeros((states * actions, new_width), np.int32)
    lists[row, position] = keys[0]
    place = np.full(probabilities.size, -1)
    place[kept[order]] = position
    share = np.zeros(probabilities.size)
    whole = merged[row, position]
    share[kept[order]] = np.divide(own, whole, out=np.ones_like(whole), where=whole > 0)
    shape = (states, actions, new_width)
    return (
        lists.reshape(shape),
        merged.reshape(shape),
        place.reshape(probabilities.shape),
        share.reshape(probabilities.shape),
    )


def _in_rows(place: np.ndarray | None, array: np.ndarray, width: int) -> np.ndarray:
    """Return an array over the user's entries, or over (s, a), in the table's `width` entries."""
    if array.ndim == 2:
        return np.broadcast_to(array[..., None], (*array.shape, width))
    states, actions, entries, *rest = array.shape
    rows = np.zeros((states, actions, width, *rest))
    if place is None:
        rows[:, :, :entries] = array
        return rows
    s, a, k = np.nonzero(place >= 0)
    rows[s, a, place[s, a, k]] = array[s, a, k]
    return rows
