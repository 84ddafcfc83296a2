"""Policies of a model: as an array, as action indices, or with names."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from holdfast.model.checks import check_policy
from holdfast.model.cmdp import RobustCMDP
from holdfast.model.names import PolicyLike, named_places, without_names


def policy_of(name: str, policy: PolicyLike, model: RobustCMDP) -> Float[np.ndarray, "S A"]:
    """Return a policy that is given in any form as an array whose rows sum to one.

    Arguments:
        name: the argument's name, for error messages.
        policy: probabilities (S, A), action indices (S,), the names of S actions, or a mapping from
            every state to an action or to a mapping from actions to probabilities.
        model: the model.

    Raises:
        ValueError: the shape is wrong, a row is not a distribution, or a state or action does not exist.

    Example:
        >>> import holdfast as hf
        >>> model = hf.RobustCMDP(
        ...     transitions=np.full((2, 2, 2), 0.5), reward=np.zeros((2, 2)), discount=0.9,
        ...     state_names=["new", "worn"], action_names=["run", "service"])
        >>> print(policy_of("policy", {"new": "run", "worn": {"run": 0.2, "service": 0.8}}, model))
        [[1.  0. ]
         [0.2 0.8]]
    """
    with named_places(model.state_names, model.action_names):
        given = without_names(name, policy, model)
        return check_policy(name, given, model.states, model.actions)
