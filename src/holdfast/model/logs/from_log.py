"""`from_log`: a model with names, an uncertainty set with a confidence, and signals with limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from holdfast._support.arguments import check_choice, check_number, meant
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint, with_signals
from holdfast.model.logs.encoding import Coded, coded, declared, floats, times, truths
from holdfast.model.logs.signals import SignalColumn, signal_limits
from holdfast.model.logs.source import MINARI, Columns, is_minari, read_columns
from holdfast.model.logs.summary import LogSummary, SignalSummary
from holdfast.model.logs.transitions import LogRows, Transitions, find_transitions
from holdfast.model.names import index_of, states_of
from holdfast.registry import UNCERTAINTY
from holdfast.uncertainty.counts import FromCounts
from holdfast.uncertainty.tail_bounds import Sampling

# The state after a terminated episode.
END = "(end)"
# Dense counts of at most this size: 0.5 GiB of float64.
_MOST_ENTRIES = 1 << 26

Names = str | Sequence[str]


def from_log(
    source: Any,
    *,
    state: Names | None = None,
    action: Names | None = None,
    next_state: Names | None = None,
    signals: Mapping[str, str] | None = None,
    reward: str | None = None,
    constraints: Sequence[Constraint] = (),
    episode: str | None = None,
    time: str | None = None,
    step: float | None = None,
    terminated: str | None = None,
    states: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    possible: Mapping[Any, Any] | None = None,
    bins: Mapping[str, Any] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    exact: Sequence[str] = (),
    initial: str | Mapping[str, float] | None = None,
    discount: float = 0.95,
    confidence: float = 0.95,
    sampling: Sampling = "adaptive",
    uncertainty: str | type[FromCounts] = "interval",
    **model: Any,
) -> RobustCMDP:
    """Return a model with names from a log of transitions, with a set that has the given confidence.

    A row is one step: the state, the action taken in it, and the signals that followed. The next state
    is in the same row (`next_state`), or it is the state of the next row of the episode.

    With the given confidence, the true kernel is in the set and the true mean of every signal is within
    its limits, all at once. The risk 1 − confidence is split: one half for the transitions, the other
    half equally among the signals that are not exact. Each part is divided over all (state, action)
    pairs. If all signals are exact, the transitions use the whole risk. The reward of the model is the
    lower limit of its signal; a constraint uses the limit on its bad side. For a pair without a visit
    every possible next state is allowed, and signals are at the bad end of their ranges.

    Arguments:
        source: a CSV or Parquet file, a pandas or Arrow table, a mapping from names to columns, or the
            id of a local Minari dataset with discrete spaces, whose columns need not be named.
        state: column of the state, or several columns.
        action: column of the action, or several.
        next_state: column of the next state, or as many as for the state.
        signals: columns of numbers by the name of the signal; "-column" changes the sign.
        reward: name of the signal to maximise; default: the first one. Without signals it is zero.
        constraints: such as `hf.at_most("downtime", 1.0)`, with the name of a signal.
        episode: column of the episode; default: the log is one episode.
        time: column of the time, numbers or ISO dates; default: the order of the rows. Without
            `next_state`, rows that are not one `step` apart are no transition.
        step: time between two rows; default: the most common one.
        terminated: column of yes and no: the episode ends after this row, in a state in which all
            signals are zero.
        states: all states there are; default: those in the log.
        actions: all actions there are; default: those in the log.
        possible: for states, or (state, action) pairs, the possible next states, known without the log.
            Fewer possible states make the set smaller.
        bins: for numeric columns of states or actions, a number of bins of equal width, or their inner
            limits.
        ranges: for signals, the smallest and largest possible value; default: those in the log.
        exact: signals that are a fixed function of state and action: the value seen is used.
        initial: a state, or probabilities of states; default: as episodes start, or uniform if the log
            is one episode.
        discount: see `RobustCMDP`.
        confidence: a number in (0, 1).
        sampling: "adaptive" if visits may depend on outcomes, as in any log of a running system, or
            "fixed"; see `from_counts`. The limits of signals always allow for adaptive sampling.
        uncertainty: "interval", "kl" or "total-variation".
        **model: further arguments of `RobustCMDP`, such as `labels`.

    Raises:
        ValueError: a column does not exist, a cell cannot be used, or two rows have the same time; the
            message names the argument and the row.

    Example:
        >>> import holdfast as hf
        >>> log = {"week": [1, 2, 3, 4, 5],
        ...        "condition": ["new", "new", "worn", "new", "worn"],
        ...        "decision": ["run", "run", "service", "run", "run"],
        ...        "profit": [5, 5, -1, 5, 3]}
        >>> model = hf.from_log(log, state="condition", action="decision", time="week",
        ...                     signals={"profit": "profit"}, ranges={"profit": (-2, 6)})
        >>> model.state_names, model.action_names, model.data.transitions
        (('new', 'worn'), ('run', 'service'), 4)
    """
    check_choice("sampling", sampling, get_args(Sampling))
    check_number("confidence", confidence, above=True)
    if not confidence < 1:
        raise ValueError(f"confidence: expected a number in (0, 1), got {confidence!r}")
    kind = _set_kind(uncertainty)
    names = dict(signals or {})
    _check_known("reward", [] if reward is None else [reward], names)
    _check_known("exact", exact, names)
    _check_known("ranges", ranges or {}, names)
    if is_minari(source):
        state, action = state or MINARI["state"], action or MINARI["action"]
        next_state = next_state or MINARI["next_state"]
        episode, terminated = episode or MINARI["episode"], terminated or MINARI["terminated"]
    asked = _Asked(
        _several("state", state), _several("action", action), _several_or_none(next_state)
    )
    columns = read_columns(source, _wanted(asked, names, (episode, time, terminated)))
    log = _read_log(columns, asked, bins or {}, (states, actions), (episode, time, terminated))
    found = find_transitions(log.rows, step, log.episodes)
    counted = _count(log, found, possible)

    risk = 1 - float(confidence)
    inexact = [name for name in names if name not in exact]
    kernel_risk = risk / 2 if inexact else risk
    signal_risk = risk / 2 / len(inexact) if inexact else 0.0
    transitions, ball = kind.from_counts(
        counted.counts, confidence=1 - kernel_risk, support=counted.support, sampling=sampling
    )
    limits = {}
    for name, column in names.items():
        given = SignalColumn(name, column, (ranges or {}).get(name), name in exact, signal_risk)
        values = floats(f"signals[{name!r}]", columns, column)[found.row]
        own = log.states, log.actions
        limits[name] = signal_limits(given, values, counted.pair, counted.ends, own)

    def bad_side(constraint: Constraint, name: str) -> Float[np.ndarray, "S A"]:
        _check_known("constraints", [name], names)
        return np.array(limits[name].lower if constraint.sign > 0 else limits[name].upper)

    chosen = reward or next(iter(names), None)
    start, origin = _initial(initial, log, found, episode is not None or is_minari(source))
    visits = counted.counts.sum(-1)
    pairs = np.argwhere((visits == 0) & ~counted.ends[:, None])
    return RobustCMDP(
        transitions=transitions,
        reward=np.zeros(visits.shape) if chosen is None else np.array(limits[chosen].lower),
        constraints=with_signals(constraints, bad_side),
        initial=start,
        discount=discount,
        uncertainty=ball,
        state_names=log.states,
        action_names=log.actions,
        data=LogSummary(
            source=columns.name,
            rows=columns.rows,
            transitions=len(found.row),
            episodes=len(found.first),
            left_out=found.left_out,
            visits=visits.astype(int).tolist(),
            never_visited=[(log.states[s], log.actions[a]) for s, a in pairs],
            signals=limits,
            confidence=float(confidence),
            kernel_risk=kernel_risk,
            signal_risk=signal_risk,
            sampling=sampling,
            uncertainty=kind.name,
            initial=origin,
            assumptions=_assumptions(found, limits, bins or {}, sampling, states is not None),
        ),
        **model,
    )


class _Asked(NamedTuple):
    """The columns of states, actions and next states."""

    state: list[str]
    action: list[str]
    following: list[str] | None


class _Log(NamedTuple):
    rows: LogRows
    states: tuple[str, ...]
    actions: tuple[str, ...]
    episodes: tuple[str, ...]


class _Counted(NamedTuple):
    """Counts of transitions, which of them are possible, and the states that nothing leaves."""

    pair: Int[np.ndarray, " n"]
    counts: Float[np.ndarray, "S A S"]
    support: Bool[np.ndarray, "S A S"] | None
    ends: Bool[np.ndarray, " S"]


def _several(argument: str, given: Any) -> list[str]:
    if given is None:
        raise ValueError(f"{argument}: expected the name of a column, got None")
    return [given] if isinstance(given, str) else list(given)


def _several_or_none(given: Any) -> list[str] | None:
    return None if given is None else _several("next_state", given)


def _check_known(argument: str, given: Any, names: Mapping[str, Any]) -> None:
    for name in given:
        if name not in names:
            raise ValueError(f"{argument}: there is no signal {name!r}{meant(str(name), names)}")


def _set_kind(given: str | type[FromCounts]) -> type[FromCounts]:
    kind = UNCERTAINTY.find(given) if isinstance(given, str) else given
    if not (isinstance(kind, type) and issubclass(kind, FromCounts)):
        raise ValueError(
            "uncertainty: expected a set that can be made from counts (interval, kl, total-variation), "
            f"got {given!r}"
        )
    return kind


def _wanted(
    asked: _Asked,
    signals: Mapping[str, str],
    others: tuple[str | None, str | None, str | None],
) -> dict[str, str]:
    """Return the argument that asks for each column."""
    if asked.following is not None and len(asked.following) != len(asked.state):
        raise ValueError(
            f"next_state: expected as many columns as for the state, {len(asked.state)}, "
            f"got {len(asked.following)}"
        )
    wanted = dict.fromkeys(asked.state, "state") | dict.fromkeys(asked.action, "action")
    wanted |= dict.fromkeys(asked.following or [], "next_state")
    for argument, column in zip(("episode", "time", "terminated"), others, strict=True):
        if column is not None:
            wanted[column] = argument
    for name, column in signals.items():
        if not isinstance(column, str) or not column:
            raise ValueError(f"signals[{name!r}]: expected the name of a column, got {column!r}")
        wanted.setdefault(column.removeprefix("-"), f"signals[{name!r}]")
    return wanted


def _read_log(
    columns: Columns,
    asked: _Asked,
    bins: Mapping[str, Any],
    known: tuple[Sequence[str] | None, Sequence[str] | None],
    others: tuple[str | None, str | None, str | None],
) -> _Log:
    for name in bins:
        if name not in (*asked.state, *asked.action):
            raise ValueError(
                f"bins: {name!r} is no column of the state or the action"
                f"{meant(name, [*asked.state, *asked.action])}"
            )
    rows = columns.rows
    episode, time, terminated = others

    def binned(names: list[str]) -> list[tuple[str, Any] | None]:
        return [(name, bins[name]) if name in bins else None for name in names]

    # States and next states share their names, so that they are read as one column.
    both = [
        [*columns.cells[name], *(columns.cells[asked.following[i]] if asked.following else ())]
        for i, name in enumerate(asked.state)
    ]
    every = declared("states", coded(both, binned(asked.state)), known[0])
    action = coded([columns.cells[name] for name in asked.action], binned(asked.action))
    action = declared("actions", action, known[1])
    for argument, found in (("state", every), ("action", action)):
        if not found.names:
            raise ValueError(f"{argument}: every cell of {columns.name} is missing")
    ended = np.zeros(rows, bool)
    if terminated is not None:
        ended = truths("terminated", columns, terminated)
    one = Coded(np.zeros(rows, int), ("the log",))
    groups = one if episode is None else coded([columns.cells[episode]], [None])
    if (groups.codes < 0).any():
        row = int(np.argmax(groups.codes < 0)) + 1
        raise ValueError(f"episode: row {row} of {episode!r} has no value")
    read = LogRows(
        state=every.codes[:rows],
        action=action.codes,
        following=every.codes[rows:] if asked.following else None,
        terminated=ended,
        episode=groups.codes,
        time=None if time is None else times(columns, time),
    )
    names = (*every.names, END) if ended.any() else every.names
    return _Log(read, names, action.names, groups.names)


def _count(log: _Log, found: Transitions, possible: Mapping[Any, Any] | None) -> _Counted:
    states, actions = len(log.states), len(log.actions)
    if states**2 * actions > _MOST_ENTRIES:
        raise ValueError(
            f"state: {states:,} states and {actions:,} actions need {states**2 * actions:,} "
            f"probabilities, at most {_MOST_ENTRIES:,}; use fewer columns or wider bins"
        )
    if not len(found.row):
        reasons = ", ".join(f"{n} with {reason}" for reason, n in found.left_out.items())
        raise ValueError(f"log: no row is a transition ({reasons})")
    ends = np.array([name == END for name in log.states])
    pair = log.rows.state[found.row] * actions + log.rows.action[found.row]
    following = np.where(found.following < 0, states - 1, found.following)
    flat = np.bincount(pair * states + following, minlength=states * actions * states)
    counts = flat.reshape(states, actions, states).astype(float)
    support = None
    if ends.any() or possible is not None:
        support = np.ones(counts.shape, bool)
        support[ends] = ends
        for key, value in (possible or {}).items():
            s, a = key if isinstance(key, tuple) else (key, None)
            row = index_of("possible", s, log.states, states)
            column = slice(None)
            if a is not None:
                column = index_of("possible", a, log.actions, actions, "action")  # type: ignore[assignment]
            mask = np.zeros(states, bool)
            mask[list(states_of(f"possible[{key!r}]", value, log.states, states))] = True
            support[row, column] = mask
        excluded = (counts > 0) & ~support
        if excluded.any():
            s, a, t = (int(i) for i in np.argwhere(excluded)[0])
            raise ValueError(
                f"possible: the log has {counts[s, a, t]:g} transitions from {log.states[s]!r} with "
                f"{log.actions[a]!r} to {log.states[t]!r}, which is excluded"
            )
    return _Counted(pair, counts, support, ends)


def _initial(
    given: Any, log: _Log, found: Transitions, by_episode: bool
) -> tuple[Float[np.ndarray, " S"], str]:
    """Return the initial distribution, and where it comes from."""
    states = len(log.states)
    if given is not None:
        shares = given if isinstance(given, Mapping) else {given: 1.0}
        start = np.zeros(states)
        for state, share in shares.items():
            start[index_of("initial", state, log.states, states)] += share
        return start, "given"
    first = found.first[found.first >= 0]
    if by_episode and len(first):
        start = np.bincount(first, minlength=states) / len(first)
        return start, f"the first states of {len(first):,} episodes"
    live = np.array([name != END for name in log.states], float)
    return live / live.sum(), "uniform over the states"


def _assumptions(
    found: Transitions,
    signals: Mapping[str, SignalSummary],
    bins: Mapping[str, Any],
    sampling: str,
    declared_states: bool,
) -> list[str]:
    """Return the assumptions of the confidence statement, as sentences."""
    texts = ["the next state and the signals depend on the past only through state and action"]
    if not declared_states:
        texts.append("there are no states besides those in the log")
    if sampling == "fixed":
        texts.append("the numbers of visits do not depend on the outcomes")
    if any(reason.startswith(("no ", "gap")) for reason in found.left_out):
        texts.append("rows are not missing because of what happened in them")
    observed = [n for n, each in signals.items() if not (each.declared or each.exact)]
    if observed:
        texts.append(f"{', '.join(observed)} cannot leave the range seen in the log")
    counted = [name for name, given in bins.items() if np.ndim(given) == 0]
    if counted:
        texts.append(f"the bins of {', '.join(counted)} would be the same for other data")
    return texts
