"""Arrays in the layout of MDP Toolbox (`pymdptoolbox` and its relatives), actions first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast._support.arguments import numbers_of
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.constraints import Constraint
from holdfast.uncertainty import UncertaintySet


def from_mdptoolbox(
    transitions: Any,
    reward: Any,
    discount: float,
    *,
    constraints: Sequence[Constraint] = (),
    uncertainty: UncertaintySet | None = None,
    **model: Any,
) -> RobustCMDP:
    """Return a model from arrays with the action first, as MDP Toolbox has them.

    Arguments:
        transitions: (A, S, S) probabilities, or A matrices (S, S), dense or sparse.
        reward: (S,) rewards of states, (S, A), (A, S, S), or A matrices (S, S).
        discount: a number in [0, 1).
        constraints: see `RobustCMDP`; its signals have the layout of Holdfast.
        uncertainty: see `RobustCMDP`.
        **model: further arguments of `RobustCMDP`, such as `state_names`.

    Raises:
        ValueError: a shape is wrong, or a check of `RobustCMDP` fails.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> P = np.array([[[0.9, 0.1], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])    # forest: wait, cut
        >>> R = np.array([[0.0, 0.0], [4.0, 2.0]])
        >>> model = hf.from_mdptoolbox(P, R, 0.9, uncertainty=hf.KL(0.05))
        >>> model.states, model.actions, model.transitions[0].tolist()
        (2, 2, [[0.9, 0.1], [1.0, 0.0]])
    """
    p = np.moveaxis(_stacked("transitions", transitions), 0, 1)
    r = _stacked("reward", reward)
    states, actions = p.shape[:2]
    if r.shape == (states,):
        r = np.broadcast_to(r[:, None], (states, actions))
    elif r.shape == (actions, states, states):
        r = np.moveaxis(r, 0, 1)
    elif r.shape != (states, actions):
        raise ValueError(
            f"reward: expected shape ({states},), ({states}, {actions}) or "
            f"({actions}, {states}, {states}), got {r.shape}"
        )
    return RobustCMDP(
        transitions=np.ascontiguousarray(p),
        reward=r,
        constraints=constraints,
        discount=discount,
        uncertainty=uncertainty,
        **model,
    )


def _stacked(name: str, given: Any) -> np.ndarray:
    """Return an array, or A matrices, dense or sparse, as one array."""
    parts = [each.toarray() if hasattr(each, "toarray") else each for each in given]
    array = numbers_of(name, parts)
    if name == "transitions" and (array.ndim != 3 or array.shape[1] != array.shape[2]):
        raise ValueError(f"{name}: expected shape (actions, states, states), got {array.shape}")
    return array
