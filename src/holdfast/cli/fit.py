"""`holdfast fit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from holdfast.cli._rules import RuleOptions, number, pairs
from holdfast.cli._shared import check_writable, option, refused


@dataclasses.dataclass(frozen=True)
class FitCommand:
    """Make a model from a log: states, actions, a set of kernels with a confidence, and signals.

    LOG is a CSV or Parquet file with one row for each step, or the id of a local Minari dataset with
    discrete spaces. The next state is a column (--next), or the state in the next row of the episode.
    With the given confidence the true kernel is in the set and every signal's true mean is within its
    limits. The reward is the lower limit of its signal, a cost the upper limit. Prints a summary of the
    data, with the pairs that were never visited, and writes a model file for holdfast solve.

    Examples:
      holdfast fit log.csv --state condition --action decision --next next_condition
        --signal profit=profit downtime=hours --at-most downtime=10 --episode machine --out model.npz
      holdfast fit log.csv --state condition --action decision --time week --episode machine
        --signal profit=profit downtime=hours --horizon 52 --reach-at-most broken=0.05
        --at-most downtime=1/step --never critical/run --out model.npz
      holdfast fit log.csv --state condition load --action decision --time week --episode machine
        --bins load=50,80 --signal profit=-cost --range profit=-100,0 --out model.npz

    Exit codes: 0 done, 2 bad input.
    """

    log: Annotated[Positional[str], arg(metavar="LOG")]
    """CSV or Parquet file, or the id of a Minari dataset."""
    state: Annotated[tuple[str, ...], option("COLUMN ...", "none")] = ()
    """Column of the state, or several."""
    action: Annotated[tuple[str, ...], option("COLUMN ...", "none")] = ()
    """Column of the action, or several."""
    next_state: Annotated[
        tuple[str, ...],
        arg(metavar="COLUMN ...", aliases=["--next"], help_behavior_hint="(default: the next row)"),
    ] = ()
    """Column of the next state, or as many as for the state."""
    signals: Annotated[
        tuple[str, ...],
        arg(metavar="NAME=COLUMN ...", aliases=["--signal"], help_behavior_hint="(default: none)"),
    ] = ()
    """Columns of numbers; NAME=-COLUMN changes the sign."""
    reward: Annotated[str, option("NAME", "the first signal")] = ""
    """Signal to maximise."""
    rules: OmitArgPrefixes[RuleOptions] = dataclasses.field(default_factory=RuleOptions)
    episode: Annotated[str, option("COLUMN", "one episode")] = ""
    """Column of the episode, such as the machine."""
    time: Annotated[str, option("COLUMN", "the order of the rows")] = ""
    """Column of the time, numbers or ISO dates."""
    terminated: Annotated[str, option("COLUMN", "none")] = ""
    """Column of yes and no: the episode ends after this row."""
    states: Annotated[tuple[str, ...], option("NAME ...", "those in the log")] = ()
    """All states there are."""
    actions: Annotated[tuple[str, ...], option("NAME ...", "those in the log")] = ()
    """All actions there are."""
    possible: Annotated[tuple[str, ...], option("STATE[/ACTION]=NEXT,...", "all")] = ()
    """Next states that are possible at all, known without the log."""
    bins: Annotated[tuple[str, ...], option("COLUMN=N|A,B,...", "none")] = ()
    """For a numeric column, a number of bins of equal width, or their inner limits."""
    ranges: Annotated[
        tuple[str, ...],
        arg(metavar="NAME=LOW,HIGH", aliases=["--range"], help_behavior_hint="(default: as seen)"),
    ] = ()
    """Smallest and largest possible value of signals."""
    exact: Annotated[tuple[str, ...], option("NAME ...", "none")] = ()
    """Signals that are a fixed function of state and action."""
    initial: Annotated[str, option("STATE", "as episodes start, or uniform")] = ""
    """Initial state."""
    discount: Annotated[float | None, option("GAMMA", "0.95, or 1 with a horizon")] = None
    """Discount of the model."""
    confidence: Annotated[float, arg(metavar="P")] = 0.95
    """Probability that the true kernel and means are inside."""
    sampling: Annotated[str, arg(metavar="adaptive|fixed")] = "adaptive"
    """Whether the numbers of visits may depend on the outcomes, as in a log of a running system."""
    uncertainty: Annotated[str, arg(metavar="NAME", aliases=["--set"])] = "interval"
    """Kind of set: interval, kl or total-variation."""
    out: Annotated[Path, arg(metavar="FILE", aliases=["-o"])] = Path("model.npz")
    """Model file to write."""

    def run(self) -> int:
        """Read the log, print its summary and write the model."""
        import holdfast as hf

        with refused():
            check_writable(self.out.parent)
            model = hf.from_log(
                self.log,
                state=self.state or None,
                action=self.action or None,
                next_state=self.next_state or None,
                signals=pairs("signals", self.signals),
                reward=self.reward or None,
                constraints=self.rules.constraints(),
                **{name: getattr(self, name) or None for name in _OPTIONAL},
                possible=_possible(self.possible) or None,
                bins={k: _bins(v) for k, v in pairs("bins", self.bins).items()},
                ranges={k: _numbers("ranges", v) for k, v in pairs("ranges", self.ranges).items()},
                exact=self.exact,
                discount=self._discount(),
                horizon=self.rules.horizon,
                confidence=self.confidence,
                sampling=self.sampling,  # type: ignore[arg-type]
                uncertainty=self.uncertainty,
            )
            model = self.rules.apply(model)
            model.save(self.out)
        print(model.data)
        print(model)
        print(f"written to {self.out}")
        return 0

    def _discount(self) -> float:
        if self.discount is not None:
            return self.discount
        return 0.95 if self.rules.horizon is None else 1.0


_OPTIONAL = ("episode", "time", "terminated", "states", "actions", "initial")


def _possible(given: tuple[str, ...]) -> dict[Any, list[str]]:
    """Return possible next states by state, or by state and action.

    Example:
        >>> _possible(("broken=new,broken", "worn/replace=new"))
        {'broken': ['new', 'broken'], ('worn', 'replace'): ['new']}
    """
    found: dict[Any, list[str]] = {}
    for key, value in pairs("possible", given).items():
        state, slash, action = key.partition("/")
        found[(state, action) if slash else state] = value.split(",")
    return found


def _numbers(argument: str, text: str) -> Any:
    return tuple(number(argument, part) for part in text.split(","))


def _bins(text: str) -> Any:
    return int(text) if text.isdigit() else _numbers("bins", text)
