"""What every algorithm is given, and the history that every algorithm writes."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from holdfast.model.table import Layout, Table
from holdfast.tabular.certificates.step_bounds import no_step_bounds, step_bounds
from holdfast.tabular.evaluation.optimum import robust_optimum
from holdfast.tabular.evaluation.values import Outlook
from holdfast.tabular.evaluation.worst_case import WorstCase, nominal_outlook, worst_outlook
from holdfast.tabular.steps.tilted_policy import Step

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `solve`, checked."""

    iterations: int
    trust_region: float
    step: Step
    safeguard: Literal["project"] | None
    worst_case: WorstCase
    bounds: bool
    callback: Callable[[int], None] | None
    settings: object = None  # of the algorithm's own kind, where it has one


class Iterate(NamedTuple):
    """A policy and what it is worth."""

    policy: Float[Array, "S A"]
    nominal: Outlook
    worst: Outlook


@dataclasses.dataclass
class Run:
    """One call of `solve`: the model, the options, where to start, and the record of the way."""

    layout: Layout
    options: Options
    policy: Float[Array, "S A"]
    nominal: Outlook = dataclasses.field(init=False)
    worst: Outlook = dataclasses.field(init=False)
    thresholds: np.ndarray = dataclasses.field(init=False)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best: Iterate | None = None  # the feasible iterate with the largest reward
    _started: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.thresholds = np.asarray(self.table.thresholds)
        self.nominal = nominal_outlook(self.table, self.policy)
        self.worst = self.worst_case(self.policy)
        self._write(kl=0.0, recovered=False, trust_region=0.0, bounds={})

    @property
    def table(self) -> Table:
        """The model as arrays."""
        return self.layout.table

    @functools.cached_property
    def units(self) -> Float[np.ndarray, " n"]:
        """One over the range of every signal's value, the reward first.

        The range is what policies make of the signal under the nominal kernel: the largest value
        less the smallest, from the initial distribution.
        """
        nominal = eqx.tree_at(
            lambda t: t.uncertainty, self.table, self.table.uncertainty.scaled(0.0)
        )
        ranges = [
            robust_optimum(nominal, signal).lower + robust_optimum(nominal, -signal).lower
            for signal in self.table.signals
        ]
        return np.array([1 / each if each > 1e-9 else 1.0 for each in ranges])

    def settings(self, kind: type[T]) -> T:
        """The algorithm's own settings."""
        if not isinstance(self.options.settings, kind):
            raise AssertionError(f"expected {kind.__name__}, got {self.options.settings!r}")
        return self.options.settings

    def worst_case(self, policy: Float[Array, "S A"], start: Outlook | None = None) -> Outlook:
        """The policy's outlook in the worst case, by the method that was asked for."""
        return worst_outlook(self.table, policy, self.options.worst_case, start)

    def nominal_case(self, policy: Float[Array, "S A"], start: Outlook | None = None) -> Outlook:
        """The policy's outlook under the nominal kernel."""
        return nominal_outlook(self.table, policy, start)

    def record(
        self,
        policy: Float[Array, "S A"],
        *,
        nominal: Outlook | None = None,
        worst: Outlook | None = None,
        recovered: bool = False,
        trust_region: float = 0.0,
    ) -> None:
        """Takes the next iterate: evaluates what is not known of it and writes its row."""
        before, weights = self.policy, self.worst.occupancy[0]
        last_worst = self.worst
        self.policy = policy
        if nominal is None:
            nominal = nominal_outlook(self.table, policy, self.nominal)
        self.nominal = nominal
        self.worst = self.worst_case(policy, last_worst) if worst is None else worst
        bounds: dict[str, Any] = {}
        if self.options.bounds:
            bounds = step_bounds(
                self.table,
                before,
                policy,
                last_worst,
                self.worst,
                self.options.trust_region,
                self.layout.model.states,
            )
        kl = mean_kl(weights, policy, before)
        self._write(kl=kl, recovered=recovered, trust_region=trust_region, bounds=bounds)

    def repeat(self) -> None:
        """The iterate did not change, so neither does anything known of it."""
        last = self.rows[-1]
        bounds = last["bounds"] and no_step_bounds(last["bounds"], last["margins"])
        self._append({**last, "kl": 0.0, "recovered": False, "trust_region": 0.0, "bounds": bounds})

    def history(self) -> dict[str, np.ndarray]:
        """The rows as arrays by name."""
        plain = [{k: v for k, v in row.items() if k != "bounds"} for row in self.rows]
        columns = {name: np.array([row[name] for row in plain]) for name in plain[0]}
        for name in self.rows[-1]["bounds"]:
            value = self.rows[-1]["bounds"][name]
            first = np.full(np.shape(value), np.nan)
            columns[name] = np.array([first] + [row["bounds"][name] for row in self.rows[1:]])
        return columns

    @property
    def last(self) -> Iterate:
        """The last iterate."""
        return Iterate(self.policy, self.nominal, self.worst)

    def _write(self, *, kl: float, recovered: bool, trust_region: float, bounds: dict) -> None:
        worst, nominal = np.asarray(self.worst.value), np.asarray(self.nominal.value)
        if is_feasible(self.worst, self.thresholds):
            so_far = -np.inf if self.best is None else float(self.best.worst.value[0])
            self.best = self.last if worst[0] > so_far else self.best
        self._append(
            {
                "reward": worst[0],
                "margins": worst[1:] - self.thresholds,
                "nominal_reward": nominal[0],
                "nominal_margins": nominal[1:] - self.thresholds,
                "error": np.asarray(self.worst.error).max(),
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
    """E_{s∼d}[KL(π‖π_k)(s)]; infinite where π takes an action that π_k never takes."""
    d, new, old = np.asarray(weights), np.asarray(policy), np.asarray(before)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(new > 0, new * (np.log(new) - np.log(old)), 0.0)
    # Where a state is never reached, its infinite divergence counts nothing.
    return float(max((d * np.where(d > 0, terms.sum(-1), 0.0)).sum(), 0.0))


def worst_margins(outlook: Outlook, thresholds: np.ndarray) -> np.ndarray:
    """Every margin less the numerical error; on the host, where a handful of numbers belongs."""
    return np.asarray(outlook.value)[1:] - thresholds - np.asarray(outlook.error).max()


def is_feasible(outlook: Outlook, thresholds: np.ndarray) -> bool:
    """Whether every constraint holds, numerical error included."""
    return bool((worst_margins(outlook, thresholds) >= 0).all())
