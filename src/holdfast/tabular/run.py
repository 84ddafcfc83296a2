"""The record that an algorithm of `solve` works on: model, options, current policy and history."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from holdfast.model.table import Table, TableLayout
from holdfast.tabular.certificates.step_bounds import no_step_bounds, step_bounds
from holdfast.tabular.evaluation.optimum import best_of
from holdfast.tabular.evaluation.values import PolicyValues
from holdfast.tabular.evaluation.worst_case import WorstCase, nominal_values, worst_case
from holdfast.tabular.steps.tilted_policy import StepKind

T = TypeVar("T")

# Policies closer than this are the same up to rounding: probabilities are accurate to about 2e-16.
_SAME_POLICY = 1e-15
# Numerical errors that a margin must exceed to count as feasible in the search.
_CLEAR = 4
# Ranges below this are rounding errors of a signal that no policy changes. Its unit is then one.
_LEAST_RANGE = 1e-9


@dataclasses.dataclass(frozen=True)
class SolveOptions:
    """The checked arguments of `solve`; `settings` is the algorithm's own record, or None."""

    iterations: int
    trust_region: float
    step: StepKind
    safeguard: Literal["project"] | None
    worst_case: WorstCase
    bounds: bool
    callback: Callable[[int], None] | None
    settings: object = None


class Iterate(NamedTuple):
    """A policy with its values under the nominal kernel and in the worst case."""

    policy: Float[Array, "S A"]
    nominal: PolicyValues
    worst: PolicyValues


@dataclasses.dataclass
class Run:
    """One run of an algorithm: the model, the options, the current policy, and the history.

    An algorithm reads `policy`, `worst` and `nominal`, computes the next policy, and calls `record`.

    Arguments:
        layout: the model and its table.
        options: the checked arguments of `solve`.
        policy: initial policy in the table's shape, (S, A).

    Attributes:
        nominal: values of the current policy under the nominal kernel.
        worst: values of the current policy in the worst case.
        thresholds: least worst-case value of each utility, (m,).
        rows: the history, with one row for each iterate.
        best: the feasible iterate with the largest reward, or None.

    Example:
        >>> import holdfast as hf
        >>> from holdfast.tabular.algorithms import Run
        >>> def stay(run: Run) -> None:
        ...     for _ in range(run.options.iterations):
        ...         run.record(run.policy)
        >>> hf.solve("gambler", stay, iterations=3).history["kl"].tolist()
        [0.0, 0.0, 0.0, 0.0]
    """

    layout: TableLayout
    options: SolveOptions
    policy: Float[Array, "S A"]
    nominal: PolicyValues = dataclasses.field(init=False)
    worst: PolicyValues = dataclasses.field(init=False)
    thresholds: np.ndarray = dataclasses.field(init=False)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: Iterate | None = None
    _started: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.thresholds = np.asarray(self.table.thresholds)
        self.nominal = nominal_values(self.table, self.policy)
        self.worst = worst_case(self.table, self.policy, self.options.worst_case)
        self._write(kl=0.0, recovered=False, trust_region=0.0, bounds={})

    @property
    def table(self) -> Table:
        """The model as padded arrays."""
        return self.layout.table

    @property
    def _steps(self) -> Float[np.ndarray, " m"]:
        """Divisor of each constraint's sum: one, or Σ_t γ^t for an average per step."""
        return np.array([constraint.steps for constraint in self.layout.model.constraints])

    @property
    def last(self) -> Iterate:
        """The current policy and its values."""
        return Iterate(self.policy, self.nominal, self.worst)

    @functools.cached_property
    def units(self) -> Float[np.ndarray, " n"]:
        """One over the range of every signal's value, the reward first.

        The range is the largest less the smallest value of any policy under the nominal kernel, from
        the initial distribution.
        """
        nominal = eqx.tree_at(
            lambda t: t.uncertainty, self.table, self.table.uncertainty.scaled(0.0)
        )
        ranges = [
            best_of(nominal, i).lower + best_of(nominal.negated(), i).lower
            for i in range(len(self.table.signals))
        ]
        return np.array([1 / each if each > _LEAST_RANGE else 1.0 for each in ranges])

    def settings(self, kind: type[T]) -> T:
        """Return the algorithm's own settings."""
        if not isinstance(self.options.settings, kind):
            raise AssertionError(f"expected {kind.__name__}, got {self.options.settings!r}")
        return self.options.settings

    def worst_case(
        self, policy: Float[Array, "S A"], start: PolicyValues | None = None
    ) -> PolicyValues:
        """Return a policy's values in the worst case; those of the current policy are known already."""
        if policy is self.policy:
            return self.worst
        return worst_case(self.table, policy, self.options.worst_case, start)

    def nominal_case(
        self, policy: Float[Array, "S A"], start: PolicyValues | None = None
    ) -> PolicyValues:
        """Return a policy's values under the nominal kernel; the current policy's are known already."""
        return self.nominal if policy is self.policy else nominal_values(self.table, policy, start)

    def margins(self, values: PolicyValues) -> Float[np.ndarray, " m"]:
        """Return the margin of every constraint less four times the numerical error of its signal.

        A fresh evaluation may differ by the errors of both, and subtracts its own.
        """
        # On the host: a handful of numbers is not worth a compiled program.
        clear = _CLEAR * np.asarray(values.error)[1:]
        return np.asarray(values.value)[1:] - self.thresholds - clear

    def is_feasible(self, values: PolicyValues) -> bool:
        """Return whether every margin is at least zero; NaN counts as infeasible."""
        return bool((self.margins(values) >= 0).all())

    def is_current(self, policy: Float[Array, "S A"]) -> bool:
        """Return whether a policy equals the current one up to rounding."""
        return bool(np.abs(np.asarray(policy) - np.asarray(self.policy)).max() <= _SAME_POLICY)

    def record(
        self,
        policy: Float[Array, "S A"],
        *,
        nominal: PolicyValues | None = None,
        worst: PolicyValues | None = None,
        recovered: bool = False,
        trust_region: float = 0.0,
    ) -> None:
        """Make a policy the current one, and add its row to the history.

        Arguments:
            policy: the next policy, (S, A).
            nominal: its values under the nominal kernel, if known.
            worst: its values in the worst case, if known.
            recovered: whether it comes from a recovery step.
            trust_region: trust region of the step, or 0 for none.
        """
        before, worst_before = self.policy, self.worst
        if nominal is None:
            nominal = self.nominal_case(policy, self.nominal)
        if worst is None:
            worst = self.worst_case(policy, worst_before)
        self.policy, self.nominal, self.worst = policy, nominal, worst
        bounds: dict[str, Any] = {}
        if self.options.bounds:
            bounds = step_bounds(
                self.table,
                before,
                policy,
                worst_before,
                worst,
                self.options.trust_region,
                self.layout.model.states,
            )
        kl = mean_kl(worst_before.occupancy[0], policy, before)
        self._write(kl=kl, recovered=recovered, trust_region=trust_region, bounds=bounds)

    def repeat(self) -> None:
        """Add a row for an iterate that equals the last one."""
        last = self.rows[-1]
        bounds = last["bounds"] and no_step_bounds(last["bounds"], last["margins"])
        self._append({**last, "kl": 0.0, "recovered": False, "trust_region": 0.0, "bounds": bounds})

    def fill(self) -> None:
        """Repeat the last row for the remaining iterations.

        For deterministic updates: once an update does not move the policy, no later one does.
        """
        while len(self.rows) <= self.options.iterations:
            self.repeat()

    def history(self) -> dict[str, np.ndarray]:
        """Return the rows as arrays by name."""
        plain = [{k: v for k, v in row.items() if k != "bounds"} for row in self.rows]
        columns = {name: np.array([row[name] for row in plain]) for name in plain[0]}
        for name, value in self.rows[-1]["bounds"].items():
            first = np.full(np.shape(value), np.nan)
            columns[name] = np.array([first] + [row["bounds"][name] for row in self.rows[1:]])
        return columns

    def _write(self, *, kl: float, recovered: bool, trust_region: float, bounds: dict) -> None:
        worst, nominal = np.asarray(self.worst.value), np.asarray(self.nominal.value)
        if self.is_feasible(self.worst):
            so_far = -np.inf if self.best is None else float(self.best.worst.value[0])
            self.best = self.last if worst[0] > so_far else self.best
        self._append(
            {
                "reward": worst[0],
                "margins": (worst[1:] - self.thresholds) / self._steps,
                "nominal_reward": nominal[0],
                "nominal_margins": (nominal[1:] - self.thresholds) / self._steps,
                "error": np.asarray(self.worst.error).max(),
                "margin_errors": np.asarray(self.worst.error)[1:] / self._steps,
                "kl": kl,
                "recovered": recovered,
                "trust_region": trust_region,
                "bounds": bounds,
            }
        )

    def _append(self, row: dict[str, Any]) -> None:
        self.rows.append({**row, "seconds": time.perf_counter() - self._started})
        if self.options.callback is not None and len(self.rows) > 1:
            self.options.callback(len(self.rows) - 1)


def mean_kl(weights: Array, policy: Array, before: Array) -> float:
    """Return E_{s∼d}[KL(π‖π_k)(s)], which is infinite if π takes an action that π_k never takes."""
    d, new, old = np.asarray(weights), np.asarray(policy), np.asarray(before)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(new > 0, new * (np.log(new) - np.log(old)), 0.0)
    # States without occupancy do not count, even if their divergence is infinite.
    return float(max((d * np.where(d > 0, terms.sum(-1), 0.0)).sum(), 0.0))
