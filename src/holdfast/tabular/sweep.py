"""Solve a model again and again while one limit, the radii, or anything else changes."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from holdfast._support.arguments import check_number, meant
from holdfast._support.files import write_text
from holdfast._support.precision import float64
from holdfast.model import RobustCMDP
from holdfast.tabular.certify import certify
from holdfast.tabular.solve import Status, solve


class SweepPoint(NamedTuple):
    """One model of a sweep, solved and certified.

    Attributes:
        value: the limit, the factor on the radii, or the key of the model.
        status: as in `Solution`.
        reward: worst-case reward of the policy that was found.
        nominal: its nominal reward.
        upper_bound: no feasible policy has a larger worst-case reward; −inf if none is feasible.
        margins: its worst-case margins, (m,).
        policy: the policy, (S, A).
    """

    value: float
    status: Status
    reward: float
    nominal: float
    upper_bound: float
    margins: Float[np.ndarray, " m"]
    policy: Float[np.ndarray, "S A"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """The results of `sweep`: worst-case reward and certified upper bound as functions of one number.

    Attributes:
        over: what changes, such as "limit of downtime".
        points: one for each value, in increasing order.

    Example:
        >>> import holdfast as hf
        >>> found = hf.sweep("gambler", limit={"utility": [1.0, 2.5]}, iterations=60)
        >>> found.over, [point.status for point in found.points]
        ('limit of utility', ['feasible', 'feasible'])
        >>> found.points[0].reward >= found.points[1].reward      # a weaker rule costs no more
        True
    """

    over: str
    points: tuple[SweepPoint, ...]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one row for each value, with all digits."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([self.over, "status", "reward", "upper_bound", "nominal", *self._margins()])
        for p in self.points:
            writer.writerow([p.value, p.status, p.reward, p.upper_bound, p.nominal, *p.margins])
        write_text(path, file.getvalue())

    def _margins(self) -> list[str]:
        return [f"margin_{i}" for i in range(len(self.points[0].margins))]

    def __str__(self) -> str:
        width = max(len(self.over), 10)
        lines = [f"{self.over:>{width}}  {'reward':>10}  {'at most':>10}  {'least margin':>12}"]
        for p in self.points:
            least = f"{p.margins.min():12.4g}" if len(p.margins) else f"{'':12}"
            found = f"{p.value:{width}.6g}  {p.reward:10.6g}  {p.upper_bound:10.6g}  {least}"
            lines.append(found + ("" if p.status == "feasible" else f"  {p.status}"))
        return "\n".join(lines)

    __repr__ = __str__


@float64
def sweep(
    model: RobustCMDP | None = None,
    *,
    limit: Mapping[str | int, Sequence[float]] | None = None,
    radius: Sequence[float] | None = None,
    models: Mapping[float, RobustCMDP] | None = None,
    iterations: int = 200,
    callback: Callable[[int], None] | None = None,
) -> Sweep:
    """Solve and certify a model for several limits, several radii, or several models.

    Over a limit this is the Pareto front of the reward against that limit: rewards that were reached,
    and upper bounds that no policy can pass. A policy that keeps a tighter limit keeps a looser one too,
    and is used there if it is better.

    Arguments:
        model: the model, or its name; not with `models`.
        limit: the name or the index of one constraint, with its thresholds.
        radius: factors on the radii of the model's set.
        models: models by a number, such as the confidence with which each was made from a log.
        iterations: number of policy updates of each `solve`.
        callback: function called with the number of models solved so far.

    Raises:
        ValueError: not exactly one of `limit`, `radius` and `models` is given, or the constraint does
            not exist.

    Example:
        >>> import holdfast as hf
        >>> found = hf.sweep("gambler", radius=[0.0, 1.0], iterations=60)
        >>> found.points[0].reward > found.points[1].reward         # trust costs nothing
        True
    """
    given = [
        name for name, each in (("limit", limit), ("radius", radius), ("models", models)) if each
    ]
    if len(given) != 1:
        raise ValueError(
            f"limit, radius, models: expected exactly one of them, got {given or 'none'}"
        )
    if (model is None) != (given == ["models"]):
        raise ValueError("model: required with limit or radius, not allowed with models")
    over, cases, tighter = given[0], dict(models or {}), 0
    if model is not None and radius is not None:
        assert model.uncertainty is not None
        for factor in radius:
            check_number("radius", factor)
            cases[factor] = model.replace(uncertainty=model.uncertainty.scaled(float(factor)))
        over = "factor on the radii"
    elif model is not None and limit is not None:
        i, cases = _limited(model, limit)
        constraint = model.constraints[i]
        over = f"limit of {_name(constraint)}"
        tighter = -1 if constraint.sense == "at_least" else 1
    points: list[SweepPoint] = []
    for value in sorted(cases, reverse=tighter < 0):
        points.append(_solved(value, cases[value], iterations, points[-1:] if tighter else []))
        if callback is not None:
            callback(len(points))
    return Sweep(over, tuple(sorted(points, key=lambda point: point.value)))


def _limited(
    model: RobustCMDP, limit: Mapping[str | int, Sequence[float]]
) -> tuple[int, dict[float, RobustCMDP]]:
    """Return the index of the constraint, and the models by its threshold."""
    if len(limit) != 1:
        raise ValueError(f"limit: expected one constraint, got {len(limit)}")
    ((which, thresholds),) = limit.items()
    names = [_name(each) for each in model.constraints]
    if isinstance(which, str) and which not in names:
        raise ValueError(f"limit: there is no constraint {which!r}{meant(which, names)}")
    i = names.index(which) if isinstance(which, str) else which
    if not 0 <= i < len(names):
        raise ValueError(f"limit: there is no constraint {i}; the model has {len(names)}")
    cases = {}
    for threshold in thresholds:
        constraints = list(model.constraints)
        constraints[i] = dataclasses.replace(constraints[i], threshold=threshold)
        cases[float(threshold)] = model.replace(constraints=constraints)
    return i, cases


def _name(constraint: Any) -> str:
    return constraint.name or ("utility" if constraint.sign > 0 else "cost")


def _solved(
    value: float, model: RobustCMDP, iterations: int, tighter: Sequence[SweepPoint]
) -> SweepPoint:
    """Return a solved and certified model; the policy of a tighter limit is kept if it is better."""
    found = solve(model, iterations=iterations)
    policy, status = found.policy, found.status
    for other in tighter:
        better = other.reward > found.evaluation.reward.worst or status != "feasible"
        if other.status == "feasible" and better:
            policy, status = other.policy, other.status
    certificate = certify(model, policy)
    evaluation = certificate.evaluation
    return SweepPoint(
        float(value),
        status,
        certificate.reward,
        evaluation.reward.nominal,
        certificate.upper_bound,
        certificate.margins,
        policy,
    )
