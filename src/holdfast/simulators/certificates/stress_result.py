"""What `stress` found: the record, its confidence intervals and the critical radius."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float

from holdfast._support.files import to_json, write_text
from holdfast.registry import imported

NOMINAL, ATTACK, SCALED, ACTIONS, PARAMETER = (
    "nominal",
    "attack",
    "noise",
    "action noise",
    "parameter",
)

_RESAMPLES = 2000


class Interval(NamedTuple):
    """A mean over episodes with its bootstrap confidence interval."""

    mean: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one signal came to.

    Attributes:
        mean: over agents of their means over episodes.
        low: end of its confidence interval, from resampling episodes within each agent.
        high: the other end.
        spread: standard deviation of the means of the agents at hand; None with one agent.
        agents: each agent's own mean and interval.
    """

    mean: float
    low: float
    high: float
    spread: float | None
    agents: tuple[Interval, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One test: a kernel or a parameter, and what every signal came to under it.

    Attributes:
        kind: "nominal", "attack", "noise", "action noise" or "parameter".
        level: radius of the attack, factor on the noise, standard deviation of the noise on actions, or
            value of the parameter; 0 for the nominal row.
        subject: the signal that is attacked, or the parameter's name; empty otherwise.
        reward: what the reward came to.
        costs: what each cost came to, as a cost.
        kernels: of an attack, the kind that was strongest against each agent.
    """

    kind: str
    level: float
    subject: str
    reward: Measured
    costs: tuple[Measured, ...]
    kernels: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The test in words."""
        return {
            NOMINAL: "nominal",
            ATTACK: f"attack on {self.subject}, radius {self.level:g}",
            SCALED: f"noise × {self.level:g}",
            ACTIONS: f"noise {self.level:g} on actions",
            PARAMETER: f"{self.subject} = {self.level:g}",
        }[self.kind]


class CriticalRadius(NamedTuple):
    """The largest radius at which a cost limit holds.

    Attributes:
        cost: its name.
        radius: nan where the limit does not hold even nominally.
        beyond_tested: whether it held at every radius tested: then `radius` is the largest of them.
    """

    cost: str
    radius: float
    beyond_tested: bool


@dataclasses.dataclass(frozen=True)
class Stress:
    """What `stress` found; printing it shows a table.

    Attributes:
        agents: their labels.
        cost_names: of the costs.
        limits: of the costs.
        rows: every test; the nominal one first.
        environment: the simulator, as `Environment.description` has it.
        setup: how it was done: episodes, restarts, kernels, confidence, seed and the like.
    """

    agents: tuple[str, ...]
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    rows: tuple[Row, ...]
    environment: Mapping[str, Any]
    setup: Mapping[str, Any]

    @property
    def critical_radius(self) -> float:
        """The empirical critical radius: the largest at which every cost limit holds.

        nan where one does not hold even nominally; inf where there is no cost.
        """
        radii = [each.radius for each in self.critical_radii]
        return math.nan if any(map(math.isnan, radii)) else min(radii, default=math.inf)

    @property
    def beyond_tested(self) -> bool:
        """Whether every limit held at every radius tested; `critical_radius` is then the largest."""
        return all(each.beyond_tested for each in self.critical_radii)

    @property
    def critical_radii(self) -> tuple[CriticalRadius, ...]:
        """The critical radius of every cost, on its own.

        A limit holds where the upper end of the cost's confidence interval is at most the limit, under
        the strongest attack found on that cost. Between radii that were tested the upper end is
        interpolated linearly in √radius: that is how a worst case grows at first, and a chord over the
        radius itself would lie below it. The first radius at which the limit breaks counts.
        """
        return tuple(
            _critical(name, limit, [(level, measured.high) for level, measured in self.curve(name)])
            for name, limit in zip(self.cost_names, self.limits, strict=True)
        )

    def curve(
        self, signal: str, kind: str = ATTACK, subject: str = ""
    ) -> list[tuple[float, Measured]]:
        """Level and value of one signal, rising in the level; the nominal value is among them.

        Arguments:
            signal: "reward" or a cost's name.
            kind: "attack" (on that signal), "noise", "action noise" or "parameter".
            subject: the parameter's name.
        """
        where = {ATTACK: 0.0, SCALED: 1.0, ACTIONS: 0.0}.get(kind)
        if where is None:
            where = self.environment["parameters"][subject]
        subject = signal if kind == ATTACK else subject
        points = {
            row.level: self._signal(row, signal)
            for row in self.rows
            if row.kind == kind and row.subject == subject
        }
        points.setdefault(where, self._signal(self.rows[0], signal))
        return sorted(points.items())

    def _signal(self, row: Row, signal: str) -> Measured:
        return row.reward if signal == "reward" else row.costs[self.cost_names.index(signal)]

    def only(self, agent: str) -> Stress:
        """The same for one of the agents."""
        i = self.agents.index(agent)

        def alone(measured: Measured) -> Measured:
            return Measured(*measured.agents[i], None, (measured.agents[i],))

        rows = (
            dataclasses.replace(
                row,
                reward=alone(row.reward),
                costs=tuple(alone(cost) for cost in row.costs),
                kernels=row.kernels[i : i + 1],
            )
            for row in self.rows
        )
        return dataclasses.replace(self, agents=(agent,), rows=tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values; `from_dict` reads them back."""
        return {
            "critical_radius": self.critical_radius,
            "critical_radii": [each._asdict() for each in self.critical_radii],
            "agents": list(self.agents),
            "cost_names": list(self.cost_names),
            "limits": list(self.limits),
            "environment": dict(self.environment),
            "setup": dict(self.setup),
            "rows": [_row_to_dict(row) for row in self.rows],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; what follows from the rows is worked out again."""
        return cls(
            agents=tuple(values["agents"]),
            cost_names=tuple(values["cost_names"]),
            limits=tuple(values["limits"]),
            rows=tuple(_row_from_dict(row) for row in values["rows"]),
            environment=values["environment"],
            setup=values["setup"],
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Writes it as JSON, whole or not at all."""
        write_text(path, to_json(self.to_dict()) + "\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads what `save` wrote.

        Raises:
            ValueError: the file is no such JSON; the message has its path.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a result of stress ({error!r})") from error

    def plot(self, path: str | PathLike[str]) -> None:
        """Draws it: reward and costs against the radius of attacks, and against noise and parameters."""
        imported("holdfast.report.stress:plot_stress")(path, {", ".join(self.agents): self})

    def __str__(self) -> str:
        heads = ["reward"] + [
            f"{name} ≤ {limit:g}" for name, limit in zip(self.cost_names, self.limits, strict=True)
        ]
        width = max(len(row.label) for row in self.rows)
        table = [[_shown(m) for m in (row.reward, *row.costs)] for row in self.rows]
        columns = [
            max(len(head), *(len(cells[i]) for cells in table)) for i, head in enumerate(heads)
        ]
        lines = [
            f"{self.environment['name']}, {', '.join(self.agents)}: mean over "
            f"{self.setup['episodes']:,} episodes [{100 * self.setup['confidence']:g} % interval]",
            _line("", width, heads, columns),
        ]
        for row, cells in zip(self.rows, table, strict=True):
            line = _line(row.label, width, cells, columns)
            lines.append(f"{line}  {self._verdict(row)}".rstrip())
        lines += [f"critical radius of {_critical_shown(each)}" for each in self.critical_radii]
        return "\n".join(lines)

    def _verdict(self, row: Row) -> str:
        pairs = list(zip(row.costs, self.limits, strict=True))
        if any(cost.low > limit for cost, limit in pairs):
            return "violated"
        return "undecided" if any(cost.high > limit for cost, limit in pairs) else ""


def _shown(measured: Measured) -> str:
    return f"{measured.mean:.4g} [{measured.low:.4g}, {measured.high:.4g}]"


def _line(label: str, width: int, cells: Sequence[str], columns: Sequence[int]) -> str:
    padded = (f"{cell:>{column}}" for cell, column in zip(cells, columns, strict=True))
    return "  ".join([f"{label:{width}}", *padded]).rstrip()


def _critical_shown(critical: CriticalRadius) -> str:
    if math.isnan(critical.radius):
        return f"{critical.cost}: none, its limit does not hold even nominally"
    if critical.beyond_tested:
        return f"{critical.cost}: at least {critical.radius:.3g}, the largest tested"
    return f"{critical.cost}: {critical.radius:.3g}"


def _critical(name: str, limit: float, points: Sequence[tuple[float, float]]) -> CriticalRadius:
    """From (radius, upper end of the cost), rising in the radius from 0 on."""
    (before, below), *rest = points
    if not below <= limit:
        return CriticalRadius(name, math.nan, False)
    for radius, high in rest:
        if not high <= limit:
            share = (limit - below) / (high - below)
            root = math.sqrt(before) + share * (math.sqrt(radius) - math.sqrt(before))
            return CriticalRadius(name, root**2, False)
        before, below = radius, high
    return CriticalRadius(name, before, True)


def _row_to_dict(row: Row) -> dict[str, Any]:
    def plain(measured: Measured) -> dict[str, Any]:
        agents = [each._asdict() for each in measured.agents]
        return {**dataclasses.asdict(measured), "agents": agents}

    return {
        "kind": row.kind,
        "level": row.level,
        "subject": row.subject,
        "reward": plain(row.reward),
        "costs": [plain(cost) for cost in row.costs],
        "kernels": list(row.kernels),
    }


def _row_from_dict(values: Mapping[str, Any]) -> Row:
    def measured(found: Mapping[str, Any]) -> Measured:
        agents = tuple(Interval(**each) for each in found["agents"])
        return Measured(**{**found, "agents": agents})

    return Row(
        values["kind"],
        values["level"],
        values["subject"],
        measured(values["reward"]),
        tuple(measured(cost) for cost in values["costs"]),
        tuple(values["kernels"]),
    )


def measured(
    returns: Sequence[Float[np.ndarray, " episodes"]], confidence: float, seed: int
) -> Measured:
    """The mean over agents of their episodes, with percentile bootstrap intervals.

    Arguments:
        returns: of each agent's episodes.
        confidence: of the intervals.
        seed: of the resampling.
    """
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    means = [float(np.mean(each, dtype=float)) for each in returns]
    resampled = [
        bootstrap_means(each, np.random.default_rng([seed, i])) for i, each in enumerate(returns)
    ]
    intervals = [
        Interval(mean, *np.percentile(drawn, tails).tolist())
        for mean, drawn in zip(means, resampled, strict=True)
    ]
    low, high = np.percentile(np.mean(resampled, axis=0), tails).tolist()
    spread = float(np.std(means)) if len(means) > 1 else None
    return Measured(float(np.mean(means)), low, high, spread, tuple(intervals))


def bootstrap_means(
    values: Float[np.ndarray, " n"], generator: np.random.Generator, resamples: int = _RESAMPLES
) -> Float[np.ndarray, " resamples"]:
    """Means of samples drawn with replacement, each as large as the one at hand.

    Example:
        >>> drawn = bootstrap_means(np.array([0.0, 0.0, 1.0, 1.0]), np.random.default_rng(0))
        >>> drawn.shape, sorted(set(drawn.tolist()))
        ((2000,), [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    values = np.asarray(values, float)
    n = len(values)
    different, counts = np.unique(values, return_counts=True)
    if 4 * len(different) <= n:
        # How often each value is drawn is all that matters, and that is multinomial.
        return generator.multinomial(n, counts / n, size=resamples) @ different / n
    return np.array([values[generator.integers(0, n, n)].mean() for _ in range(resamples)])
