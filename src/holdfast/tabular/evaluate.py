"""The verb `evaluate`: values of a policy, nominal and in the worst case."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from holdfast._support.devices import over_devices, over_given_devices
from holdfast._support.precision import float64
from holdfast._support.threads import few_threads
from holdfast.model import Constraint, Kernel, RobustCMDP, policy_of
from holdfast.model.names import PolicyLike
from holdfast.model.table import DENSE_STATES, TableLayout, layout_of
from holdfast.tabular.evaluation.certified import certified_errors
from holdfast.tabular.evaluation.large import details, large_values
from holdfast.tabular.evaluation.sparse import LargeValues
from holdfast.tabular.evaluation.tilted_kernel import Tilted
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import (
    Dual,
    WorstCase,
    check_method,
    nominal_values,
    response_kernel,
    worst_case_method,
    worst_kernel,
)
from holdfast.tabular.evaluation.worst_case import worst_case as find_worst_case


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SignalEvaluation:
    """Values of one signal, in the user's own sense: a cost reads as a cost.

    Attributes:
        worst: value in the worst case of this signal, from the initial distribution.
        nominal: value under the nominal kernel.
        values: worst-case V(s), (S,). With a horizon, V_t(s), (H, S), and likewise below.
        advantages: worst-case A(s, a) = Q(s, a) − V(s), (S, A).
        occupancy: state occupancy under the worst-case kernel, (S,); for the probability to reach some
            states, that of the visits before the end.
        error: proved bound on the numerical error of `worst`, rounding included.
        name: "reward", or the constraint in words.
    """

    worst: float
    nominal: float
    error: float
    name: str
    _make_array: Callable[[str], np.ndarray]
    _make_kernel: Callable[[], np.ndarray | Kernel]

    @functools.cached_property
    def values(self) -> Float[np.ndarray, "*H S"]:
        """Worst-case V(s); with a horizon V_t(s)."""
        return self._make_array("values")

    @functools.cached_property
    def advantages(self) -> Float[np.ndarray, "*H S A"]:
        """Worst-case A(s, a) = Q(s, a) − V(s)."""
        return self._make_array("advantages")

    @functools.cached_property
    def occupancy(self) -> Float[np.ndarray, "*H S"]:
        """State occupancy under the worst-case kernel of this signal."""
        return self._make_array("occupancy")

    @functools.cached_property
    def kernel(self) -> np.ndarray | Kernel:
        """The worst-case kernel of this signal, in the form of the model's own."""
        return self._make_kernel()

    def __repr__(self) -> str:
        return f"{self.name}: worst case {self.worst:.6g}, nominal {self.nominal:.6g}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ConstraintEvaluation(SignalEvaluation):
    """Values of one constraint.

    Attributes:
        margin: distance of the worst case from the threshold; negative if the constraint is violated.
        nominal_margin: the same under the nominal kernel.
        constraint: the constraint.
    """

    margin: float
    nominal_margin: float
    constraint: Constraint

    @property
    def holds(self) -> bool:
        """Whether the constraint is proved to hold: its margin less its own error is at least zero."""
        return bool(self.margin - self.error >= 0)

    def __repr__(self) -> str:
        return self.constraint.in_words(self.worst, self.nominal, self.margin)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Values of a policy, nominal and in the worst case.

    Attributes:
        reward: values of the reward.
        constraints: values of every constraint, in the model's order.
        error: bound on the numerical error of every worst-case value, the largest of their own errors.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> hf.evaluate("gambler", np.zeros(17, int))        # always stake 1
        feasible in the worst case (numerical error below 1e-9)
        reward: worst case 0.751032, nominal 3.26182
        utility ≥ 2.5: worst case 6.45418, nominal 11.9097, margin 3.95418
    """

    reward: SignalEvaluation
    constraints: tuple[ConstraintEvaluation, ...]
    error: float

    @property
    def margins(self) -> Float[np.ndarray, " m"]:
        """Worst-case margins of all constraints, (m,)."""
        return np.array([constraint.margin for constraint in self.constraints])

    @property
    def feasible(self) -> bool:
        """Whether every constraint is proved to hold, each with its own numerical error."""
        return all(constraint.holds for constraint in self.constraints)

    def __repr__(self) -> str:
        lines = [*map(repr, (self.reward, *self.constraints))]
        return "\n".join([feasibility(self), *lines])


def feasibility(evaluation: Evaluation) -> str:
    """Return the sentence on feasibility with which summaries start."""
    # Errors differ between machines in their last digits, so that small ones are shown as a bound.
    error = "below 1e-9" if evaluation.error < 1e-9 else f"{evaluation.error:.1e}"
    verdict = "feasible" if evaluation.feasible else "NOT feasible"
    return f"{verdict} in the worst case (numerical error {error})"


@few_threads
@float64
@over_given_devices
def evaluate(
    model: RobustCMDP,
    policy: PolicyLike,
    *,
    worst_case: str | WorstCase = "dual",
    devices: int = 1,
) -> Evaluation:
    """Return the nominal and worst-case values of a policy, with a certified bound on the error.

    The reward and every constraint each have their own worst-case kernel and their own error. The error
    is certified from both sides: above by a kernel that was checked to be in the set, below by the set's
    dual, with all rounding errors. It does not depend on the search for the worst case.

    Arguments:
        model: the model, or its name.
        policy: probabilities (S, A) with rows that sum to one, action indices (S,), or a mapping such as
            {"worn": "service"} from every state to an action or to probabilities of actions. With a
            horizon also (H, S, A) or (H, S).
        worst_case: "dual", "projected-gradient" or "tilted", or one of `Dual`, `ProjectedGradient` and
            `Tilted` with settings.
        devices: number of devices over which the states of a large model are divided, which is one of
            successor lists with more than 1,024 states.

    Example:
        >>> import holdfast as hf
        >>> import numpy as np
        >>> evaluation = hf.evaluate("gambler", np.zeros(17, int))       # always stake 1
        >>> print(f"{evaluation.reward.nominal:.3f} {evaluation.reward.worst:.3f}")
        3.262 0.751
        >>> print(f"{evaluation.constraints[0].margin:.3f}")
        3.954
    """
    layout = divisible_layout(model, devices)
    method = layout_features(layout, worst_case_method(worst_case))
    check_method(method, layout.table)
    padded = layout.pad_policy(policy_of(model, policy))
    large_lists = layout.table.is_large and layout.table.horizon is None
    if isinstance(method, Dual) and (large_lists or layout.table.is_wide):
        large = large_values(layout.table, padded, method)
        array = functools.partial(_large_array, layout, padded, large, {}, devices)
        kernel = functools.partial(_large_kernel, layout, large, devices)
        return _reported(layout, large.worst, large.nominal, large.error, array, kernel)
    nominal = nominal_values(layout.table, padded)
    worst = find_worst_case(layout.table, padded, method, start=nominal)
    errors = np.asarray(certified_errors(layout.table, padded, worst))
    kernel = functools.partial(_kernel, layout, worst)
    worst = jax.device_get(dataclasses.replace(worst, kernel=None))
    array = functools.partial(_array, layout, worst)
    return _reported(layout, worst.value, np.asarray(nominal.value), errors, array, kernel)


def divisible_layout(model: RobustCMDP, devices: int) -> TableLayout:
    """Return the layout of a model on the devices of `over_devices`.

    Raises:
        ValueError: the model is not one whose states can be divided.
    """
    layout = layout_of(model)
    if devices > 1 and not (layout.table.is_large and layout.table.horizon is None):
        raise ValueError(
            "devices: only models without a horizon, of successor lists with more than "
            f"{DENSE_STATES} states, are divided over devices; got {devices}"
        )
    return layout


def layout_features(layout: TableLayout, method: WorstCase) -> WorstCase:
    """Return the method with the features of `Tilted` in the table's layout.

    Raises:
        ValueError: the features have the wrong shape.
    """
    if not isinstance(method, Tilted) or method.features is None:
        return method
    features = np.asarray(method.features, np.float64)
    shape = layout.model.nominal.shape[-3:]
    if features.shape[:-1] not in (shape[:1], shape):
        raise ValueError(
            f"features: expected shape ({layout.model.states}, m), or {shape} and a last axis m, "
            f"got {features.shape}"
        )
    if features.ndim == 4:
        features = layout.rows(features)
    return dataclasses.replace(method, features=features)


def _reported(
    layout: TableLayout,
    worst: Sequence[float] | np.ndarray,
    nominal: Sequence[float] | np.ndarray,
    errors: Sequence[float] | np.ndarray,
    array: Callable[[int, str], np.ndarray],
    kernel: Callable[[int], np.ndarray | Kernel],
) -> Evaluation:
    """Return the values of a policy in the user's layout and sense.

    Arguments:
        layout: the model.
        worst: worst-case value of every signal, as a utility.
        nominal: nominal values.
        errors: certified errors of the worst-case values.
        array: function that returns the array of a signal with this name, as a utility.
        kernel: function that returns the worst-case kernel of a signal.
    """

    def signal(i: int, name: str, constraint: Constraint | None) -> dict[str, Any]:
        shown = _same if constraint is None else constraint.shown
        value, error = float(worst[i]), float(errors[i])
        return {
            "worst": float(shown(value)),
            "nominal": float(shown(float(nominal[i]))),
            "error": error if constraint is None else constraint.shown_error(error, value),
            "name": name,
            "_make_array": functools.partial(_shown_array, array, shown, i),
            "_make_kernel": functools.partial(kernel, i),
        }

    reward = SignalEvaluation(**signal(0, "reward", None))
    constraints = tuple(
        ConstraintEvaluation(
            **signal(i, str(constraint), constraint),
            margin=constraint.margin(float(worst[i])),
            nominal_margin=constraint.margin(float(nominal[i])),
            constraint=constraint,
        )
        for i, constraint in enumerate(layout.model.constraints, start=1)
    )
    return Evaluation(reward, constraints, max(s.error for s in (reward, *constraints)))


def _same(value: Any) -> Any:
    return value


def _shown_array(
    array: Callable[[int, str], np.ndarray], shown: Callable[[Any], Any], i: int, name: str
) -> np.ndarray:
    found = array(i, name)
    return found if name == "occupancy" else np.asarray(shown(found))


def _array(layout: TableLayout, worst: PolicyValues, i: int, name: str) -> np.ndarray:
    return layout.unpad(getattr(worst, name)[i])


@float64
def _kernel(layout: TableLayout, worst: PolicyValues, i: int) -> np.ndarray | Kernel:
    return layout.kernel(worst_kernel(layout.table, worst, i))


@float64
def _large_array(
    layout: TableLayout,
    policy: Array,
    large: LargeValues,
    made: dict[int, Any],
    devices: int,
    i: int,
    name: str,
) -> np.ndarray:
    """Return an array of a large model, whose advantages and occupancy are made when asked for."""
    if name == "values":
        return layout.unpad(large.values[i])
    if i not in made:
        with over_devices(devices):
            one = layout.table.only(i)
            found = details(one, policy, large.values[i], large.multipliers[i])
        made[i] = [layout.unpad(array) for array in found]
    advantages, occupancy = made[i]
    return advantages if name == "advantages" else occupancy


@float64
def _large_kernel(
    layout: TableLayout, large: LargeValues, devices: int, i: int
) -> np.ndarray | Kernel:
    with over_devices(devices):
        multipliers = large.multipliers[i].astype(float)
        found = response_kernel(layout.table.only(i), large.values[i], multipliers)
    return layout.kernel(found)
