"""The verb `evaluate`: what a policy is worth, nominally and in the worst case."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from holdfast._support.precision import float64
from holdfast.model import Kernel, RobustCMDP, check_policy
from holdfast.model.table import Layout, layout_of
from holdfast.tabular.evaluation.values import (
    Outlook,
    kernel_of,
    kernels_are_members,
    without_kernel,
)
from holdfast.tabular.evaluation.worst_case import (
    Tilted,
    WorstCase,
    check_method,
    nominal_outlook,
    worst_case_method,
    worst_outlook,
)


@dataclasses.dataclass(frozen=True, eq=False)
class SignalEvaluation:
    """One signal of a policy, in the user's own sense: a cost reads as a cost.

    Attributes:
        worst: value in this signal's worst case, from the initial distribution.
        nominal: value under the nominal kernel.
        values: (S,) worst-case V(s).
        advantages: (S, A) worst-case Q(s, a) − V(s).
        occupancy: (S,) discounted share of time in each state under the worst-case kernel.
        error: bound on the numerical error of `worst`.
    """

    worst: float
    nominal: float
    values: Float[np.ndarray, " S"]
    advantages: Float[np.ndarray, "S A"]
    occupancy: Float[np.ndarray, " S"]
    error: float
    _make_kernel: Callable[[], np.ndarray | Kernel] = dataclasses.field(repr=False)

    @functools.cached_property
    def kernel(self) -> np.ndarray | Kernel:
        """The worst-case kernel of this signal, in the form of the model's own."""
        return self._make_kernel()


@dataclasses.dataclass(frozen=True, eq=False)
class ConstraintEvaluation(SignalEvaluation):
    """One constraint of a policy.

    Attributes:
        margin: how far the worst case is on the right side of the threshold; negative is violated.
        nominal_margin: the same under the nominal kernel.
    """

    margin: float = 0.0
    nominal_margin: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` returns.

    Attributes:
        reward: the reward's evaluation.
        constraints: one evaluation for each constraint, in the model's order.
        error: bound on the numerical error of every worst value.
    """

    reward: SignalEvaluation
    constraints: tuple[ConstraintEvaluation, ...]
    error: float

    @property
    def margins(self) -> Float[np.ndarray, " m"]:
        """The worst-case margin of every constraint."""
        return np.array([constraint.margin for constraint in self.constraints])

    @property
    def feasible(self) -> bool:
        """Whether every margin, less the numerical error, is at least zero."""
        return bool((self.margins - self.error >= 0).all())


@float64
def evaluate(
    model: RobustCMDP, policy: ArrayLike, *, worst_case: str | WorstCase = "dual"
) -> Evaluation:
    """Nominal and worst-case values of a policy, with a certified bound on the error.

    The reward has a worst-case kernel of its own, and so has every constraint. The error is the
    distance between a value under a kernel that has been checked to be in the set and a lower bound
    from the dual, so it does not rest on the search for the worst case having gone well.

    Arguments:
        model: the model.
        policy: (S, A), rows that sum to one.
        worst_case: "dual", "projected-gradient" or "tilted", or one of `Dual`, `ProjectedGradient`,
            `Tilted` with settings.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> model = hf.environments.gambler()
        >>> timid = np.eye(8)[np.zeros(17, int)]        # always stake 1
        >>> evaluation = hf.evaluate(model, timid)
        >>> print(f"{evaluation.reward.nominal:.3f} {evaluation.reward.worst:.3f}")
        3.262 0.751
        >>> print(f"{evaluation.constraints[0].margin:.3f}")
        3.954
    """
    layout = layout_of(model)
    method = layout_features(layout, worst_case_method(worst_case))
    check_method(method, layout.table)
    padded = layout.pad_policy(check_policy("policy", policy, model.states, model.actions))
    nominal = nominal_outlook(layout.table, padded)
    worst = worst_outlook(layout.table, padded, method, start=nominal)
    return report(layout, nominal, worst)


def layout_features(layout: Layout, method: WorstCase) -> WorstCase:
    """A tilted method's features in the table's own layout."""
    if not isinstance(method, Tilted) or method.features is None:
        return method
    features = np.asarray(method.features, np.float64)
    expected: tuple[int, ...] = (layout.model.states,)
    if features.ndim == 4:
        expected = layout.model_shape
    if features.ndim not in (2, 4) or features.shape[:-1] != expected:
        raise ValueError(
            f"features: expected shape ({layout.model.states}, m), or {layout.model_shape} and a "
            f"last axis m, got {features.shape}"
        )
    if features.ndim == 4:
        features = layout.rows(features)
    return dataclasses.replace(method, features=features)


def report(layout: Layout, nominal: Outlook, worst: Outlook) -> Evaluation:
    """Outlooks as the user sees them."""
    members = kernels_are_members(layout.table, worst)
    kernels = [functools.partial(_kernel, layout, worst, i) for i in range(len(worst.value))]
    nominal = jax.device_get(nominal)
    worst = jax.device_get(without_kernel(worst))

    def signal(i: int, shown: Callable[[Any], Any]) -> dict[str, Any]:
        return {
            "worst": float(shown(worst.value[i])),
            "nominal": float(shown(nominal.value[i])),
            "values": shown(layout.unpad(worst.values[i])),
            "advantages": shown(layout.unpad(worst.advantages[i])),
            "occupancy": layout.unpad(worst.occupancy[i]),
            # The value under a kernel outside the set bounds nothing.
            "error": float(worst.error[i]) if members[i] else float("inf"),
            "_make_kernel": kernels[i],
        }

    reward = SignalEvaluation(**signal(0, lambda value: value))
    constraints = tuple(
        ConstraintEvaluation(
            **signal(i, constraint.shown),
            margin=float(worst.value[i]) - constraint.utility_threshold,
            nominal_margin=float(nominal.value[i]) - constraint.utility_threshold,
        )
        for i, constraint in enumerate(layout.model.constraints, start=1)
    )
    return Evaluation(reward, constraints, max(s.error for s in (reward, *constraints)))


@float64
def _kernel(layout: Layout, worst: Outlook, i: int) -> np.ndarray | Kernel:
    return layout.kernel(kernel_of(layout.table, worst, i))
