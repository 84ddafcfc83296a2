"""Transitions in a log: from rows that name the next state, or from consecutive rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

# Time steps that differ by less than this share are equal: rounding of times in seconds or days.
_SAME_STEP = 1e-6


class LogRows(NamedTuple):
    """Rows of a log as numbers, in the order of the file.

    Attributes:
        state: index of the state; −1 if it is missing.
        action: index of the action; −1 if it is missing.
        following: index of the next state, or None if consecutive rows are transitions.
        terminated: whether the row ends its episode in a state in which all signals are zero.
        episode: index of the episode.
        time: times, or None.
    """

    state: Int[np.ndarray, " rows"]
    action: Int[np.ndarray, " rows"]
    following: Int[np.ndarray, " rows"] | None
    terminated: Bool[np.ndarray, " rows"]
    episode: Int[np.ndarray, " rows"]
    time: Float[np.ndarray, " rows"] | None


class Transitions(NamedTuple):
    """The transitions of a log.

    Attributes:
        row: for each transition, the row of the log.
        following: for each transition, the index of the next state; −1 is the end.
        first: the state in which each episode starts; −1 if it is missing.
        left_out: numbers of rows that are no transition, by reason.
    """

    row: Int[np.ndarray, " n"]
    following: Int[np.ndarray, " n"]
    first: Int[np.ndarray, " episodes"]
    left_out: dict[str, int]


def find_transitions(rows: LogRows, step: float | None, episodes: tuple[str, ...]) -> Transitions:
    """Return the transitions of a log.

    Arguments:
        rows: the rows.
        step: time between two rows of a transition; default: the most common one.
        episodes: names of the episodes, for messages.

    Raises:
        ValueError: an episode has two rows at the same time.
    """
    time = np.arange(len(rows.state)) if rows.time is None else rows.time
    order = np.lexsort([time, rows.episode])
    episode = rows.episode[order]
    same = episode[1:] == episode[:-1]
    apart = np.diff(time[order])
    if rows.time is not None and (same & (apart == 0)).any():
        at = int(np.flatnonzero(same & (apart == 0))[0])
        a, b = order[at] + 1, order[at + 1] + 1
        whose = f" of {episodes[episode[at]]}" if len(episodes) > 1 else ""
        raise ValueError(
            f"time: rows {a} and {b}{whose} have the same time; expected one row a step"
        )
    starts = order[np.r_[True, ~same]]
    left_out: dict[str, int] = {}

    def keep(good: np.ndarray, chosen: np.ndarray, reason: str) -> np.ndarray:
        lost = int((chosen & ~good).sum())
        if lost:
            left_out[reason] = lost
        return chosen & good

    if rows.following is not None:
        following = np.where(rows.terminated, -1, rows.following)
        known = (rows.following >= 0) | rows.terminated
        chosen = np.ones(len(order), bool)
    else:
        following = np.full(len(order), -1)
        following[order[:-1]] = rows.state[order[1:]]
        followed = np.zeros(len(order), bool)
        followed[order[:-1]] = same
        chosen = keep(
            followed | rows.terminated, np.ones(len(order), bool), "last row of an episode"
        )
        if rows.time is not None:
            usual = np.zeros(len(order), bool)
            usual[order[:-1]] = np.abs(apart - _step(apart[same], step)) <= _SAME_STEP * np.abs(
                apart
            )
            chosen = keep(usual | rows.terminated, chosen, "gap in time before the next row")
        following = np.where(rows.terminated, -1, following)
        known = (following >= 0) | rows.terminated
    chosen = keep(rows.state >= 0, chosen, "no state")
    chosen = keep(rows.action >= 0, chosen, "no action")
    chosen = keep(known, chosen, "no next state")
    # In the order of time, in which the confidence limits of signals read the observations.
    found = np.flatnonzero(chosen) if rows.time is None else np.argsort(time, kind="stable")
    found = found[chosen[found]]
    return Transitions(found, following[found], rows.state[starts], left_out)


def _step(apart: np.ndarray, given: float | None) -> float:
    """Return the time between two rows: as given, or the most common one."""
    if given is not None:
        return float(given)
    if not len(apart):
        return 0.0
    values, counts = np.unique(np.round(apart, 9), return_counts=True)
    return float(values[counts.argmax()])
