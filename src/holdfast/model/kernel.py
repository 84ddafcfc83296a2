"""Transition probabilities, dense or as successor lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_number, first_place, numbers_of
from holdfast.model.checks import (
    check_distributions,
    check_indices,
    frozen,
    normalised,
    two_sum,
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """Transition probabilities as successor lists: K possible next states for each (state, action).

    A successor may appear more than once, and may have probability zero. `RobustCMDP` accepts a
    `Kernel` in place of a dense (S, A, S) array. Use it if most entries of that array are zero.

    Arguments:
        successors: (S, A, K) integers, the index of each next state.
        probabilities: (S, A, K), rows that sum to one; for a model with a horizon also (H, S, A, K), one
            kernel for each step.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> walk = hf.Kernel(successors=np.array([[[0, 1]], [[0, 1]]]),
        ...                  probabilities=np.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
        >>> print(walk)
        Kernel(states=2, actions=1, successors=2)
    """

    successors: Int[np.ndarray, "S A K"]
    probabilities: Float[np.ndarray, "*H S A K"]

    def __post_init__(self) -> None:
        # Arrays are not copied before they are checked: they may be large, or maps of files.
        successors = self.successors
        if not isinstance(successors, np.ndarray):
            successors = numbers_of("successors", successors, dtype=None)
        if successors.ndim != 3 or 0 in successors.shape:
            raise ValueError(
                f"successors: expected shape (states, actions, K), got {successors.shape}"
            )
        if not np.issubdtype(successors.dtype, np.integer):
            raise ValueError(f"successors: expected integers, got {successors.dtype}")
        rows: Any = self.probabilities
        if not isinstance(rows, np.ndarray):
            rows = numbers_of("probabilities", rows)
        shape = rows.shape
        if shape[-3:] != successors.shape or len(shape) > 4:
            raise ValueError(
                f"probabilities: shape {shape} differs from that of successors, {successors.shape}"
            )
        successors = check_indices("successors", successors, successors.shape[0])
        rows = check_rows("probabilities", self.probabilities)
        object.__setattr__(self, "successors", successors)
        object.__setattr__(self, "probabilities", rows)

    @classmethod
    def from_blocks(
        cls,
        make: Callable[[int, int], tuple[ArrayLike, ArrayLike]],
        shape: tuple[int, int, int],
        block: int = 1 << 16,
    ) -> Kernel:
        """Return the kernel whose lists a function makes, block by block.

        Lists that are too large to compute at once need no more memory than the kernel itself.

        Arguments:
            make: function of the first state of a block and of the state after its last. It returns
                successors and probabilities of these states, (n, A, K) each.
            shape: numbers of states, actions and successors, (S, A, K).
            block: number of states in a block.

        Raises:
            ValueError: a block has another shape, or a row is not a distribution over states.

        Example:
            >>> import holdfast as hf
            >>> import numpy as np
            >>> def right_or_stay(first, last):
            ...     here = np.arange(first, last)[:, None, None]
            ...     ahead = np.minimum(here + np.array([0, 1]), 99_999)
            ...     return ahead, np.full(ahead.shape, 0.5)
            >>> print(hf.Kernel.from_blocks(right_or_stay, shape=(100_000, 1, 2)))
            Kernel(states=100000, actions=1, successors=2)
        """
        states, *rest = shape
        successors, probabilities = np.empty(shape, np.int32), np.empty(shape)
        for first in range(0, states, block):
            last = min(first + block, states)
            expected = (last - first, *rest)
            lists, rows = make(first, last)
            try:
                if not np.shape(lists) == np.shape(rows) == expected:
                    got = f"{np.shape(lists)} and {np.shape(rows)}"
                    raise ValueError(f"make: expected two arrays of shape {expected}, got {got}")
                successors[first:last] = check_indices("successors", lists, states)
                probabilities[first:last] = check_distributions("probabilities", rows)
            except ValueError as error:
                raise ValueError(f"{error}, counted from state {first}") from error
        kernel = object.__new__(cls)  # the blocks have been checked
        object.__setattr__(kernel, "successors", frozen(successors))
        object.__setattr__(kernel, "probabilities", frozen(probabilities))
        return kernel

    @property
    def states(self) -> int:
        """Number of states."""
        return self.successors.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.successors.shape[1]

    def dense(self) -> Float[np.ndarray, "*H S A S"]:
        """Return the same kernel as an (S, A, S) array, or (H, S, A, S)."""
        *rows, _ = self.probabilities.shape
        row = np.arange(np.prod(rows)).reshape(*rows, 1)
        place = (row * self.states + self.successors).ravel()
        dense = grouped_sum(place, self.probabilities.ravel(), row.size * self.states)
        return dense.reshape(*rows, self.states)

    def __repr__(self) -> str:
        states, actions, width = self.successors.shape
        return f"Kernel(states={states}, actions={actions}, successors={width})"


def dense_kernel(transitions: Any) -> Float[np.ndarray, "*H S A S"]:
    """Return a checked (S, A, S) array of transition probabilities, or (H, S, A, S)."""
    shape = numbers_of("transitions", transitions).shape
    if len(shape) not in (3, 4) or 0 in shape or shape[-3] != shape[-1]:
        raise ValueError(
            f"transitions: expected shape (states, actions, states), got {shape}; "
            "for successor lists use holdfast.Kernel"
        )
    return check_rows("transitions", transitions)


def check_rows(name: str, given: Any) -> Float[np.ndarray, "*H S A K"]:
    """Return checked rows, one step after the other if there is a leading axis of steps."""
    if np.ndim(given) < 4:
        return check_distributions(name, given)
    return frozen(np.stack([check_distributions(f"{name}[{t}]", g) for t, g in enumerate(given)]))


def dropped(
    transitions: Float[np.ndarray, "*H S A S"] | Kernel, least: float
) -> Float[np.ndarray, "*H S A S"] | Kernel:
    """Return a kernel without the successors whose probability is below `least`, renormalised.

    Raises:
        ValueError: `least` is not a number in [0, 1), or a row has no successor left.
    """
    check_number("drop_below", least, most=1.0)
    lists = transitions if isinstance(transitions, Kernel) else None
    rows = np.asarray(transitions if lists is None else lists.probabilities)
    kept = np.where(rows < least, 0.0, rows)
    empty = kept.max(-1) == 0
    if empty.any():
        _, where = first_place(empty)
        raise ValueError(f"drop_below: every successor of {where} has a probability below {least}")
    kept = frozen(normalised(kept))
    return kept if lists is None else Kernel(lists.successors, kept)


def grouped_sum(
    group: Int[np.ndarray, " n"], values: Float[np.ndarray, " n"], count: int
) -> Float[np.ndarray, " count"]:
    """Return the sum of the values in each group, rounded once.

    Arguments:
        group: index of the group of every value.
        values: the values.
        count: number of groups.

    Example:
        >>> print(grouped_sum(np.array([0, 2, 0]), np.array([0.25, 0.5, 0.25]), 3))
        [0.5 0.  0.5]
    """
    high, low = np.zeros(count), np.zeros(count)
    order = np.argsort(group, kind="stable")
    group, values = group[order], values[order]
    while group.size:  # one value of each group in every pass
        first = np.r_[True, group[1:] != group[:-1]]
        place = group[first]
        high[place], error = two_sum(high[place], values[first])
        low[place] += error
        group, values = group[~first], values[~first]
    return high + low
