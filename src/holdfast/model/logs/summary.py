"""What a log contained and what was assumed about it, for people and for the report page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

# Pairs that the text lists before it only counts the rest.
_MOST_LISTED = 8


@dataclasses.dataclass(frozen=True, repr=False)
class SignalSummary:
    """A signal in a log.

    Attributes:
        column: the column.
        range: smallest and largest possible value.
        declared: whether the range was declared; otherwise it is that of the log.
        exact: whether the signal was declared to be a fixed function of state and action.
        mean: (S, A) means; the middle of the range where there is no observation.
        lower: (S, A) lower confidence limits.
        upper: (S, A) upper confidence limits.
    """

    column: str
    range: tuple[float, float]
    declared: bool
    exact: bool
    mean: list[list[float]]
    lower: list[list[float]]
    upper: list[list[float]]


@dataclasses.dataclass(frozen=True, repr=False)
class LogSummary:
    """The log that a model comes from: `model.data`.

    Attributes:
        source: name of the log.
        rows: number of rows.
        transitions: number of transitions that were counted.
        episodes: number of episodes.
        left_out: numbers of rows that are no transition, by reason.
        visits: (S, A) numbers of visits.
        never_visited: (state, action) pairs without a visit, by name.
        signals: signals by name.
        confidence: probability that the true kernel and the true means are all inside their limits.
        kernel_risk: part of 1 − confidence for the transitions.
        signal_risk: part of it for each signal that is not exact.
        sampling: "adaptive" or "fixed", see `from_counts`.
        uncertainty: name of the uncertainty set.
        initial: where the initial distribution comes from.
        assumptions: what has to be true for the confidence to hold, in sentences.

    Example:
        >>> import holdfast as hf
        >>> log = {"s": ["new", "new", "worn"] * 20, "a": ["run"] * 60, "t": ["new", "worn", "new"] * 20}
        >>> model = hf.from_log(log, state="s", action="a", next_state="t", discount=0.9)
        >>> print(model.data.transitions, model.data.visits)
        60 [[40], [20]]
    """

    source: str
    rows: int
    transitions: int
    episodes: int
    left_out: dict[str, int]
    visits: list[list[int]]
    never_visited: list[tuple[str, str]]
    signals: dict[str, SignalSummary]
    confidence: float
    kernel_risk: float
    signal_risk: float
    sampling: str
    uncertainty: str
    initial: str
    assumptions: list[str]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LogSummary:
        """Return the summary in the header of a model file."""
        signals = {name: SignalSummary(**each) for name, each in given["signals"].items()}
        return cls(**{**given, "signals": signals})

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain numbers and texts."""
        return dataclasses.asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """Return names with values as text, in the order of a page."""
        visited = [n for row in self.visits for n in row if n]
        pairs = sum(map(len, self.visits))
        per_signal = f", {self.signal_risk:.3g} for each signal" if self.signal_risk else ""
        found = [
            ("log", self.source),
            ("rows", f"{self.rows:,}"),
            ("transitions", f"{self.transitions:,} in {_several(self.episodes, 'episode')}"),
            *((f"left out: {reason}", f"{n:,}") for reason, n in self.left_out.items()),
            ("pairs visited", f"{len(visited)} of {pairs}"),
            ("visits of a visited pair", f"{min(visited):,} to {max(visited):,}"),
            ("confidence", f"{self.confidence:g}, {self.sampling} sampling"),
            ("risk", f"{self.kernel_risk:.3g} for the transitions{per_signal}"),
            ("uncertainty set", self.uncertainty),
            ("initial distribution", self.initial),
        ]
        for name, signal in self.signals.items():
            low, high = signal.range
            kind = "exact" if signal.exact else f"from {low:g} to {high:g}"
            origin = "" if signal.exact or signal.declared else ", as seen in the log"
            found.append((f"signal {name}", f"column {signal.column}, {kind}{origin}"))
        return found

    def unvisited_in_words(self) -> str:
        """Return the pairs without a visit and what nature may do there; empty if there are none."""
        if not self.never_visited:
            return ""
        pairs = _listed(f"{state} / {action}" for state, action in self.never_visited)
        ends = (
            f", and the worst values of {_listed(self.signals)} within "
            f"{'its range' if len(self.signals) == 1 else 'their ranges'}"
            if self.signals
            else ""
        )
        return f"never visited: {pairs}. Every possible next state is allowed there{ends}."

    def __str__(self) -> str:
        facts = self.facts()
        width = max(len(name) for name, _ in facts)
        lines = [f"{name:{width}}  {value}" for name, value in facts]
        lines += filter(None, [self.unvisited_in_words()])
        return "\n".join([*lines, *(f"assumed: {each}" for each in self.assumptions)])

    __repr__ = __str__


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"
