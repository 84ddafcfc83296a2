"""What has been proved about a policy in a simulator."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

from holdfast._support.files import write_json
from holdfast.simulators.certificates.intervals import text_table


@dataclasses.dataclass(frozen=True)
class CertifiedCost:
    """What has been proved about one cost.

    Attributes:
        name: name of the cost.
        limit: its limit.
        found: lower confidence limit of the cost under the strongest attack: the worst case is at least
            this.
        upper: the cost does not exceed this under any kernel of the set; inf if nothing was proved.
        nominal: mean under the nominal kernel.
        share: for a box of parameters, a limit of the share of episodes that cost more than the limit;
            otherwise None. It says nothing about the worst case.
    """

    name: str
    limit: float
    found: float
    upper: float
    nominal: float
    share: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the cost is proved to be within its limit under every kernel of the set."""
        return self.upper <= self.limit

    @property
    def broken(self) -> bool:
        """Whether an attack is proved to exceed the limit."""
        return self.found > self.limit


@dataclasses.dataclass(frozen=True)
class CertifiedReward:
    """What has been proved about the reward.

    Attributes:
        found: upper confidence limit of the reward under the strongest attack: the worst case is at most
            this.
        lower: the reward does not fall below this under any kernel of the set; −inf without a range.
        nominal: mean under the nominal kernel.
    """

    found: float
    lower: float
    nominal: float


@dataclasses.dataclass(frozen=True)
class SimulatorCertificate:
    """The result of `certify` for a simulator. Printing it shows a table and the assumptions.

    Attributes:
        environment: name of the simulator.
        policy: name of the policy.
        method: "once an episode", "every step" or "box of parameters".
        radius: radius of the KL ball around the disturbance; nan for a box.
        confidence: probability with which all statements hold together.
        costs: the costs, each with `found`, `upper`, `limit` and `holds`.
        reward: the reward, with `found` and `lower`.
        assumptions: everything that the statements rest on, one sentence each.
        setup: sample sizes, ranges, shares of the risk and the multipliers.

    Example:
        >>> import holdfast as hf
        >>> def right(observation):
        ...     return 1
        >>> env = hf.environments.TableSimulator(hf.environments.n_chain(nodes=3), horizon=3)
        >>> proof = hf.certify(
        ...     env, right, radius=0.02, cost_limit=-1, confidence=0.9, episodes=500, draws=8, updates=10
        ... )
        >>> bool(proof.costs[0].found <= proof.costs[0].upper), bool(proof.costs[0].holds)
        (True, True)
    """

    environment: str
    policy: str
    method: str
    radius: float
    confidence: float
    costs: tuple[CertifiedCost, ...]
    reward: CertifiedReward
    assumptions: tuple[str, ...]
    setup: dict[str, Any]

    @property
    def verdict(self) -> str:
        """The verdict: "holds", "broken" if an attack exceeds a limit, otherwise "undecided"."""
        if any(cost.broken for cost in self.costs):
            return "broken"
        return "holds" if all(cost.holds for cost in self.costs) else "undecided"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain values; `from_dict` reads them, also after `save`."""
        costs = [{**dataclasses.asdict(cost), "holds": cost.holds} for cost in self.costs]
        fields = {**vars(self), "costs": costs, "reward": dataclasses.asdict(self.reward)}
        return {**fields, "verdict": self.verdict, "assumptions": list(self.assumptions)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the certificate that `to_dict` wrote; infinities may be text, and nan None."""

        def number(value: Any) -> Any:
            return math.nan if value is None else float(value)

        def cost(each: Mapping[str, Any]) -> CertifiedCost:
            numbers = {name: number(each[name]) for name in ("limit", "found", "upper", "nominal")}
            return CertifiedCost(name=each["name"], **numbers, share=each["share"])

        return cls(
            **{name: values[name] for name in ("environment", "policy", "method", "setup")},
            **{name: number(values[name]) for name in ("radius", "confidence")},
            costs=tuple(map(cost, values["costs"])),
            reward=CertifiedReward(**{k: number(v) for k, v in values["reward"].items()}),
            assumptions=tuple(values["assumptions"]),
        )

    def save(self, path: str | PathLike[str]) -> None:
        """Write the certificate as JSON; the file appears complete or not at all."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Return the certificate that `save` wrote.

        Raises:
            ValueError: the file is not a saved certificate; the message names the path.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a certificate of a simulator ({error!r})") from error

    def __str__(self) -> str:
        box = self.method == "box of parameters"
        head = ["", "nominal", "found", "proved", "limit", ""]
        rows: list[tuple[str, ...]] = [tuple(head)]
        for cost in self.costs:
            proved = f"≤ {cost.upper:.4g}" if math.isfinite(cost.upper) else "nothing"
            verdict = "broken" if cost.broken else "holds" if cost.holds else "undecided"
            if cost.share is not None:
                proved, verdict = f"≤ {100 * cost.share:.3g} % over", ""
            values = (f"{cost.nominal:.4g}", f"≥ {cost.found:.4g}", proved, f"{cost.limit:.4g}")
            rows.append((cost.name, *values, verdict))
        lower = f"≥ {self.reward.lower:.4g}" if math.isfinite(self.reward.lower) else "nothing"
        found = f"≤ {self.reward.found:.4g}" if math.isfinite(self.reward.found) else ""
        rows.append(("reward", f"{self.reward.nominal:.4g}", found, lower, "", ""))
        about = self.method if box else f"KL radius {self.radius:g}, {self.method}"
        title = (
            f"{self.environment}, {self.policy}: {about}, confidence {100 * self.confidence:g} %"
        )
        return "\n".join([title, *text_table(rows), *(f"- {each}" for each in self.assumptions)])

    __repr__ = __str__
