"""Transition probabilities, dense or as successor lists."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from holdfast._support.arguments import first_place, numbers_of
from holdfast.model.checks import check_distributions, frozen


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """Transition probabilities as successor lists: K possible next states for each (state, action).

    A successor may appear more than once, and may have probability zero. `RobustCMDP` accepts a
    `Kernel` in place of a dense (S, A, S) array. Use it if most entries of that array are zero.

    Arguments:
        successors: (S, A, K) integers, the index of each next state.
        probabilities: (S, A, K), rows that sum to one.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> walk = hf.Kernel(successors=np.array([[[0, 1]], [[0, 1]]]),
        ...                  probabilities=np.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
        >>> print(walk)
        Kernel(states=2, actions=1, successors=2)
    """

    successors: Int[np.ndarray, "S A K"]
    probabilities: Float[np.ndarray, "S A K"]

    def __post_init__(self) -> None:
        successors = numbers_of("successors", self.successors, dtype=None)
        if successors.ndim != 3 or 0 in successors.shape:
            raise ValueError(
                f"successors: expected shape (states, actions, K), got {successors.shape}"
            )
        if not np.issubdtype(successors.dtype, np.integer):
            raise ValueError(f"successors: expected integers, got {successors.dtype}")
        shape = numbers_of("probabilities", self.probabilities).shape
        if shape != successors.shape:
            raise ValueError(
                f"probabilities: shape {shape} differs from that of successors, {successors.shape}"
            )
        states = successors.shape[0]
        outside = (successors < 0) | (successors >= states)
        if outside.any():
            index, where = first_place(outside)
            raise ValueError(
                f"successors: {where} is {successors[index]}, but states are 0 to {states - 1}"
            )
        rows = check_distributions("probabilities", self.probabilities)
        object.__setattr__(self, "successors", frozen(successors.astype(np.int32)))
        object.__setattr__(self, "probabilities", rows)

    @property
    def states(self) -> int:
        """Number of states."""
        return self.successors.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.successors.shape[1]

    def dense(self) -> Float[np.ndarray, "S A S"]:
        """Return the same kernel as an (S, A, S) array."""
        states, actions, _ = self.successors.shape
        dense = np.zeros((states, actions, states))
        s, a, _ = np.indices(self.successors.shape, sparse=True)
        np.add.at(dense, (s, a, self.successors), self.probabilities)
        return dense

    def __repr__(self) -> str:
        states, actions, width = self.successors.shape
        return f"Kernel(states={states}, actions={actions}, successors={width})"


def dense_kernel(transitions: Any) -> Float[np.ndarray, "S A S"]:
    """Return a checked (S, A, S) array of transition probabilities."""
    shape = numbers_of("transitions", transitions).shape
    if len(shape) != 3 or 0 in shape or shape[0] != shape[2]:
        raise ValueError(
            f"transitions: expected shape (states, actions, states), got {shape}; "
            "for successor lists use holdfast.Kernel"
        )
    return check_distributions("transitions", transitions)
