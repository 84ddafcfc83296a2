"""Options that state rules: for a model that is made from a log, and for a model file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from holdfast.cli._shared import option

if TYPE_CHECKING:
    import numpy as np

    from holdfast.model import Constraint, RobustCMDP

# Files of other tools, which name their rewards and have neither discount nor constraints.
_FOREIGN = (".umb", ".drn", ".tra")


@dataclasses.dataclass(frozen=True)
class RuleOptions:
    """Constraints of the policy, and the horizon."""

    at_most: Annotated[tuple[str, ...], option("NAME=LIMIT[/step] ...", "none")] = ()
    """Largest accepted sums of signals; with /step, the largest accepted averages per step."""
    at_least: Annotated[tuple[str, ...], option("NAME=LIMIT[/step] ...", "none")] = ()
    """Smallest accepted sums of signals, likewise."""
    reach_at_most: Annotated[tuple[str, ...], option("STATE,...[/AVOID,...]=P ...", "none")] = ()
    """Largest accepted probability to reach states, or the states of a label, before those to avoid."""
    reach_at_least: Annotated[tuple[str, ...], option("STATE,...[/AVOID,...]=P ...", "none")] = ()
    """Smallest accepted probability, likewise."""
    never: Annotated[tuple[str, ...], option("STATE/ACTION ...", "none")] = ()
    """Actions that are not allowed."""
    horizon: Annotated[int | None, arg(metavar="STEPS", help_behavior_hint="(default: none)")] = (
        None
    )
    """Horizon: number of steps."""

    def constraints(self) -> list[Constraint]:
        """Return the rules on signals and on states.

        Example:
            >>> RuleOptions(at_most=("downtime=1/step",), reach_at_most=("broken=0.05",)).constraints()
            [downtime per step ≤ 1, reach broken ≤ 5 %]
        """
        import holdfast as hf

        found: list[Constraint] = []
        for argument, make in (("at_most", hf.at_most), ("at_least", hf.at_least)):
            for name, limit in pairs(argument, getattr(self, argument)).items():
                value, slash, unit = limit.partition("/")
                if slash and unit != "step":
                    raise ValueError(f"{argument}: expected LIMIT or LIMIT/step, got {limit!r}")
                per: Any = "step" if slash else "total"
                found.append(make(name, number(argument, value), per=per, name=name))
        for argument, sense in (("reach_at_most", "at_most"), ("reach_at_least", "at_least")):
            for states, probability in pairs(argument, getattr(self, argument)).items():
                target, _, avoided = states.partition("/")
                limit_: dict[str, Any] = {sense: number(argument, probability)}
                found.append(hf.reach(_states(target), avoid=_states(avoided), **limit_))
        return found

    def apply(self, model: RobustCMDP, **changes: Any) -> RobustCMDP:
        """Return a model with these rules on states and actions, and other changes."""
        if self.horizon is not None:
            changes["horizon"] = self.horizon
        if self.never:
            changes["allowed"] = self._allowed(model)
        return model.replace(**changes) if changes else model

    def _allowed(self, model: RobustCMDP) -> np.ndarray:
        import numpy as np

        from holdfast.model.names import index_of

        shape = model.states, model.actions
        mask = np.ones(shape, bool) if model.allowed is None else np.array(model.allowed)
        for pair in self.never:
            state, slash, action = pair.rpartition("/")
            if not slash:
                raise ValueError(f"never: expected STATE/ACTION, got {pair!r}")
            row = index_of("never", _named(state), model.state_names, model.states)
            column = index_of("never", _named(action), model.action_names, model.actions, "action")
            mask[..., row, column] = False
        return mask


@dataclasses.dataclass(frozen=True)
class ModelOptions(RuleOptions):
    """Rules added to those of the model, and properties that files of other tools do not contain."""

    reward: Annotated[str, option("NAME", "the file's first")] = ""
    """Reward structure to maximise, for a file of another tool."""
    discount: Annotated[float | None, option("GAMMA", "the model's own, or 0.99")] = None
    """Discount in place of the model's own."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were given."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v not in ("", None, ())}

    def read(self, given: str) -> RobustCMDP:
        """Return a model by its name, from a file or from the folder of a run, with these rules.

        Raises:
            ValueError: there is no such model, or a rule does not fit it.
        """
        from holdfast.model import RobustCMDP
        from holdfast.report.solution import read_model

        own: dict[str, Any] = {} if self.discount is None else {"discount": self.discount}
        if Path(given).suffix.lower() in _FOREIGN and self.to_dict():
            own |= {"reward": self.reward or None, "horizon": self.horizon}
            return self.apply(RobustCMDP.load(given, constraints=self.constraints(), **own))
        if self.reward:
            raise ValueError(f"reward: it is for files of other tools, got {self.reward!r}")
        model, rules = read_model(given), self.constraints()
        if rules:
            own["constraints"] = [*model.constraints, *rules]
        return self.apply(model, **own)


def pairs(argument: str, given: tuple[str, ...]) -> dict[str, str]:
    """Return NAME=VALUE arguments as a mapping.

    Example:
        >>> pairs("signals", ("profit=-cost",))
        {'profit': '-cost'}
    """
    found: dict[str, str] = {}
    for pair in given:
        name, _, value = pair.partition("=")
        if not (name and value):
            raise ValueError(f"{argument}: expected NAME=VALUE, got {pair!r}")
        if name in found:
            raise ValueError(f"{argument}: {name} is given twice")
        found[name] = value
    return found


def number(argument: str, text: str) -> float:
    """Return a string as a number, or raise a ValueError that names the argument."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{argument}: expected a number, got {text!r}") from None


def _states(text: str) -> list[int | str]:
    return [_named(part) for part in text.split(",") if part]


def _named(text: str) -> int | str:
    """Return the index or the name of a state or an action."""
    return int(text) if text.isdigit() else text
