"""Rows of a kernel as successor lists: without unreachable entries, and with equal ones merged."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Int

from holdfast._support.blocks import is_long, over_blocks
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.kernel import Kernel, grouped_sum
from holdfast.uncertainty import UncertaintySet

# Models of up to this many entries (512 KiB) are padded to the same few shapes: computing on them takes
# less time than compiling for another shape.
SMALL = 1 << 16
_LEAST_STATES, _LEAST_ACTIONS, _LEAST_SUCCESSORS = 64, 8, 4


def padded_size(n: int, least: int = 1) -> int:
    """Return a size rounded up, so that models of similar size share compiled programs.

    Sizes are powers of two up to 128, and multiples of 128 beyond, where a power of two would cost more
    time than the compilation it saves.
    """
    return max(least, 1 << (n - 1).bit_length()) if n <= 128 else -(-n // 128) * 128


def padded_shape(states: int, actions: int, width: int, dense: bool) -> tuple[int, int, int]:
    """Return the shape of a table's kernel after padding."""
    padded_states = padded_size(states, _LEAST_STATES)
    padded_width = padded_states if dense else padded_size(width, _LEAST_SUCCESSORS)
    padded_actions = padded_size(actions, _LEAST_ACTIONS)
    if padded_states * padded_actions * padded_width > SMALL:
        padded_actions = actions
    return padded_states, padded_actions, padded_width


def padded_actions(actions: int, padded: int) -> Int[np.ndarray, " padded_A"]:
    """Return the action that each padded action is a copy of."""
    return np.r_[np.arange(actions), np.zeros(padded - actions, int)]


def entries_of(model: RobustCMDP) -> tuple[np.ndarray | None, np.ndarray]:
    """Return successors, None for a dense kernel, and probabilities in a form that the set supports."""
    kernel, uncertainty = model.transitions, cast(UncertaintySet, model.uncertainty)
    if not isinstance(kernel, Kernel):
        return None, kernel
    if not uncertainty.fits_lists:
        return None, kernel.dense()
    return kernel.successors, kernel.probabilities


def compact_rows(
    successors: np.ndarray | None,
    probabilities: np.ndarray,
    uncertainty: UncertaintySet,
    telling: list[np.ndarray],
    states: int,
) -> tuple[Any, np.ndarray, Any, Any]:
    """Return successors (None if dense), probabilities, and place and share of the user's entries.

    Arguments:
        successors: next states, or None for a dense kernel.
        probabilities: probabilities of the rows.
        uncertainty: the set, in the layout of the rows.
        telling: signals that depend on the next state.
        states: number of states.
    """
    if not uncertainty.fits_lists:
        return None, probabilities, None, None
    if successors is None:
        widest = int(uncertainty.reach(probabilities).sum(-1).max())
        # A dense kernel of mostly zeros is stored as lists.
        if 2 * widest > padded_size(states, _LEAST_STATES):
            return None, probabilities, None, None
        successors = np.broadcast_to(np.arange(states, dtype=np.int32), probabilities.shape)
    if not uncertainty.merges:
        telling = [np.broadcast_to(np.arange(probabilities.shape[-1]), probabilities.shape)]
    reached = uncertainty.reach(probabilities)
    if is_long(probabilities.size) and probabilities.ndim == 3:
        return _compact_some(successors, probabilities, telling, reached)
    return _compact(successors, probabilities, telling, reached)


def _compact_some(
    successors: np.ndarray,
    probabilities: np.ndarray,
    signals: list[np.ndarray],
    reached: Bool[np.ndarray, "S A K"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the result of `_compact`, applied only to rows with entries to drop or to merge.

    The others keep their order, so that a large model is read once and not sorted.
    """
    shape, width = probabilities.shape, probabilities.shape[-1]
    lists, p, used = (array.reshape(-1, width) for array in (successors, probabilities, reached))
    unfit = np.empty(len(p), bool)

    def look(block: slice) -> None:
        here, found = lists[block], ~used[block].all(-1)
        for k in range(1, width):
            found |= (here[:, k:] == here[:, :-k]).any(-1)
        unfit[block] = found

    over_blocks(look, *p.shape)
    places = np.arange(width, dtype=np.int16)
    if not unfit.any():
        return (
            successors,
            probabilities,
            np.broadcast_to(places, shape),
            np.broadcast_to(1.0, shape),
        )
    rows = np.flatnonzero(unfit)
    some = [a.reshape(-1, width)[rows][:, None] for a in (successors, probabilities, *signals)]
    few, merged, place, share = _compact(some[0], some[1], some[2:], used[rows][:, None])
    new_width = merged.shape[-1] if unfit.all() else width
    kept = slice(0, merged.shape[-1])
    new_lists, new_p = np.zeros((len(p), new_width), np.int32), np.zeros((len(p), new_width))
    all_places, all_shares = np.empty(p.shape, np.int16), np.ones(p.shape)
    if new_width == width:
        new_lists[:], new_p[:] = lists, p
    all_places[:] = places
    new_lists[rows], new_p[rows] = 0, 0.0
    new_lists[rows, kept], new_p[rows, kept] = few[:, 0], merged[:, 0]
    all_places[rows], all_shares[rows] = place[:, 0], share[:, 0]
    table = (*shape[:2], new_width)
    return (
        new_lists.reshape(table),
        new_p.reshape(table),
        all_places.reshape(shape),
        all_shares.reshape(shape),
    )


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


def in_rows(place: np.ndarray | None, array: np.ndarray, width: int) -> np.ndarray:
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
