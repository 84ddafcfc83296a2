"""Models from the transition tables of Gymnasium's toy-text environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from holdfast.model import Constraint, Kernel, RobustCMDP
from holdfast.uncertainty import Interval, UncertaintySet


def from_gymnasium(
    env: gymnasium.Env[Any, Any] | str,
    *,
    discount: float,
    initial: ArrayLike | None = None,
    constraints: Sequence[Constraint] = (),
    uncertainty: UncertaintySet | None = None,
) -> RobustCMDP:
    """Return the model of a toy-text environment such as FrozenLake, Taxi or CliffWalking.

    Such an environment has a table `env.unwrapped.P[s][a]`, a list of outcomes (probability, next state,
    reward, terminated). The outcomes become the model's successor lists, in the same order.

    An outcome marked terminated leads to an absorbing state without reward. If no unfinished episode can
    start in or enter a terminal state, that state itself becomes absorbing, so states keep the
    environment's indices. An episode that ends in any other state leads to one
    additional state, with index S. Constraints have no cost or utility in absorbing states, whatever
    their signals say there, and a radius given for each (s, a) is zero in the additional state.

    The table has no time limit, and neither has the model; the discount takes its place.

    Arguments:
        env: the environment, or its id.
        discount: discount in [0, 1).
        initial: initial distribution, (S,); by default the environment's `initial_state_distrib`.
        constraints: constraints from `at_least` and `at_most`. Signals are (S, A), or (S, A, K) with K
            the length of the longest list: entry k belongs to outcome k of `P[s][a]`. S is the number of
            the environment's states.
        uncertainty: uncertainty set; None for the nominal kernel only.

    Returns:
        A model with successor lists; shorter lists end with outcomes of probability zero. Its reward is
        (S, A) if no reward depends on the outcome, and (S, A, K) otherwise.

    Raises:
        ValueError: the environment has no table, or neither the environment nor the argument gives an
            initial distribution.

    Example:
        >>> import holdfast as hf
        >>> model = hf.from_gymnasium("FrozenLake-v1", discount=0.99, uncertainty=hf.KL(0.1))
        >>> model.states, model.actions
        (16, 4)

    Reference:
        Towers et al., Gymnasium: A Standard Interface for Reinforcement Learning Environments
        (2024).
    """
    if isinstance(env, str):
        env = gymnasium.make(env)
    name = env.spec.id if env.spec else type(env).__name__
    table = getattr(env.unwrapped, "P", None)
    if table is None:
        raise ValueError(f"env: {name} has no transition table P")
    if initial is None:
        initial = getattr(env.unwrapped, "initial_state_distrib", None)
    if initial is None:
        raise ValueError(f"initial: {name} has no initial_state_distrib; pass initial=")
    probabilities, successors, reward, terminated = np.moveaxis(_outcomes(name, table), -1, 0)
    kernel = Kernel(successors.astype(int), probabilities)
    endless = RobustCMDP(
        transitions=kernel,
        reward=reward,
        constraints=constraints,
        initial=np.asarray(initial),
        discount=discount,
        uncertainty=uncertainty,
    )
    return _with_endings(endless, kernel, terminated.astype(bool))


def _outcomes(name: str, table: Any) -> Float[np.ndarray, "S A K 4"]:
    states, actions = len(table), len(table[0])
    lists = [_outcome_list(name, table, s, a) for s, a in np.ndindex(states, actions)]
    longest = max(map(len, lists))
    filled = np.zeros((len(lists), longest, 4))
    for row, outcomes in zip(filled, lists, strict=True):
        row[: len(outcomes)] = outcomes
        # Padding repeats an outcome of the row, so it adds no successor and no reward.
        row[len(outcomes) :, 1:] = outcomes[0, 1:]
    return filled.reshape(states, actions, longest, 4)


def _outcome_list(name: str, table: Any, s: int, a: int) -> Float[np.ndarray, "K 4"]:
    try:
        if len(table[s]) != len(table[0]):
            raise ValueError(f"{len(table[s])} actions, but {len(table[0])} in state 0")
        outcomes = np.array(table[s][a], dtype=np.float64)
        if outcomes.ndim != 2 or outcomes.shape[1] != 4 or not len(outcomes):
            raise ValueError(f"got {table[s][a]!r}")
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"env: {name}: at (state {s}, action {a}) the table P has no list of "
            f"(probability, next state, reward, terminated): {error}"
        ) from error
    return outcomes


def _with_endings(
    model: RobustCMDP, kernel: Kernel, terminated: Bool[np.ndarray, "S A K"]
) -> RobustCMDP:
    """Return the model in which terminated outcomes lead to absorbing states without reward."""
    possible = kernel.probabilities > 0
    started_in = np.asarray(model.initial) > 0
    absorbing = _absorbing(
        kernel.successors, possible & terminated, possible & ~terminated, started_in
    )
    elsewhere = possible & terminated & ~absorbing[kernel.successors] & ~absorbing[:, None, None]
    extra = int(elsewhere.any())
    absorbing = np.append(absorbing, np.ones(extra, bool))
    successors = _padded(np.where(elsewhere, model.states, kernel.successors), extra)
    successors[absorbing] = np.flatnonzero(absorbing)[:, None, None]
    probabilities = _padded(kernel.probabilities, extra)
    probabilities[absorbing] = np.eye(1, probabilities.shape[-1])

    def silenced(signal: np.ndarray) -> np.ndarray:
        signal = _padded(signal, extra)
        signal[absorbing] = 0.0
        return signal

    uncertainty: Any = model.uncertainty
    if isinstance(uncertainty, Interval) and np.ndim(uncertainty.lower) + np.ndim(
        uncertainty.upper
    ):
        raise ValueError(
            "uncertainty: array bounds do not fit a table with additional absorbing states; make the "
            "model without them, then use model.replace(uncertainty=…)"
        )
    if np.ndim(uncertainty.radius):
        uncertainty = dataclasses.replace(uncertainty, radius=_padded(uncertainty.radius, extra))
    return model.replace(
        transitions=Kernel(successors, probabilities),
        reward=_without_outcomes(silenced(model.reward), probabilities),
        constraints=[
            dataclasses.replace(constraint, signal=silenced(constraint.signal))
            for constraint in model.constraints
        ],
        initial=_padded(np.asarray(model.initial), extra),
        uncertainty=uncertainty,
    )


def _absorbing(
    successors: Int[np.ndarray, "S A K"],
    ends: Bool[np.ndarray, "S A K"],
    goes_on: Bool[np.ndarray, "S A K"],
    started_in: Bool[np.ndarray, " S"],
) -> Bool[np.ndarray, " S"]:
    """Return the states in which episodes end and which no unfinished episode can enter."""
    absorbing = np.zeros(len(started_in), bool)
    absorbing[successors[ends]] = True
    absorbing &= ~started_in
    # Transitions out of an absorbing state do not count, so removing one state may remove others.
    while True:
        entered = np.zeros(len(started_in), bool)
        entered[successors[goes_on & ~absorbing[:, None, None]]] = True
        if not (absorbing & entered).any():
            return absorbing
        absorbing &= ~entered


def _padded(array: np.ndarray, extra: int) -> np.ndarray:
    return np.concatenate([array, np.zeros((extra, *array.shape[1:]), array.dtype)])


def _without_outcomes(
    reward: Float[np.ndarray, "S A K"], probabilities: Float[np.ndarray, "S A K"]
) -> Float[np.ndarray, "..."]:
    """Return the reward as (S, A) if it does not depend on the outcome, and as (S, A, K) otherwise."""
    highest = np.where(probabilities > 0, reward, -np.inf).max(-1)
    lowest = np.where(probabilities > 0, reward, np.inf).min(-1)
    return highest if (highest == lowest).all() else reward
