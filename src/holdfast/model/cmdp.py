"""The model: a robust constrained Markov decision process as plain arrays.

All user input is checked here, once. Code that receives a `RobustCMDP` relies on these checks.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import first_place, numbers_of
from holdfast.model.checks import (
    check_distributions,
    finite_number,
    frozen,
    normalised,
    refuse_subnormal,
)
from holdfast.model.constraints import Constraint
from holdfast.model.kernel import Kernel, dense_kernel, dropped
from holdfast.model.logs.summary import LogSummary
from holdfast.model.names import check_labels, check_names, named_places
from holdfast.uncertainty import KL, UncertaintySet

# Sets that reach any state turn successor lists into a dense array of at most this size: 2 GiB of
# float64.
_MAX_DENSE_ENTRIES = 1 << 28


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RobustCMDP:
    """A robust constrained Markov decision process with finitely many states and actions.

    It states the problem: maximise the worst-case discounted reward over the uncertainty set, subject
    to every constraint under its own worst case over the same set.

    Arguments:
        transitions: the nominal kernel, an (S, A, S) array or a `Kernel` of successor lists. Rows
            that sum to one within 1e-8 (1e-6 in single precision) are renormalised.
        reward: (S, A), or in the kernel's layout, (S, A, S) or (S, A, K), if it depends on the next
            state.
        constraints: results of `at_least` and `at_most`, with signals of the reward's shapes.
        initial: (S,) initial distribution; default: uniform.
        discount: a number in [0, 1).
        uncertainty: the set of kernels that nature may choose from; default: the nominal kernel only.
        state_names: S distinct names. Tables, messages, files and the report page show them, and a
            policy may be given with them.
        action_names: A distinct names.
        labels: named sets of states, such as {"failed": ["broken", "burnt"]}.
        data: summary of the log that the model comes from, which `from_log` sets.
        drop_below: successors with a probability below this are removed from the nominal kernel, and
            their rows are renormalised; default: none. Compiled code replaces positive numbers below
            2.2e-308 by zero, while nature could still use them, so that a probability that small is
            refused unless it is dropped here.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.RobustCMDP(
        ...     transitions=np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]]]),
        ...     reward=np.array([[0.0, 1.0], [1.0, 0.0]]),
        ...     constraints=[hf.at_most(np.array([[0.0, 1.0], [0.0, 0.0]]), 2.0)],
        ...     discount=0.9, uncertainty=hf.KL(0.1))
        >>> print(model)
        RobustCMDP(states=2, actions=2, constraints=[cost ≤ 2], uncertainty=KL(radius=0.1), discount=0.9)
    """

    transitions: Float[np.ndarray, "S A S"] | Kernel
    reward: Float[np.ndarray, "..."]
    constraints: Sequence[Constraint] = ()
    initial: Float[np.ndarray, " S"] | None = None
    discount: float
    uncertainty: UncertaintySet | None = None
    state_names: Sequence[str] | None = None
    action_names: Sequence[str] | None = None
    labels: Mapping[str, Sequence[int | str]] | None = None
    data: LogSummary | None = None
    drop_below: dataclasses.InitVar[float | None] = None

    def __post_init__(self, drop_below: float | None) -> None:
        with named_places(self.state_names, self.action_names):
            self._check(drop_below)

    def _check(self, drop_below: float | None) -> None:
        """Replace all arguments by checked ones."""
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        if not isinstance(self.transitions, Kernel):
            put("transitions", dense_kernel(self.transitions))
        if drop_below is not None:
            put("transitions", dropped(self.transitions, drop_below))
        advice = "remove such successors with drop_below"
        refuse_subnormal("transitions", self.nominal, "probability", advice)
        put("state_names", check_names("state_names", self.state_names, self.states))
        put("action_names", check_names("action_names", self.action_names, self.actions))
        put("labels", check_labels(self.labels, self.state_names, self.states))
        put("reward", self._signal("reward", self.reward))
        if not isinstance(self.constraints, Iterable):
            raise ValueError(
                f"constraints: expected a sequence, got {type(self.constraints).__name__}"
            )
        put("constraints", tuple(self._constraint(i, c) for i, c in enumerate(self.constraints)))
        put("initial", self._initial(self.initial))
        discount = finite_number("discount", self.discount)
        if not 0 <= discount < 1:
            raise ValueError(f"discount: expected a number in [0, 1), got {discount}")
        put("discount", discount)
        put("uncertainty", KL(0.0) if self.uncertainty is None else self.uncertainty)
        if not isinstance(self.uncertainty, UncertaintySet):
            raise ValueError(
                f"uncertainty: expected a set such as KL(0.1), got {type(self.uncertainty).__name__}"
            )
        self._check_set(self.uncertainty)

    @property
    def states(self) -> int:
        """Number of states."""
        return self.nominal.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.nominal.shape[1]

    @property
    def nominal(self) -> Float[np.ndarray, "S A K"]:
        """The nominal probabilities, in the layout of the user's kernel."""
        kernel = self.transitions
        return kernel.probabilities if isinstance(kernel, Kernel) else kernel

    def replace(self, **changes: Any) -> RobustCMDP:
        """Return the model with some arguments changed; all checks run again.

        Example:
            >>> import holdfast as hf
            >>> wider = hf.environments.gambler().replace(uncertainty=hf.KL(0.2))
            >>> float(wider.uncertainty.radius)
            0.2
        """
        return dataclasses.replace(self, **changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a `.npz` file. The file appears only when it is complete.

        A path that ends with `.umb` gives a UMB file, which other tools read; it has the kernel or the
        intervals, the signals, the labels and the names of actions, but no thresholds and no discount.

        Example:
            >>> import pathlib, tempfile, holdfast as hf
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder) / "model.npz"
            ...     hf.environments.gambler(goal=4).save(path)
            ...     hf.RobustCMDP.load(path).states
            5
        """
        from holdfast.model.files import save_model

        save_model(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        discount: float | None = None,
        reward: str | None = None,
        constraints: Sequence[Constraint] = (),
    ) -> RobustCMDP:
        """Return the model in a file that `save` wrote, or in a file of another tool.

        Files of other tools end with `.umb`, `.drn` (Storm) or `.tra` (PRISM, with the `.lab`, `.srew`
        and `.trew` files beside it). Intervals become an `Interval` set, labels become `labels`. They
        say neither discount nor constraints, so these are given here.

        No code in the file runs. If the file names a user-defined uncertainty set, the module of that
        set is imported.

        Arguments:
            path: the file.
            discount: discount of a model of another tool; default: 0.99.
            reward: name of the reward structure to maximise; default: the first one.
            constraints: constraints, which may name reward structures: `hf.at_most("energy", 5.0)`.

        Raises:
            ValueError: the file is damaged or is not a model; the message names the file.
        """
        from holdfast.model.explicit import DEFAULT_DISCOUNT, ModelRules
        from holdfast.model.files import load_model

        if discount is None and reward is None and not constraints:
            return load_model(path)
        chosen = DEFAULT_DISCOUNT if discount is None else discount
        return load_model(path, ModelRules(chosen, reward, constraints))

    def __repr__(self) -> str:
        constraints = ", ".join(map(str, self.constraints))
        return (
            f"RobustCMDP(states={self.states}, actions={self.actions}, "
            f"constraints=[{constraints}], uncertainty={self.uncertainty}, "
            f"discount={self.discount:g})"
        )

    def _signal(self, name: str, signal: Any) -> Float[np.ndarray, "..."]:
        signal = numbers_of(name, signal)
        shape = self.nominal.shape
        if signal.shape not in (shape[:2], shape):
            raise ValueError(
                f"{name}: expected shape {shape[:2]}, or {shape} where it depends on the next "
                f"state, got {signal.shape}"
            )
        if not np.isfinite(signal).all():
            index, where = first_place(~np.isfinite(signal))
            raise ValueError(f"{name}: {where} is {signal[index]}, not a finite number")
        refuse_subnormal(name, signal, "value", "set it to zero, or use another unit")
        return frozen(signal)

    def _constraint(self, index: int, constraint: Any) -> Constraint:
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"constraints[{index}]: expected at_least(signal, threshold) or "
                f"at_most(signal, threshold), got {type(constraint).__name__}"
            )
        if isinstance(constraint.signal, str):
            raise ValueError(
                f"constraints[{index}]: the signal {constraint.signal!r} is known by name only to "
                "from_log and to files of other tools; give its array"
            )
        signal = self._signal(f"constraints[{index}]", constraint.signal)
        return dataclasses.replace(constraint, signal=signal)

    def _initial(self, initial: Any) -> Float[np.ndarray, " S"]:
        if initial is None:
            return frozen(normalised(np.full(self.states, 1 / self.states)))
        shape = numbers_of("initial", initial).shape
        if shape != (self.states,):
            raise ValueError(f"initial: expected shape ({self.states},), got {shape}")
        rows = check_distributions("initial", initial)
        refuse_subnormal("initial", rows, "probability", "set it to zero")
        return rows

    def _check_set(self, uncertainty: UncertaintySet) -> None:
        uncertainty.check_fits(self.nominal)
        if uncertainty.fits_lists or not isinstance(self.transitions, Kernel):
            return
        signals = {"reward": self.reward}
        signals |= {f"constraints[{i}]": c.signal for i, c in enumerate(self.constraints)}
        for name, signal in signals.items():
            if signal.ndim == 3:
                raise ValueError(
                    f"{name}: it is given for listed successors, but this {uncertainty.name} set may "
                    "lead to any state; give it as (S, A), or give a dense kernel"
                )
        entries = self.states**2 * self.actions
        if entries > _MAX_DENSE_ENTRIES:
            raise ValueError(
                f"uncertainty: a {uncertainty.name} set that may lead to any state needs "
                f"{entries:,} probabilities; use a set that keeps the support"
            )
