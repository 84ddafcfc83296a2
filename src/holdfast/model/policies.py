"""Policies of a model: one table, or one for each step of a horizon, on the allowed actions."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast.model.checks import check_policy, normalised
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.rules import state_name


def policy_of(
    model: RobustCMDP, policy: ArrayLike, argument: str = "policy"
) -> Float[np.ndarray, "*H S A"]:
    """Return a policy of a model as an (S, A) array, or (H, S, A) if the model has a horizon.

    Arguments:
        model: the model.
        policy: (S, A) probabilities or (S,) action indices. With a horizon also (H, S, A) or (H, S); a
            policy without an axis of steps is used in all of them.
        argument: the argument's name, for error messages.

    Raises:
        ValueError: the shape is wrong, a row is not a distribution, or an action does not exist or is
            not allowed.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.gambler(goal=4).replace(horizon=3)
        >>> policy_of(model, [0, 0, 1, 0, 0]).shape
        (3, 5, 2)
    """
    shape = model.states, model.actions
    steps = model.horizon
    if steps is not None and np.shape(policy)[:1] == (steps,) and np.ndim(policy) > 1:
        by_step = np.shape(policy) == (steps, *shape)
        # Integers (H, S) are actions of each step; where H = S and S = A they may be a table instead.
        by_step |= np.shape(policy) == (steps, model.states) != shape
        if by_step:
            checked = [
                check_policy(f"{argument}[{t}]", p, *shape)
                for t, p in enumerate(np.asarray(policy))
            ]
            return _allowed(argument, np.stack(checked), model)
    if steps is not None and np.ndim(policy) == 3:
        raise ValueError(
            f"{argument}: expected shape ({steps}, {shape[0]}, {shape[1]}), got {np.shape(policy)}"
        )
    rows = check_policy(argument, policy, *shape)
    if steps is not None:
        rows = np.broadcast_to(rows, (steps, *rows.shape)).copy()
    return _allowed(argument, rows, model)


def uniform_policy(model: RobustCMDP) -> Float[np.ndarray, "*H S A"]:
    """Return the policy that takes every allowed action with the same probability."""
    allowed = np.ones((model.states, model.actions)) if model.allowed is None else model.allowed
    rows = np.array(allowed, float)
    rows /= rows.sum(-1, keepdims=True)
    return rows if model.horizon is None else np.broadcast_to(rows, (model.horizon, *rows.shape))


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
            f"{name}: {state_name(model, state)} takes action {action}, which is not allowed there"
        )
    return rows
