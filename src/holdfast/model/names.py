"""Names of states and actions, and sets of states by name.

A state is given by its name or by its index, an action likewise, everywhere. A string is always a name
and a number is always an index.
"""

from __future__ import annotations

import contextlib
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from holdfast._support.arguments import meant

if TYPE_CHECKING:
    from holdfast.model.cmdp import RobustCMDP

Kind = Literal["state", "action"]
PolicyLike: TypeAlias = ArrayLike | Mapping[Any, Any]


def check_names(argument: str, given: Any, count: int) -> tuple[str, ...] | None:
    """Return names as a tuple of distinct strings, or None if there are none.

    Raises:
        ValueError: the number of names is wrong, one is no string or is empty, or two are the same.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"{argument}: expected a sequence of names, got {given!r}")
    names = list(given)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{argument}: expected a string for every name, got {name!r}")
    found = tuple(map(str, names))
    if len(found) != count:
        raise ValueError(f"{argument}: expected {count} names, got {len(found)}")
    if len(set(found)) < count:
        twice = next(name for i, name in enumerate(found) if name in found[:i])
        raise ValueError(f"{argument}: {twice!r} is duplicated")
    return found


def index_of(
    argument: str, given: Any, names: Sequence[str] | None, count: int, kind: Kind = "state"
) -> int:
    """Return the index of a state or an action that is given by its name or its index.

    Arguments:
        argument: the argument's name, for error messages.
        given: a name or an index.
        names: all names, or None if there are none.
        count: number of states or actions.
        kind: "state" or "action".

    Raises:
        ValueError: there is no such name or index.

    Example:
        >>> index_of("policy", "worn", ["new", "worn"], 2), index_of("policy", 1, None, 2)
        (1, 1)
        >>> index_of("policy", "wron", ["new", "worn"], 2)
        Traceback (most recent call last):
        ...
        ValueError: policy: there is no state 'wron'; did you mean worn?
    """
    if isinstance(given, str):
        if names is None:
            raise ValueError(
                f"{argument}: the {kind}s have no names, so {given!r} cannot be found; give an index "
                f"or {kind}_names"
            )
        if given not in names:
            raise ValueError(f"{argument}: there is no {kind} {given!r}{meant(given, names)}")
        return names.index(given)
    if isinstance(given, bool | np.bool_) or not isinstance(given, numbers.Integral):
        raise ValueError(f"{argument}: expected the name or index of a {kind}, got {given!r}")
    if not 0 <= int(given) < count:
        raise ValueError(f"{argument}: there is no {kind} {given}; {kind}s are 0 to {count - 1}")
    return int(given)


def states_of(
    argument: str,
    given: Any,
    names: Sequence[str] | None,
    count: int,
    labels: Mapping[str, Sequence[int]] | None = None,
) -> tuple[int, ...]:
    """Return the sorted indices of a set of states.

    Arguments:
        argument: the argument's name, for error messages.
        given: a state (name or index), a label, or a collection of these; also S booleans.
        names: names of all states, or None.
        count: number of states.
        labels: named sets of states.

    Raises:
        ValueError: there is no such state or label, or the set is empty.

    Example:
        >>> states_of("reach", ["new", "bad"], ["new", "worn", "broken"], 3, {"bad": (1, 2)})
        (0, 1, 2)
    """
    known = dict(labels or {})
    array = None if isinstance(given, str | Mapping) else np.asarray(given)
    if array is not None and array.dtype == bool and array.shape == (count,):
        given = np.flatnonzero(array).tolist()
    members = [given] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]
    found: set[int] = set()
    for each in members:
        # A state takes precedence over a label of the same name.
        if isinstance(each, str) and each in known and each not in (names or ()):
            found |= set(known[each])
        elif isinstance(each, str) and (names or known) and each not in (names or ()):
            everything = [*(names or ()), *known]
            raise ValueError(f"{argument}: there is no state {each!r}{meant(each, everything)}")
        else:
            found.add(index_of(argument, each, names, count))
    if not found:
        raise ValueError(f"{argument}: expected at least one state, got {given!r}")
    return tuple(sorted(found))


def check_labels(
    given: Any, names: Sequence[str] | None, count: int
) -> dict[str, tuple[int, ...]] | None:
    """Return named sets of states with sorted indices; an empty set is kept.

    Raises:
        ValueError: it is no mapping, or a state does not exist.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"labels: expected a mapping from names to states, got {given!r}")
    return {
        name: states_of(f"labels[{name!r}]", states, names, count) if np.size(states) else ()
        for name, states in given.items()
    }


def without_names(argument: str, policy: Any, model: RobustCMDP) -> Any:
    """Return a policy that is given by names as an array; another one unchanged."""

    def action(given: Any) -> int:
        return index_of(argument, given, model.action_names, model.actions, "action")

    if isinstance(policy, Mapping):
        rows = np.zeros((model.states, model.actions))
        seen: set[int] = set()
        for state, choice in policy.items():
            s = index_of(argument, state, model.state_names, model.states)
            if s in seen:
                raise ValueError(f"{argument}: {state_label(model, s)} is duplicated")
            seen.add(s)
            shares = choice.items() if isinstance(choice, Mapping) else [(choice, 1.0)]
            for each, probability in shares:
                rows[s, action(each)] += probability
        missing = [state_label(model, s) for s in range(model.states) if s not in seen]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ValueError(f"{argument}: no action for {missing[0]}{more}")
        return rows
    if isinstance(policy, list | tuple) and policy and all(isinstance(a, str) for a in policy):
        return np.array([action(each) for each in policy])
    return policy


def state_label(model: RobustCMDP, state: int) -> str:
    """Return the name of a state, or "state 3" if it has none."""
    return model.state_names[state] if model.state_names else f"state {state}"


def action_label(model: RobustCMDP, action: int) -> str:
    """Return the name of an action, or "action 3" if it has none."""
    return model.action_names[action] if model.action_names else f"action {action}"


@contextlib.contextmanager
def named_places(states: Sequence[str] | None, actions: Sequence[str] | None) -> Iterator[None]:
    """Add names to the states and actions that a ValueError mentions by index.

    Example:
        >>> with named_places(["new", "worn"], ["run"]):
        ...     raise ValueError("reward: (state 1, action 0) is nan, not a finite number")
        Traceback (most recent call last):
        ...
        ValueError: reward: (state 1 'worn', action 0 'run') is nan, not a finite number
    """
    try:
        yield
    except ValueError as error:
        given = {"state": states, "action": actions}

        def named(match: re.Match[str]) -> str:
            names, index = given[match[1]], int(match[2])
            known = isinstance(names, Sequence) and index < len(names)
            return f"{match[0]} {names[index]!r}" if known else match[0]  # type: ignore[index]

        message = re.sub(r"\b(state|action) (\d+)\b", named, str(error))
        if message == str(error):
            raise
        raise ValueError(message) from error
