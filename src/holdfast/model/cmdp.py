"""The model: a robust constrained Markov decision process as plain arrays.

Everything a user hands over is checked here, once, before any work; everything behind this file may
rely on it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from holdfast._support.arguments import numbers_of
from holdfast.uncertainty import KL, UncertaintySet

_ROW_SUM_TOLERANCE = 1e-8
# Lists become dense where a set may lead to any state, up to this many entries (2 GiB).
_MOST_DENSE_ENTRIES = 1 << 28
# Numbers that came in single precision cannot do better than this.
_SINGLE_PRECISION_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """Transition probabilities as successor lists: K possible next states for each (state, action).

    Entries may repeat a successor and may have probability zero. `RobustCMDP` takes this wherever a
    dense (S, A, S) array would be mostly zeros.

    Arguments:
        successors: (S, A, K) integers, the index of each next state.
        probabilities: (S, A, K), rows that sum to one.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> walk = hf.Kernel(successors=np.array([[[0, 1]], [[0, 1]]]),
        ...                  probabilities=np.array([[[0.9, 0.1]], [[0.5, 0.5]]]))
        >>> walk.states, walk.actions
        (2, 1)
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
        probabilities = numbers_of("probabilities", self.probabilities)
        if probabilities.shape != successors.shape:
            raise ValueError(
                f"probabilities: shape {probabilities.shape} differs from that of successors, "
                f"{successors.shape}"
            )
        states = successors.shape[0]
        outside = (successors < 0) | (successors >= states)
        if outside.any():
            s, a, k = np.argwhere(outside)[0]
            raise ValueError(
                f"successors: entry {k} of (state {s}, action {a}) is {successors[s, a, k]}, "
                f"but states are 0 to {states - 1}"
            )
        object.__setattr__(self, "successors", _frozen(successors.astype(np.int32)))
        tolerance = _row_sum_tolerance(self.probabilities)
        object.__setattr__(
            self,
            "probabilities",
            _stochastic("probabilities", probabilities, tolerance),
        )

    @property
    def states(self) -> int:
        """Number of states."""
        return self.successors.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.successors.shape[1]

    def dense(self) -> Float[np.ndarray, "S A S"]:
        """The same kernel as an (S, A, S) array."""
        states, actions, _ = self.successors.shape
        dense = np.zeros((states, actions, states))
        s, a, _ = np.indices(self.successors.shape, sparse=True)
        np.add.at(dense, (s, a, self.successors), self.probabilities)
        return dense


@dataclasses.dataclass(frozen=True, eq=False)
class Constraint:
    """A signal with a threshold; made by `at_least` or `at_most`.

    Inside Holdfast every constraint is a utility to be kept at or above its threshold. This class is
    the one place where a cost is turned into a utility (`utility`, `utility_threshold`) and back
    (`shown`).
    """

    signal: Float[np.ndarray, "..."]
    threshold: float
    sense: Literal["at_least", "at_most"]
    name: str | None = None

    def __post_init__(self) -> None:
        if self.sense not in ("at_least", "at_most"):
            raise ValueError(f"sense: expected 'at_least' or 'at_most', got {self.sense!r}")
        threshold = _number("threshold", self.threshold)
        object.__setattr__(self, "signal", _frozen(numbers_of("signal", self.signal)))
        object.__setattr__(self, "threshold", threshold)

    @property
    def sign(self) -> float:
        """+1 for a utility, −1 for a cost."""
        return 1.0 if self.sense == "at_least" else -1.0

    @property
    def utility(self) -> Float[np.ndarray, "..."]:
        """The signal in the inner sense: more is better."""
        return self.sign * self.signal

    @property
    def utility_threshold(self) -> float:
        """The threshold in the inner sense."""
        return self.sign * self.threshold

    def shown(self, utility: Any) -> Any:
        """Turns a utility's value back into the user's own sense."""
        # Adding zero turns the −0 of a cost of nothing into 0.
        return self.sign * utility + 0.0

    def __str__(self) -> str:
        relation = "≥" if self.sense == "at_least" else "≤"
        return (
            f"{self.name or ('utility' if self.sign > 0 else 'cost')} {relation} {self.threshold:g}"
        )


def at_least(signal: ArrayLike, threshold: float, *, name: str | None = None) -> Constraint:
    """A constraint that keeps the discounted sum of a utility at or above a threshold.

    Arguments:
        signal: (S, A), or in the kernel's own layout where it depends on the next state.
        threshold: the least value that is accepted, from the initial distribution.
        name: what tables and plots call it.

    Example:
        >>> import holdfast as hf
        >>> print(hf.at_least([[1.0, 0.0]], 2.5, name="thrift"))
        thrift ≥ 2.5
    """
    return Constraint(numbers_of("signal", signal), threshold, "at_least", name)


def at_most(signal: ArrayLike, threshold: float, *, name: str | None = None) -> Constraint:
    """A constraint that keeps the discounted sum of a cost at or below a threshold.

    Arguments:
        signal: (S, A), or in the kernel's own layout where it depends on the next state.
        threshold: the largest value that is accepted, from the initial distribution.
        name: what tables and plots call it.

    Example:
        >>> import holdfast as hf
        >>> print(hf.at_most([[1.0, 0.0]], 0.1))
        cost ≤ 0.1
    """
    return Constraint(numbers_of("signal", signal), threshold, "at_most", name)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RobustCMDP:
    """A robust constrained Markov decision process with finitely many states and actions.

    The problem it states is: maximise the discounted reward in the worst case over the uncertainty
    set, subject to every constraint in *its* worst case over the same set.

    Arguments:
        transitions: the nominal kernel, an (S, A, S) array or a `Kernel` of successor lists. Rows
            within 1e-8 of one are renormalised (within 1e-6 where given in single precision).
        reward: (S, A), or in the kernel's own layout, (S, A, S) or (S, A, K), where it depends on the
            next state.
        constraints: made by `at_least` and `at_most`; signals of the same shapes as the reward.
        initial: (S,) initial distribution; uniform if left out.
        discount: in [0, 1).
        uncertainty: the set of kernels that nature may choose from; none if left out.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.RobustCMDP(
        ...     transitions=np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]]),
        ...     reward=np.array([[0.0, 1.0], [1.0, 0.0]]),
        ...     constraints=[hf.at_most(np.array([[0.0, 1.0], [0.0, 0.0]]), 2.0)],
        ...     discount=0.9, uncertainty=hf.KL(0.1))
        >>> model.states, model.actions
        (2, 2)
    """

    transitions: Float[np.ndarray, "S A S"] | Kernel
    reward: Float[np.ndarray, "..."]
    constraints: Sequence[Constraint] = ()
    initial: Float[np.ndarray, " S"] | None = None
    discount: float
    uncertainty: UncertaintySet | None = None

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if not isinstance(self.transitions, Kernel):
            put("transitions", _dense_kernel(self.transitions))
        put("reward", self._signal("reward", self.reward))
        if not isinstance(self.constraints, Iterable):
            raise ValueError(
                f"constraints: expected a sequence, got {type(self.constraints).__name__}"
            )
        put("constraints", tuple(self._constraint(i, c) for i, c in enumerate(self.constraints)))
        put("initial", self._initial(self.initial))
        discount = _number("discount", self.discount)
        if not 0 <= discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {discount}")
        put("discount", discount)
        put("uncertainty", KL(0.0) if self.uncertainty is None else self.uncertainty)
        if not isinstance(self.uncertainty, UncertaintySet):
            raise ValueError(
                f"uncertainty: expected a set such as KL(0.1), got {type(self.uncertainty).__name__}"
            )
        self._check_set(self.uncertainty)

    def _check_set(self, uncertainty: UncertaintySet) -> None:
        kernel = self.transitions
        uncertainty.check_fits(kernel.probabilities if isinstance(kernel, Kernel) else kernel)
        if uncertainty.fits_lists or not isinstance(kernel, Kernel):
            return
        signals = {"reward": self.reward}
        signals |= {f"constraints[{i}]": c.signal for i, c in enumerate(self.constraints)}
        for name, signal in signals.items():
            if signal.ndim == 3:
                raise ValueError(
                    f"{name}: it is given for listed successors, but this {uncertainty.name} set may "
                    "lead to any state; give it as (S, A), or the whole model dense"
                )
        entries = self.states**2 * self.actions
        if entries > _MOST_DENSE_ENTRIES:
            raise ValueError(
                f"uncertainty: a {uncertainty.name} set over the whole space makes {entries:,} "
                "probabilities of these lists; use a set that stays within the support"
            )

    @property
    def states(self) -> int:
        """Number of states."""
        return self._layout[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self._layout[1]

    @property
    def _layout(self) -> tuple[int, int, int]:
        kernel = self.transitions
        return kernel.probabilities.shape if isinstance(kernel, Kernel) else kernel.shape

    def replace(self, **changes: Any) -> RobustCMDP:
        """The same model with some arguments changed, checked again.

        Example:
            >>> import holdfast as hf
            >>> wider = hf.environments.gambler().replace(uncertainty=hf.KL(0.2))
            >>> float(wider.uncertainty.radius)
            0.2
        """
        return dataclasses.replace(self, **changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to a `.npz` file, whole or not at all; `RobustCMDP.load` reads it back."""
        from holdfast.model.npz import save_model

        save_model(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> RobustCMDP:
        """Reads a model that `save` wrote. Nothing in the file is executed.

        Raises:
            ValueError: the file is damaged or is no Holdfast model; the message names it.
        """
        from holdfast.model.npz import load_model

        return load_model(path)

    def _signal(self, name: str, signal: Any) -> Float[np.ndarray, "..."]:
        signal = numbers_of(name, signal)
        if signal.shape not in (self._layout[:2], self._layout):
            raise ValueError(
                f"{name}: expected shape {self._layout[:2]}, or {self._layout} where it depends on "
                f"the next state, got {signal.shape}"
            )
        if not np.isfinite(signal).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(signal))[0])
            raise ValueError(
                f"{name}: (state {index[0]}, action {index[1]}) is {signal[index]}, not a number"
            )
        return _frozen(signal)

    def _constraint(self, index: int, constraint: Any) -> Constraint:
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"constraints[{index}]: expected at_least(signal, threshold) or "
                f"at_most(signal, threshold), got {type(constraint).__name__}"
            )
        signal = self._signal(f"constraints[{index}]", constraint.signal)
        return dataclasses.replace(constraint, signal=signal)

    def _initial(self, initial: Any) -> Float[np.ndarray, " S"]:
        if initial is None:
            return _frozen(np.full(self.states, 1 / self.states))
        tolerance = _row_sum_tolerance(initial)
        initial = numbers_of("initial", initial)
        if initial.shape != (self.states,):
            raise ValueError(f"initial: expected shape ({self.states},), got {initial.shape}")
        if not (initial >= 0).all():
            s = int(np.argwhere(~(initial >= 0))[0, 0])
            raise ValueError(f"initial: state {s} has probability {initial[s]}")
        if abs(initial.sum() - 1) > tolerance:
            raise ValueError(f"initial: sums to {initial.sum():.9g}, not 1")
        return _frozen(_normalised(initial))


def check_policy(name: str, policy: ArrayLike, states: int, actions: int) -> np.ndarray:
    """A policy as an (S, A) array with rows that sum to one, or a ValueError that names it."""
    tolerance = _row_sum_tolerance(policy)
    policy = numbers_of(name, policy)
    if policy.shape != (states, actions):
        raise ValueError(f"{name}: expected shape ({states}, {actions}), got {policy.shape}")
    if not (policy >= 0).all():
        s, a = np.argwhere(~(policy >= 0))[0]
        raise ValueError(f"{name}: (state {s}, action {a}) has probability {policy[s, a]}")
    sums = policy.sum(-1)
    off = np.abs(sums - 1) > tolerance
    if off.any():
        s = np.argwhere(off)[0, 0]
        raise ValueError(f"{name}: state {s} sums to {sums[s]:.9g}, not 1")
    return _normalised(policy)


def _dense_kernel(transitions: Any) -> Float[np.ndarray, "S A S"]:
    tolerance = _row_sum_tolerance(transitions)
    transitions = numbers_of("transitions", transitions)
    shape = transitions.shape
    if len(shape) != 3 or 0 in shape or shape[0] != shape[2]:
        raise ValueError(
            f"transitions: expected shape (states, actions, states), got {shape}; "
            "for successor lists use holdfast.Kernel"
        )
    return _stochastic("transitions", transitions, tolerance)


def _stochastic(
    name: str, rows: Float[np.ndarray, "S A K"], tolerance: float
) -> Float[np.ndarray, "S A K"]:
    if not (rows >= 0).all():
        s, a, k = np.argwhere(~(rows >= 0))[0]
        raise ValueError(
            f"{name}: (state {s}, action {a}) has probability {rows[s, a, k]} at entry {k}"
        )
    sums = rows.sum(-1)
    off = ~(np.abs(sums - 1) <= tolerance)
    if off.any():
        s, a = np.argwhere(off)[0]
        raise ValueError(f"{name}: (state {s}, action {a}) sums to {sums[s, a]:.9g}, not 1")
    return _frozen(_normalised(rows))


def _row_sum_tolerance(given: Any) -> float:
    """How far from one a row of the array that was given may sum and still be renormalised."""
    single = getattr(getattr(given, "dtype", None), "itemsize", 8) < 8
    return _SINGLE_PRECISION_TOLERANCE if single else _ROW_SUM_TOLERANCE


def _normalised(rows: Float[np.ndarray, "*rows K"]) -> Float[np.ndarray, "*rows K"]:
    """Rows divided by their sums, but for rounding: so what was normalised once stays as it is."""
    sums = rows.sum(-1, keepdims=True)
    rounding = rows.shape[-1] * np.finfo(np.float64).eps
    return rows / np.where(np.abs(sums - 1) <= rounding, 1.0, sums)


def _number(name: str, value: Any) -> float:
    array = numbers_of(name, value)
    if array.shape != () or not np.isfinite(array):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return float(array)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
