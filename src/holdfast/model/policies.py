"""Policies of a model: in any form, one table or one for each step, on the allowed actions."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast.model.checks import check_policy, normalised
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.names import PolicyLike, named_places, state_label, without_names


def policy_of(
    model: RobustCMDP, policy: PolicyLike, argument: str = "policy"
) -> Float[np.ndarray, "*H S A"]:
    """Return a policy of a model as an (S, A) array, or (H, S, A) if the model has a horizon.

    Arguments:
        model: the model.
        policy: (S, A) probabilities, (S,) action indices, the names of S actions, or a mapping from
            every state to an action or to a mapping from actions to probabilities. With a horizon also
            (H, S, A) or (H, S); a policy without an axis of steps is used in all of them.
        argument: the argument's name, for error messages.

    Raises:
        ValueError: the shape is wrong, a row is not a distribution, a state or action does not exist, or
            an action is not allowed.

    Example:
        >>> import holdfast as hf
        >>> model = hf.RobustCMDP(
        ...     transitions=np.full((2, 2, 2), 0.5), reward=np.zeros((2, 2)), discount=0.9,
        ...     state_names=["new", "worn"], action_names=["run", "service"])
        >>> print(policy_of(model, {"new": "run", "worn": {"run": 0.2, "service": 0.8}}))
        [[1.  0. ]
         [0.2 0.8]]
        >>> policy_of(model.replace(horizon=3), [0, 1]).shape
        (3, 2, 2)
    """
    with named_places(model.state_names, model.action_names):
        given = without_names(argument, policy, model)
        return _allowed(argument, _by_step(argument, given, model), model)


def _by_step(argument: str, policy: ArrayLike, model: RobustCMDP) -> np.ndarray:
    shape, steps = (model.states, model.actions), model.horizon
    if steps is None:
        return check_policy(argument, policy, *shape)
    if np.shape(policy)[:1] == (steps,) and np.ndim(policy) > 1:
        by_step = np.shape(policy) == (steps, *shape)
        # Integers (H, S) are actions of each step; where H = S and S = A they may be a table instead.
        by_step |= np.shape(policy) == (steps, model.states) != shape
        if by_step:
            return _checked_steps(argument, np.asarray(policy), *shape)
    if np.ndim(policy) == 3:
        raise ValueError(
            f"{argument}: expected shape ({steps}, {shape[0]}, {shape[1]}), got {np.shape(policy)}"
        )
    rows = check_policy(argument, policy, *shape)
    return np.broadcast_to(rows, (steps, *rows.shape)).copy()


def _checked_steps(
    argument: str, policy: np.ndarray, states: int, actions: int
) -> Float[np.ndarray, "H S A"]:
    rows = policy.reshape(-1, *policy.shape[2:])
    try:
        checked = check_policy(argument, rows, len(rows), actions)
    except ValueError:  # one step after the other, to name the step
        for t, step in enumerate(policy):
            check_policy(f"{argument}[{t}]", step, states, actions)
        raise
    return checked.reshape(-1, states, actions)


def uniform_policy(model: RobustCMDP) -> Float[np.ndarray, "*H S A"]:
    """Return the policy that takes every allowed action with the same probability."""
    allowed = np.ones((model.states, model.actions)) if model.allowed is None else model.allowed
    rows = np.array(allowed, float)
    rows /= rows.sum(-1, keepdims=True)
    steps = () if model.horizon is None else (model.horizon,)
    return np.broadcast_to(rows, (*steps, model.states, model.actions))


def random_policy(model: RobustCMDP, seed: int) -> Float[np.ndarray, "*H S A"]:
    """Return a policy with Dirichlet(1) rows over the allowed actions."""
    steps = () if model.horizon is None else (model.horizon,)
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.ones(model.actions), size=(*steps, model.states))
    if model.allowed is not None:
        rows = np.where(np.asarray(model.allowed), rows, 0.0)
        rows = rows / rows.sum(-1, keepdims=True)
    return normalised(rows)


def _allowed(name: str, rows: np.ndarray, model: RobustCMDP) -> np.ndarray:
    if model.allowed is None:
        return rows
    wrong = ((rows > 0) & ~np.asarray(model.allowed)).any(tuple(range(rows.ndim - 2)))
    if wrong.any():
        state, action = (int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"{name}: {state_label(model, state)} takes action {action}, which is not allowed there"
        )
    return rows
