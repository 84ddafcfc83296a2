"""Rules on states and actions: the probability to reach some states, and the allowed actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from holdfast._support.arguments import check_probability, numbers_of
from holdfast.model.checks import frozen
from holdfast.model.constraints import Constraint
from holdfast.model.kernel import Kernel
from holdfast.model.names import index_of, state_label, states_of


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Reach(Constraint):
    """A bound on the probability to reach some states, made by `reach`.

    Its value is a boundary value: V = 1 on its states and 0 on those to avoid, at every step, and
    elsewhere the expectation of the next value. Its `signal` is zero in every step.

    Arguments:
        states: names or indices of the states to reach.
        avoid: names or indices of the states that end the attempt.
        target: indices of `states`, which the model sets.
        stopped: indices of `states` and `avoid`, which the model sets.
        within: the time allowed, in words, which the model sets.

    Example:
        >>> import holdfast as hf
        >>> print(hf.reach([2], at_most=0.05, avoid=[3]))
        reach [2] before [3] ≤ 5 %
    """

    states: tuple[int | str, ...] = ()
    avoid: tuple[int | str, ...] = ()
    target: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    within: str = ""

    @property
    def pays(self) -> Float[np.ndarray, " S"]:
        """The boundary value of the utility in every state, (S,); zero where there is none."""
        values = np.zeros(len(self.signal))
        values[[*self.target]] = self.sign
        return values

    @property
    def stops(self) -> Bool[np.ndarray, " S"]:
        """The states in which the value is a boundary value, (S,)."""
        return np.isin(np.arange(len(self.signal)), self.stopped)

    def number(self, value: float) -> str:
        """Return a probability in per cent."""
        return f"{100 * value:.4g} %"

    def in_words(self, worst: float, nominal: float, margin: float) -> str:
        """Return the rule and its values as a line of text."""
        del margin
        limit = "limit" if self.sense == "at_most" else "at least"
        return (
            f"{self.label}: at worst {self.number(worst)}, nominal {self.number(nominal)}, "
            f"{limit} {self.number(self.threshold)}"
        )

    @property
    def label(self) -> str:
        """The rule without its threshold: its name, or the event and the time it has."""
        before = f" before {_shown(self.avoid)}" if self.avoid else ""
        return self.name or f"reach {_shown(self.states)}{before}{self.within}"


def reach(
    states: Sequence[int | str],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    avoid: Sequence[int | str] = (),
    name: str | None = None,
) -> Constraint:
    """Return the rule that the probability to reach some states is at most or at least a number.

    With a horizon of H steps it is the probability to be in one of the states at some step 0 … H,
    whatever the discount: an initial state counts, and so does the state after the last action. With a
    discount and no horizon it is the probability of reaching them before a geometric stopping time,
    which ends the process after each step with probability 1 − γ.

    Arguments:
        states: names or indices of the states.
        at_most: largest accepted probability; either this or `at_least`.
        at_least: smallest accepted probability.
        avoid: names or indices of states that must not be entered before; an attempt ends there.
        name: label in tables and plots.

    Example:
        >>> import holdfast as hf
        >>> print(hf.reach(["broken"], at_most=0.05))
        reach broken ≤ 5 %
        >>> print(hf.reach(["goal"], at_least=0.9, avoid=["hole"]))
        reach goal before hole ≥ 90 %
    """
    if (at_most is None) == (at_least is None):
        raise ValueError("reach: expected either at_most or at_least, got both or neither")
    sense = "at_least" if at_most is None else "at_most"
    threshold = at_least if at_most is None else at_most
    check_probability(sense, threshold)
    listed = [_states("states", states), _states("avoid", avoid)]
    if not listed[0]:
        raise ValueError("states: expected at least one state, got none")
    return Reach(
        np.zeros(()),
        threshold,  # type: ignore[arg-type]
        sense,  # type: ignore[arg-type]
        name,
        states=listed[0],
        avoid=listed[1],
    )


def resolved(rule: Reach, model: Any, argument: str) -> Reach:
    """Return a rule with the indices of its states in a model, and the time it allows.

    Raises:
        ValueError: a state does not exist, or is both to be reached and to be avoided.
    """
    known = model.state_names, model.states, model.labels
    target = states_of(argument, rule.states, *known)
    avoided = states_of(argument, rule.avoid, *known) if rule.avoid else ()
    both = set(target) & set(avoided)
    if both:
        shown = state_label(model, min(both))
        raise ValueError(f"{argument}: {shown} is both to be reached and to be avoided")
    within = (
        f" before an end with probability {1 - model.discount:g} a step"
        if model.horizon is None
        else f" within {model.horizon} step{'s' if model.horizon > 1 else ''}"
    )
    return dataclasses.replace(
        rule,
        signal=frozen(np.zeros((model.states, model.actions))),
        target=target,
        stopped=tuple(sorted({*target, *avoided})),
        within=within,
    )


def allowed_actions(given: Any, model: Any) -> Bool[np.ndarray, "*H S A"] | None:
    """Return which actions a model allows in each state, or None if it allows all.

    Arguments:
        given: None, an (S, A) array of booleans, or a mapping from states to lists of actions. A state
            that is not mentioned allows every action. With a horizon also (H, S, A).
        model: the model.

    Raises:
        ValueError: a state or an action does not exist, or a state has no allowed action.
    """
    if given is None:
        return None
    shape = model.states, model.actions
    if isinstance(given, Mapping):
        mask = np.ones(shape, bool)
        for state, actions in given.items():
            row = index_of("allowed", state, model.state_names, model.states)
            listed = [actions] if isinstance(actions, str) else actions
            if not isinstance(listed, Iterable):
                raise ValueError(
                    f"allowed: expected a list of actions for state {state!r}, got {actions!r}"
                )
            mask[row] = False
            own = [
                index_of("allowed", action, model.action_names, model.actions, "action")
                for action in listed
            ]
            mask[row, own] = True
    else:
        mask = numbers_of("allowed", given, dtype=None)
        by_step = model.horizon is not None and mask.shape == (model.horizon, *shape)
        if mask.dtype != bool or not (by_step or mask.shape == shape):
            raise ValueError(
                f"allowed: expected booleans of shape {shape}, or a mapping from states to lists of "
                f"actions, got {mask.dtype} of shape {mask.shape}"
            )
        if by_step and isinstance(model.transitions, Kernel):
            raise ValueError(
                "allowed: an (H, S, A) array needs dense transitions; successor lists are shared by all "
                "steps"
            )
    empty = ~mask.any(-1)
    if empty.any():
        state = int(np.argwhere(empty)[0, -1])
        raise ValueError(f"allowed: {state_label(model, state)} has no allowed action")
    return None if mask.all() else frozen(mask)


def _states(argument: str, given: Any) -> tuple[int | str, ...]:
    listed = [given] if isinstance(given, (str, int, np.integer)) else given
    if not isinstance(listed, Iterable):
        raise ValueError(f"{argument}: expected a list of states, got {given!r}")
    return tuple(state if isinstance(state, str) else _whole(argument, state) for state in listed)


def _whole(argument: str, state: Any) -> int:
    if isinstance(state, (bool, np.bool_)) or not isinstance(state, (int, np.integer)):
        raise ValueError(f"{argument}: expected names or indices of states, got {state!r}")
    return int(state)


def _shown(states: tuple[int | str, ...]) -> str:
    if all(isinstance(state, str) for state in states):
        return " or ".join(map(str, states))
    return str([*states])
