"""The model: a robust constrained Markov decision process as plain arrays.

All user input is checked here, once. Code that receives a `RobustCMDP` relies on these checks.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from holdfast._support.arguments import check_whole_number, first_place, numbers_of
from holdfast.model.by_step import at_step, step_counts
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
from holdfast.model.rules import Reach, allowed_actions, resolved
from holdfast.uncertainty import KL, UncertaintySet

# Sets that reach any state turn successor lists into a dense array of at most this size: 2 GiB of
# float64.
_MAX_DENSE_ENTRIES = 1 << 28


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RobustCMDP:
    """A robust constrained Markov decision process with finitely many states and actions.

    It states the problem: maximise the worst-case discounted reward over the uncertainty set, subject
    to every constraint under its own worst case over the same set. With a horizon the reward is summed
    over that many steps, policies may depend on the step, and nature chooses anew at every step.

    Arguments:
        transitions: the nominal kernel, an (S, A, S) array or a `Kernel` of successor lists. Rows
            that sum to one within 1e-8 (1e-6 in single precision) are renormalised.
        reward: (S, A), or in the kernel's layout, (S, A, S) or (S, A, K), if it depends on the next
            state.
        constraints: results of `at_least`, `at_most` and `reach`, with signals of the reward's shapes.
        initial: (S,) initial distribution; default: uniform.
        discount: a number in [0, 1); with a horizon in [0, 1].
        horizon: number of steps, H; default: no end. Transitions, signals and radii may then have a
            leading axis of H steps, and policies have the shape (H, S, A).
        allowed: (S, A) booleans, or a mapping from states to lists of allowed actions; a state that is
            not mentioned allows every action. With a horizon also (H, S, A), for a dense kernel.
            Default: every action in every state.
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

    transitions: Float[np.ndarray, "*H S A S"] | Kernel
    reward: Float[np.ndarray, "..."]
    constraints: Sequence[Constraint] = ()
    initial: Float[np.ndarray, " S"] | None = None
    discount: float
    uncertainty: UncertaintySet | None = None
    horizon: int | None = None
    allowed: Bool[np.ndarray, "*H S A"] | Mapping[Any, Any] | None = None
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
        discount = finite_number("discount", self.discount)
        if self.horizon is not None:
            check_whole_number("horizon", self.horizon, least=1)
            put("horizon", int(self.horizon))
        if not 0 <= discount <= 1 or (discount == 1 and self.horizon is None):
            interval = "[0, 1)" if self.horizon is None else "[0, 1]"
            hint = "; a sum over a number of steps needs a horizon" if discount == 1 else ""
            raise ValueError(f"discount: expected a number in {interval}, got {discount}{hint}")
        put("discount", discount)
        self._check_steps()
        put("allowed", allowed_actions(self.allowed, self))
        put("reward", self._signal("reward", self.reward))
        if not isinstance(self.constraints, Iterable):
            raise ValueError(
                f"constraints: expected a sequence, got {type(self.constraints).__name__}"
            )
        put("constraints", tuple(self._constraint(i, c) for i, c in enumerate(self.constraints)))
        put("initial", self._initial(self.initial))
        put("uncertainty", KL(0.0) if self.uncertainty is None else self.uncertainty)
        if not isinstance(self.uncertainty, UncertaintySet):
            raise ValueError(
                f"uncertainty: expected a set such as KL(0.1), got {type(self.uncertainty).__name__}"
            )
        self._check_set(self.uncertainty)

    @property
    def states(self) -> int:
        """Number of states."""
        return self.nominal.shape[-3]

    @property
    def actions(self) -> int:
        """Number of actions."""
        return self.nominal.shape[-2]

    @property
    def nominal(self) -> Float[np.ndarray, "*H S A K"]:
        """The nominal probabilities, in the layout of the user's kernel."""
        kernel = self.transitions
        return kernel.probabilities if isinstance(kernel, Kernel) else kernel

    @property
    def total_weight(self) -> float:
        """Σ_t γ^t over all steps: 1/(1−γ) without a horizon.

        Example:
            >>> import holdfast as hf
            >>> round(hf.environments.gambler().total_weight, 6)
            20.0
        """
        if self.horizon is None:
            return 1 / (1 - self.discount)
        return math.fsum(self.discount**t for t in range(self.horizon))

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
        horizon: int | None = None,
    ) -> RobustCMDP:
        """Return the model in a file that `save` wrote, or in a file of another tool.

        Files of other tools end with `.umb`, `.drn` (Storm) or `.tra` (PRISM, with the `.lab`, `.srew`
        and `.trew` files beside it). Intervals become an `Interval` set, labels become `labels`. They
        say neither discount, horizon nor constraints, so these are given here.

        The arrays of a large model are mapped: they are read when they are used, and the file has to
        stay as it is. No code in the file runs. If the file names a user-defined uncertainty set, import
        the module of that set first, or register its name.

        Arguments:
            path: the file.
            discount: discount of a model of another tool; default: 0.99.
            reward: name of the reward structure to maximise; default: the first one.
            constraints: constraints, which may name reward structures: `hf.at_most("energy", 5.0)`, and
                labels: `hf.reach(["failed"], at_most=0.05)`.
            horizon: number of steps; default: no end.

        Raises:
            ValueError: the file is damaged or is not a model; the message names the file.
        """
        from holdfast.model.explicit import DEFAULT_DISCOUNT, ModelRules
        from holdfast.model.files import load_model

        given = discount, reward, horizon
        if not constraints and given == (None, None, None):
            return load_model(path)
        chosen = DEFAULT_DISCOUNT if discount is None else discount
        return load_model(path, ModelRules(chosen, reward, constraints, horizon))

    def __repr__(self) -> str:
        constraints = ", ".join(map(str, self.constraints))
        return (
            f"RobustCMDP(states={self.states}, actions={self.actions}, "
            f"constraints=[{constraints}], uncertainty={self.uncertainty}, "
            f"discount={self.discount:g}{self._rest()})"
        )

    def _rest(self) -> str:
        horizon = "" if self.horizon is None else f", horizon={self.horizon}"
        if self.allowed is None:
            return horizon
        mask = np.asarray(self.allowed)
        return f"{horizon}, allowed={mask.sum()} of {mask.size}"

    def _signal(self, name: str, signal: Any) -> Float[np.ndarray, "..."]:
        signal = numbers_of(name, signal)
        shape = self.nominal.shape[-3:]
        shapes = [shape[:2], shape]
        if self.horizon is not None:
            by_step = (self.horizon, *shape[:2])
            if signal.shape == shape == by_step:
                raise ValueError(
                    f"{name}: shape {shape} may be by step or by next state; give all four axes"
                )
            shapes += [by_step, (self.horizon, *shape)]
        if signal.shape not in shapes:
            steps = (
                f", with a leading axis of {self.horizon} steps or without" if self.horizon else ""
            )
            raise ValueError(
                f"{name}: expected shape {shape[:2]}, or {shape} where it depends on the next "
                f"state{steps}, got {signal.shape}"
            )
        if not np.isfinite(signal).all():
            index, where = first_place(~np.isfinite(signal))
            raise ValueError(f"{name}: {where} is {signal[index]}, not a finite number")
        refuse_subnormal(name, signal, "value", "set it to zero, or use another unit")
        return frozen(signal)

    def by_next_state(self, signal: Float[np.ndarray, "..."]) -> bool:
        """Return whether a signal of this model depends on the next state."""
        return signal.ndim == 4 or signal.shape == self.nominal.shape[-3:]

    def _check_steps(self) -> None:
        shape = self.nominal.shape
        if len(shape) == 4 and self.horizon is None:
            raise ValueError(f"transitions: an axis of steps needs a horizon, got shape {shape}")
        if len(shape) == 4 and shape[0] != self.horizon:
            raise ValueError(f"transitions: expected {self.horizon} steps, got {shape[0]}")

    def _constraint(self, index: int, constraint: Any) -> Constraint:
        argument = f"constraints[{index}]"
        if isinstance(constraint, Reach):
            return resolved(constraint, self, argument)
        if not isinstance(constraint, Constraint):
            raise ValueError(
                f"{argument}: expected at_least(signal, threshold), at_most(signal, threshold) or "
                f"reach(states, …), got {type(constraint).__name__}"
            )
        if isinstance(constraint.signal, str):
            raise ValueError(
                f"{argument}: the signal {constraint.signal!r} is known by name only to from_log and to "
                "files of other tools; give its array"
            )
        signal = self._signal(argument, constraint.signal)
        steps = self.total_weight if constraint.per == "step" else 1.0
        return dataclasses.replace(constraint, signal=signal, steps=steps)

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
        counts = step_counts(uncertainty)
        if self.nominal.ndim == 3 and not (counts and self.horizon):
            uncertainty.check_fits(self.nominal)
        else:
            if any(count != self.horizon for count in counts):
                raise ValueError(f"uncertainty: expected {self.horizon} steps, got {counts[0]}")
            shape = (self.horizon or 1, *self.nominal.shape[-3:])
            for t, p in enumerate(np.broadcast_to(self.nominal, shape)):
                at_step(uncertainty, t).check_fits(p)
        if uncertainty.fits_lists or not isinstance(self.transitions, Kernel):
            return
        signals = {"reward": self.reward}
        signals |= {f"constraints[{i}]": c.signal for i, c in enumerate(self.constraints)}
        for name, signal in signals.items():
            if self.by_next_state(signal):
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
