"""Constraints: a signal with a threshold, as a utility or as a cost, in total or for each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.arguments import check_choice, numbers_of
from holdfast.model.checks import EPS, finite_number, frozen


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Constraint:
    """A signal with a threshold, made by `at_least` or `at_most`.

    Inside Holdfast every constraint is a utility that has to stay at or above its threshold. Only this
    class turns a cost into a utility (`utility`, `utility_threshold`) and a value back into the user's
    sense (`shown`).

    Arguments:
        signal: (S, A), or in the kernel's layout if it depends on the next state. With a horizon it may
            have a leading axis of steps. Also the name of a signal that `from_log` or a file of another
            tool provides.
        threshold: bound on the discounted sum of the signal, or on its mean, from the initial
            distribution.
        sense: "at_least" for a utility, "at_most" for a cost.
        name: label in tables and plots.
        per: "total" for the sum over all steps, "step" for the sum divided by `steps`.
        steps: Σ_t γ^t over the steps of the model with per="step", which the model sets; otherwise one.

    Example:
        >>> import holdfast as hf
        >>> limit = hf.at_most([[1.0, 0.0]], 0.1, name="fuel")
        >>> print(limit, limit.utility, limit.utility_threshold)
        fuel ≤ 0.1 [[-1. -0.]] -0.1
    """

    signal: Float[np.ndarray, "..."]
    threshold: float
    sense: Literal["at_least", "at_most"]
    name: str | None = None
    per: Literal["total", "step"] = "total"
    steps: float = 1.0

    def __post_init__(self) -> None:
        check_choice("per", self.per, ("total", "step"))
        if self.sense not in ("at_least", "at_most"):
            raise ValueError(f"sense: expected 'at_least' or 'at_most', got {self.sense!r}")
        threshold = finite_number("threshold", self.threshold)
        object.__setattr__(self, "signal", _named_or_array(self.signal))
        object.__setattr__(self, "threshold", threshold)

    @property
    def sign(self) -> float:
        """+1 for a utility, −1 for a cost."""
        return 1.0 if self.sense == "at_least" else -1.0

    @property
    def utility(self) -> Float[np.ndarray, "..."]:
        """The signal as a utility: larger values are better."""
        return self.sign * self.signal

    @property
    def utility_threshold(self) -> float:
        """The threshold of the utility's sum."""
        return self.sign * self.threshold * self.steps

    def shown(self, utility: Any) -> Any:
        """Return a value of the utility's sum in the user's sense: a cost as a cost, per step."""
        return self.sign * utility / self.steps + 0.0  # + 0.0 turns −0.0 into 0.0

    def margin(self, utility: Any) -> Any:
        """Return the distance of a value of the utility's sum from the threshold, in the user's unit."""
        return (utility - self.utility_threshold) / self.steps

    def shown_error(self, error: float, utility: float) -> float:
        """Return the error of `shown` and `margin` for a sum with this error."""
        if self.per == "total":
            return error
        # γ^t and their sum are each rounded once, and so are the product and the two quotients.
        rounded = 4 * EPS * (abs(utility) + abs(self.utility_threshold))
        return (error + rounded) / self.steps * (1 + 4 * EPS)

    def in_words(self, worst: float, nominal: float, margin: float) -> str:
        """Return the constraint and its values as a line of text."""
        return f"{self}: worst case {worst:.6g}, nominal {nominal:.6g}, margin {margin:.6g}"

    def number(self, value: float) -> str:
        """Return a value as text, in the unit of the constraint."""
        return f"{value:g}"

    @property
    def label(self) -> str:
        """The constraint without its threshold: its name, or what it is."""
        name = self.name or ("utility" if self.sign > 0 else "cost")
        return f"{name} per step" if self.per == "step" else name

    def __repr__(self) -> str:
        relation = "≥" if self.sense == "at_least" else "≤"
        return f"{self.label} {relation} {self.number(self.threshold)}"


def _named_or_array(signal: Any) -> Any:
    """Return a signal as a read-only array; the name of a signal in a log or a file stays a name."""
    return signal if isinstance(signal, str) else frozen(numbers_of("signal", signal))


def with_signals(
    constraints: Iterable[Any], find: Callable[[Constraint, str], Float[np.ndarray, "..."]]
) -> list[Any]:
    """Return constraints in which names of signals are replaced by the signals.

    Arguments:
        constraints: constraints, some with the name of a signal.
        find: function of the constraint and of the name of a signal that returns the signal.
    """
    return [
        dataclasses.replace(each, signal=find(each, each.signal), name=each.name or each.signal)
        if isinstance(each, Constraint) and isinstance(each.signal, str)
        else each
        for each in constraints
    ]


def at_least(
    signal: ArrayLike | str,
    threshold: float,
    *,
    per: Literal["total", "step"] = "total",
    name: str | None = None,
) -> Constraint:
    """Return the constraint that the discounted sum of a utility is at least a threshold.

    Arguments:
        signal: (S, A), or in the kernel's layout if it depends on the next state; with a horizon it may
            have a leading axis of steps. Or the name of a signal of `from_log`.
        threshold: the smallest accepted value, from the initial distribution.
        per: "total" for the sum over all steps, "step" for the average per step: the sum divided by
            Σ_t γ^t.
        name: label in tables and plots.

    Example:
        >>> import holdfast as hf
        >>> print(hf.at_least([[1.0, 0.0]], 2.5, name="thrift"))
        thrift ≥ 2.5
    """
    return Constraint(_named_or_array(signal), threshold, "at_least", name, per)


def at_most(
    signal: ArrayLike | str,
    threshold: float,
    *,
    per: Literal["total", "step"] = "total",
    name: str | None = None,
) -> Constraint:
    """Return the constraint that the discounted sum of a cost is at most a threshold.

    Arguments:
        signal: (S, A), or in the kernel's layout if it depends on the next state; with a horizon it may
            have a leading axis of steps. Or the name of a signal of `from_log`.
        threshold: the largest accepted value, from the initial distribution.
        per: "total" for the sum over all steps, "step" for the average per step: the sum divided by
            Σ_t γ^t.
        name: label in tables and plots.

    Example:
        >>> import holdfast as hf
        >>> print(hf.at_most([[1.0, 0.0]], 0.1))
        cost ≤ 0.1
        >>> print(hf.at_most([[1.0, 0.0]], 0.1, per="step", name="downtime"))
        downtime per step ≤ 0.1
    """
    return Constraint(_named_or_array(signal), threshold, "at_most", name, per)
