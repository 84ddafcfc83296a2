"""Models of other tools: choices and branches as flat lists, turned into a `RobustCMDP`.

UMB, DRN and PRISM files all list, for each state, its choices, and for each choice its branches: a next
state with a probability or an interval. States may have different numbers of choices. A `RobustCMDP` has
the same actions in every state; where a choice is missing, the action is not allowed, and its row is a
copy of the state's first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from holdfast._support.arguments import meant
from holdfast.model.checks import normalised
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint, with_signals
from holdfast.model.kernel import Kernel
from holdfast.uncertainty import Interval

# Files of other tools have no discount.
DEFAULT_DISCOUNT = 0.99
# Successor lists of at most this size: 2 GiB of float64.
_MOST_ENTRIES = 1 << 28
# Other tools write probabilities with as few as six digits. Rows that miss one by more are refused.
_WRITTEN_TOLERANCE = 1e-5


class ModelRules(NamedTuple):
    """Properties that files of other tools do not contain.

    Attributes:
        discount: discount of the model.
        reward: name of the reward structure to maximise; None for the first one.
        constraints: constraints, which may name reward structures.
        horizon: number of steps; None for no end.
    """

    discount: float = DEFAULT_DISCOUNT
    reward: str | None = None
    constraints: Sequence[Constraint] = ()
    horizon: int | None = None


class ExplicitModel(NamedTuple):
    """A model as flat lists.

    Attributes:
        states: number of states.
        choice_state: state of each choice, in increasing order.
        choice_name: name of the action of each choice; empty if it has none.
        branch_choice: choice of each branch, in increasing order.
        target: next state of each branch.
        lower: smallest probability of each branch.
        upper: largest probability of each branch.
        rewards: reward structures by name, a number for each branch.
        labels: named sets of states.
        initial: initial states.
    """

    states: int
    choice_state: Int[np.ndarray, " C"]
    choice_name: Sequence[str]
    branch_choice: Int[np.ndarray, " B"]
    target: Int[np.ndarray, " B"]
    lower: Float[np.ndarray, " B"]
    upper: Float[np.ndarray, " B"]
    rewards: Mapping[str, Float[np.ndarray, " B"]]
    labels: Mapping[str, Sequence[int]]
    initial: Sequence[int]


def to_model(found: ExplicitModel, rules: ModelRules) -> RobustCMDP:
    """Return an explicit model as a `RobustCMDP` of successor lists.

    Raises:
        ValueError: a probability is impossible, a row does not sum to one, or a reward does not exist.
    """
    found = _checked(_without_deadlocks(found))
    action, names = _actions(found)
    branches = np.bincount(found.branch_choice, minlength=len(found.choice_state))
    actions, width = int(action.max()) + 1, int(branches.max())
    if found.states * actions * width > _MOST_ENTRIES:
        raise ValueError(
            f"{found.states:,} states, {actions:,} actions and {width:,} successors are too many"
        )
    starts = np.cumsum(branches) - branches
    entry = np.arange(len(found.target)) - starts[found.branch_choice]
    place = found.choice_state[found.branch_choice], action[found.branch_choice], entry
    # The row of a missing choice has to be a distribution: a copy of the state's first one.
    first = np.zeros((found.states, actions), int)
    first[found.choice_state[::-1]] = action[::-1, None]
    taken = np.arange(actions) + 0 * first
    own = np.zeros((found.states, actions), bool)
    own[found.choice_state, action] = True
    taken = np.where(own, taken, first)[..., None]

    def rows(values: np.ndarray, dtype: type = float) -> np.ndarray:
        array: np.ndarray = np.zeros((found.states, actions, width), dtype)
        array[place] = values
        return np.take_along_axis(array, taken, axis=1)

    p = normalised(rows(_centre(found)))
    # Written with a few digits, a bound may miss its own row by rounding.
    lower, upper = np.minimum(rows(found.lower), p), np.maximum(rows(found.upper), p)
    rewards = {name: _signal(rows(each), upper > 0) for name, each in found.rewards.items()}
    if rules.reward is not None:
        _check_reward("reward", rules.reward, rewards)
    chosen = rules.reward or next(iter(rewards), None)
    initial = np.zeros(found.states)
    initial[list(found.initial) or slice(None)] = 1.0

    def by_name(_: Constraint, name: str) -> np.ndarray:
        _check_reward("constraints", name, rewards)
        return rewards[name]

    return RobustCMDP(
        transitions=Kernel(rows(found.target, int), p),
        reward=np.zeros((found.states, actions)) if chosen is None else rewards[chosen],
        constraints=with_signals(rules.constraints, by_name),
        initial=initial / initial.sum(),
        discount=rules.discount,
        horizon=rules.horizon,
        allowed=own,
        uncertainty=Interval(lower, upper) if (found.lower < found.upper).any() else None,
        action_names=names,
        labels=dict(found.labels) or None,
    )


def _check_reward(argument: str, name: str, rewards: Mapping[str, Any]) -> None:
    if name not in rewards:
        known = meant(name, rewards) if rewards else "; it has no rewards"
        raise ValueError(f"{argument}: the file has no reward {name!r}{known}")


def _without_deadlocks(found: ExplicitModel) -> ExplicitModel:
    """Return the model with a loop with zero reward and cost in every state without a choice."""
    if not found.states:
        raise ValueError("it has no states")
    missing = np.setdiff1d(np.arange(found.states), found.choice_state)
    empty = np.setdiff1d(np.arange(len(found.choice_state)), found.branch_choice)
    if len(empty):
        raise ValueError(f"state {found.choice_state[empty[0]]} has a choice without a branch")
    if not len(missing):
        return found
    # Choices are numbered by state, so that the new ones move the old ones.
    state = np.r_[found.choice_state, missing]
    order = np.argsort(state, kind="stable")
    rank = np.empty(len(order), int)
    rank[order] = np.arange(len(order))
    choice = rank[np.r_[found.branch_choice, len(found.choice_state) + np.arange(len(missing))]]
    by_choice = np.argsort(choice, kind="stable")
    names = [*found.choice_name, *[""] * len(missing)]
    ones, zeros = np.ones(len(missing)), np.zeros(len(missing))
    return found._replace(
        choice_state=state[order],
        choice_name=[names[i] for i in order],
        branch_choice=choice[by_choice],
        target=np.r_[found.target, missing][by_choice],
        lower=np.r_[found.lower, ones][by_choice],
        upper=np.r_[found.upper, ones][by_choice],
        rewards={name: np.r_[each, zeros][by_choice] for name, each in found.rewards.items()},
    )


def _checked(found: ExplicitModel) -> ExplicitModel:
    """Return the model if every probability and every state is possible."""
    state = found.choice_state[found.branch_choice]
    outside = (found.target < 0) | (found.target >= found.states)
    if outside.any():
        b = int(np.argmax(outside))
        raise ValueError(f"state {state[b]} leads to state {found.target[b]}, which does not exist")
    wrong = ~((found.lower >= 0) & (found.lower <= found.upper) & (found.upper <= 1 + 1e-12))
    if wrong.any():
        b = int(np.argmax(wrong))
        shown = f"[{found.lower[b]:g}, {found.upper[b]:g}]"
        raise ValueError(f"state {state[b]} has the probability {shown}, outside [0, 1]")
    least, most = (
        np.bincount(found.branch_choice, weights=each) for each in (found.lower, found.upper)
    )
    off = (least > 1 + _WRITTEN_TOLERANCE) | (most < 1 - _WRITTEN_TOLERANCE)
    if off.any():
        c = int(np.argmax(off))
        total = f"{least[c]:.9g}" if least[c] == most[c] else f"[{least[c]:g}, {most[c]:g}]"
        raise ValueError(f"a choice of state {found.choice_state[c]} sums to {total}, not 1")
    for name, states in {**found.labels, "init": found.initial}.items():
        if any(not 0 <= s < found.states for s in states):
            raise ValueError(f"the label {name!r} has a state that does not exist")
    if any(not np.isfinite(each).all() for each in found.rewards.values()):
        raise ValueError("a reward is not a finite number")
    return found._replace(upper=np.minimum(found.upper, 1.0))


def _centre(found: ExplicitModel) -> Float[np.ndarray, " B"]:
    """Return probabilities between the bounds that sum to one, each at the same share of its interval.

    Bounds that meet are probabilities, written with a few digits; they are divided by their sum.
    """
    least, width = (
        np.bincount(found.branch_choice, weights=each)
        for each in (found.lower, found.upper - found.lower)
    )
    share = np.clip((1 - least) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    share = np.where(width > 0, share, 0.0)[found.branch_choice]
    p = found.lower + share * (found.upper - found.lower)
    return p / np.bincount(found.branch_choice, weights=p)[found.branch_choice]


def _actions(found: ExplicitModel) -> tuple[Int[np.ndarray, " C"], tuple[str, ...] | None]:
    """Return the action of each choice, and the names of the actions.

    Actions are named only if every choice has a name, and no state has two choices of one name.
    """
    counts = np.bincount(found.choice_state, minlength=found.states)
    starts = np.cumsum(counts) - counts
    index = np.arange(len(found.choice_state)) - starts[found.choice_state]
    # Deadlocks have no name. They have one choice, whose action does not matter.
    names = [*dict.fromkeys(name for name in found.choice_name if name)]
    alone = counts[found.choice_state] == 1
    if not names or any(not n and not a for n, a in zip(found.choice_name, alone, strict=True)):
        return index, None
    place = {name: i for i, name in enumerate(names)}
    action = np.array([place.get(name, 0) for name in found.choice_name])
    if len(np.unique(found.choice_state * len(names) + action)) < len(action):
        return index, None
    return action, tuple(names)


def _signal(values: Float[np.ndarray, "S A K"], used: np.ndarray) -> Float[np.ndarray, "..."]:
    """Return a signal as (S, A) if it does not depend on the next state."""
    first = values[..., :1]
    return values[..., 0] if (np.where(used, values, first) == first).all() else values
