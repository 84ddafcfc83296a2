"""The result of `stress`: a record with its table, its critical radius and its JSON form."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Self

from holdfast._support.files import read_json, write_json
from holdfast.registry import imported
from holdfast.simulators.certificates.intervals import (
    VERDICT_TEXTS,
    ConfidenceInterval,
    Measured,
    text_table,
    verdict,
)

NOMINAL, ATTACK, SCALED = "nominal", "attack", "noise"
ACTIONS, PARAMETER = "action noise", "parameter"
DRAWN, LIKELY = "drawn", "most likely"


@dataclasses.dataclass(frozen=True)
class Row:
    """One test, with the measured value of every signal.

    Attributes:
        kind: "nominal", "attack", "noise", "action noise" or "parameter".
        level: radius of the attack, factor on the noise, standard deviation of the action noise, or
            value of the parameter; 0 for the nominal row.
        subject: name of the attacked signal or of the parameter; empty otherwise.
        reward: measured reward.
        costs: measured value of each cost, as a cost.
        kernels: for an attack, the kind of kernel that was strongest against each agent.
        actions: "drawn", as in training, or "most likely".
    """

    kind: str
    level: float
    subject: str
    reward: Measured
    costs: tuple[Measured, ...]
    kernels: tuple[str, ...] = ()
    actions: str = DRAWN

    @property
    def label(self) -> str:
        """The test in words."""
        test = {
            NOMINAL: "nominal",
            ATTACK: f"attack on {self.subject}, radius {self.level:g}",
            SCALED: f"noise × {self.level:g}",
            ACTIONS: f"noise {self.level:g} on actions",
            PARAMETER: f"{self.subject} = {self.level:g}",
        }[self.kind]
        return test if self.actions == DRAWN else f"{test}, {LIKELY} actions"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as values that JSON can hold."""

        def plain(value: Measured) -> dict[str, Any]:
            return {**vars(value), "agents": [each._asdict() for each in value.agents]}

        costs, kernels = [plain(cost) for cost in self.costs], list(self.kernels)
        return {**vars(self), "reward": plain(self.reward), "costs": costs, "kernels": kernels}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the row that `to_dict` wrote."""

        def read(value: Mapping[str, Any]) -> Measured:
            agents = tuple(ConfidenceInterval(**each) for each in value["agents"])
            return Measured(**{**value, "agents": agents})

        costs, kernels = tuple(map(read, values["costs"])), tuple(values["kernels"])
        return cls(
            **{**values, "reward": read(values["reward"]), "costs": costs, "kernels": kernels}
        )


class CriticalRadius(NamedTuple):
    """The largest radius at which one cost limit holds.

    Attributes:
        cost: name of the cost.
        radius: the radius; nan if the limit does not hold under the nominal kernel, or if no attack
            was run.
        beyond_tested: whether the limit holds at every tested radius; `radius` is then the largest.
    """

    cost: str
    radius: float
    beyond_tested: bool


@dataclasses.dataclass(frozen=True)
class Stress:
    """The result of `stress`. Printing it shows a table.

    Attributes:
        agents: labels of the agents.
        cost_names: names of the costs.
        limits: limits of the costs.
        rows: one row for each test, the nominal one first; with drawn and with most likely actions,
            one after the other, unless one of them was asked for.
        environment: the simulator, as `Environment.description` returns it.
        setup: the arguments of `stress`: episodes, restarts, kernels, confidence, seed and others.

    Example:
        >>> import holdfast as hf
        >>> model = hf.environments.n_chain(nodes=5)
        >>> agent = hf.train(model, "trpo", limit_on="discounted", iterations=1, batch_size=300)
        >>> found = hf.stress(agent, radii=None, episodes=200)
        >>> [row.label for row in found.rows], found.attacked
        (['nominal', 'nominal, most likely actions'], False)
        >>> hf.Stress.from_dict(found.to_dict()) == found
        True
        >>> print(str(found).splitlines()[-1])
        critical radius: unknown, no attack was run
    """

    agents: tuple[str, ...]
    cost_names: tuple[str, ...]
    limits: tuple[float, ...]
    rows: tuple[Row, ...]
    environment: Mapping[str, Any]
    setup: Mapping[str, Any]

    @property
    def attacked(self) -> bool:
        """Whether any adversary was trained."""
        return any(row.kind == ATTACK for row in self.rows)

    @property
    def critical_radius(self) -> float:
        """The largest radius at which every cost limit holds, under the attacks that were found.

        It is nan if a limit does not hold under the nominal kernel, or if no attack was run. It is inf
        if there is no cost.
        """
        radii = [each.radius for each in self.critical_radii]
        return math.nan if any(map(math.isnan, radii)) else min(radii, default=math.inf)

    @property
    def beyond_tested(self) -> bool:
        """Whether every limit holds at every tested radius; `critical_radius` is then the largest."""
        return all(each.beyond_tested for each in self.critical_radii)

    @property
    def critical_radii(self) -> tuple[CriticalRadius, ...]:
        """The critical radius of each cost.

        A limit holds if the upper end of the cost's confidence interval is at most the limit, under
        the strongest attack on that cost, with drawn and with most likely actions. Between tested radii
        the upper end is interpolated linearly in √radius, because a worst case first grows with
        √radius; interpolation in the radius itself would lie below it. The smallest radius at which
        the limit breaks counts.
        """
        limits = zip(self.cost_names, self.limits, strict=True)
        if not self.attacked:
            return tuple(CriticalRadius(name, math.nan, False) for name, _ in limits)
        return tuple(
            min(
                (_critical(name, limit, self.curve(name, actions=each)) for each in self.actions),
                # Not even the nominal kernel: less than any radius.
                key=lambda found: -1.0 if math.isnan(found.radius) else found.radius,
            )
            for name, limit in limits
        )

    @property
    def actions(self) -> tuple[str, ...]:
        """Which actions were played: "drawn", "most likely", or both, in the order of the rows."""
        return tuple(dict.fromkeys(row.actions for row in self.rows))

    def curve(
        self, signal: str, kind: str = ATTACK, subject: str = "", actions: str = ""
    ) -> list[tuple[float, Measured]]:
        """Return (level, value) of one signal by rising level, with the nominal value among them.

        Arguments:
            signal: "reward" or the name of a cost.
            kind: "attack" (on that signal), "noise", "action noise" or "parameter".
            subject: name of the parameter.
            actions: "drawn" or "most likely"; by default the first of them that was played.
        """
        rows = [row for row in self.rows if row.actions == (actions or self.rows[0].actions)]
        nominal_level = {ATTACK: 0.0, SCALED: 1.0, ACTIONS: 0.0}.get(kind)
        if nominal_level is None:
            nominal_level = self.environment["parameters"][subject]
        subject = signal if kind == ATTACK else subject

        def value(row: Row) -> Measured:
            return row.reward if signal == "reward" else row.costs[self.cost_names.index(signal)]

        points = {
            row.level: value(row) for row in rows if row.kind == kind and row.subject == subject
        }
        points.setdefault(nominal_level, value(rows[0]))
        return sorted(points.items())

    def only(self, agent: str) -> Stress:
        """Return the result for one of the agents."""
        i = self.agents.index(agent)

        def alone(value: Measured) -> Measured:
            return Measured(*value.agents[i], None, (value.agents[i],))

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
        """Return the result as values that JSON can hold; `from_dict` reads them."""
        return {
            "critical_radius": self.critical_radius,
            "critical_radii": [each._asdict() for each in self.critical_radii],
            **{name: list(getattr(self, name)) for name in ("agents", "cost_names", "limits")},
            "environment": dict(self.environment),
            "setup": dict(self.setup),
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that `to_dict` wrote; critical radii are computed again from the rows."""
        return cls(
            **{name: tuple(values[name]) for name in ("agents", "cost_names", "limits")},
            rows=tuple(map(Row.from_dict, values["rows"])),
            environment=values["environment"],
            setup=values["setup"],
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the result as JSON; the file appears complete or not at all."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the result that `save` wrote.

        Raises:
            ValueError: the file is not a saved result; the message names the path.
        """
        found = read_json(path, "a result of stress")
        try:
            return cls.from_dict(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: not a result of stress ({error!r})") from error

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw reward and costs against the radius of the attacks, the noise and the parameters."""
        imported("holdfast.report.stress:plot_stress")(path, {", ".join(self.agents): self})

    def __str__(self) -> str:
        limits = [f"{n} ≤ {c:g}" for n, c in zip(self.cost_names, self.limits, strict=True)]
        table = [("", "reward", *limits, "")]
        for row in self.rows:
            found = {verdict(cost, c) for cost, c in zip(row.costs, self.limits, strict=True)}
            worst = max(found, key=["", "undecided", "violated"].index, default="")
            table.append((row.label, str(row.reward), *map(str, row.costs), VERDICT_TEXTS[worst]))
        episodes, confidence = self.setup["episodes"], self.setup["confidence"]
        return "\n".join(
            [
                f"{self.environment['name']}, {', '.join(self.agents)}: mean over {episodes:,} "
                f"episodes [{100 * confidence:g} % interval]",
                *text_table(table),
                *self._critical_lines(),
            ]
        )

    def _critical_lines(self) -> list[str]:
        if self.cost_names and not self.attacked:
            return ["critical radius: unknown, no attack was run"]
        lines = []
        for cost, radius, beyond_tested in self.critical_radii:
            text = (
                f"at least {radius:.3g}, the largest tested" if beyond_tested else f"{radius:.3g}"
            )
            if math.isnan(radius):
                text = "none, the limit does not hold under the nominal kernel"
            lines.append(f"critical radius of {cost}: {text}")
        return lines


def _critical(name: str, limit: float, curve: Sequence[tuple[float, Measured]]) -> CriticalRadius:
    """Return the critical radius from (radius, cost), by rising radius from 0."""
    (before, below), *rest = ((radius, cost.high) for radius, cost in curve)
    if not below <= limit:
        return CriticalRadius(name, math.nan, False)
    for radius, high in rest:
        if not high <= limit:
            share = (limit - below) / (high - below)
            root = math.sqrt(before) + share * (math.sqrt(radius) - math.sqrt(before))
            return CriticalRadius(name, root**2, False)
        before, below = radius, high
    return CriticalRadius(name, before, True)
