"""DRN files, the explicit format of Storm: MDPs, interval MDPs and Markov chains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from holdfast.model.explicit import ExplicitModel

# Types of models with discrete time and one player. Others have rates or partial observations.
_TYPES = ("mdp", "dtmc")
# Rewards in brackets; in an interval model each of them is an interval itself.
_REWARDS = r"(?:\[((?:\[[^\[\]]*\]|[^\[\]])*)\])?"
_STATE = re.compile(rf"state\s+(\d+)\s*{_REWARDS}\s*(.*)")
_ACTION = re.compile(rf"action\s+(\S+)\s*{_REWARDS}\s*$")
_REWARD = re.compile(r"\[([^\[\],]+),([^\[\],]+)\]|([^\[\],\s]+)")
_BRANCH = re.compile(r"(\d+)\s*:\s*(?:\[([^,\]]+),([^\]]+)\]|(\S+))\s*$")
_LABEL = re.compile(r'"([^"]*)"|(\S+)')


def read_drn(path: Path) -> ExplicitModel:
    """Return the model in a DRN file. The label `init` marks the initial states.

    Raises:
        ValueError: a line cannot be read; the message names the line.
    """
    lines = _lines(path)
    header = _header(lines)
    kind = header.get("type", [""])[0].lower()
    if kind not in _TYPES:
        raise ValueError(f"its type is {kind!r}, expected MDP or DTMC")
    reward_names = " ".join(header.get("reward_models", [])).split()
    reader = _Reader(reward_names)
    for number, line in lines:
        try:
            reader.read(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return reader.model(header.get("nr_states", []))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Return the numbers and texts of the lines, without comments."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("//"):
            yield number, text


def _header(lines: Iterator[tuple[int, str]]) -> dict[str, list[str]]:
    """Return the entries before `@model`: the words after their name, or in the lines below it."""
    header: dict[str, list[str]] = {}
    name = ""
    for _, line in lines:
        if line == "@model":
            return header
        if line.startswith("@"):
            name, _, rest = line[1:].partition(":")
            name = name.strip()
            header[name] = [rest.strip()] if rest.strip() else []
        elif name:
            header[name].append(line)
    raise ValueError("it has no line '@model'")


class _Reader:
    """Collects the states, choices and branches of a file, line by line."""

    def __init__(self, rewards: list[str]) -> None:
        self.rewards = rewards
        self.states = 0
        self.choice_state: list[int] = []
        self.choice_name: list[str] = []
        self.branch_choice: list[int] = []
        self.target: list[int] = []
        self.bounds: list[tuple[float, float]] = []
        self.labels: dict[str, list[int]] = {}
        self.paid: list[list[float]] = []
        self.state_paid: list[float] = []
        self.choice_paid: list[float] = []

    def read(self, line: str) -> None:
        """Add a line."""
        if match := _STATE.fullmatch(line):
            if int(match[1]) != self.states:
                raise ValueError(f"expected state {self.states}, got {match[1]}")
            self.states += 1
            self.state_paid = self._numbers(match[2])
            for quoted, plain in _LABEL.findall(match[3]):
                self.labels.setdefault(quoted or plain, []).append(self.states - 1)
        elif match := _ACTION.fullmatch(line):
            if not self.states:
                raise ValueError("an action before the first state")
            # Storm writes numbers, or "__NOLABEL__", where actions have no name.
            self.choice_name.append("" if match[1].isdigit() or "NOLABEL" in match[1] else match[1])
            self.choice_state.append(self.states - 1)
            self.choice_paid = self._numbers(match[2])
        elif match := _BRANCH.fullmatch(line):
            if not self.choice_state or self.choice_state[-1] != self.states - 1:
                raise ValueError("a transition before the state's first action")
            low, high = (match[2], match[3]) if match[2] else (match[4], match[4])
            self.bounds.append((_value(low), _value(high)))
            self.target.append(int(match[1]))
            self.branch_choice.append(len(self.choice_state) - 1)
            pairs = zip(self.state_paid, self.choice_paid, strict=True)
            self.paid.append([a + b for a, b in pairs])
        else:
            raise ValueError(f"cannot be read: {line!r}")

    def model(self, stated: list[str]) -> ExplicitModel:
        """Return the model, if it has the stated number of states."""
        if stated and stated[0] != str(self.states):
            raise ValueError(f"it says {stated[0]} states, got {self.states}")
        bounds = np.array(self.bounds, float).reshape(-1, 2)
        paid = np.array(self.paid, float).reshape(-1, len(self.rewards))
        labels = {name: states for name, states in self.labels.items() if name != "init"}
        return ExplicitModel(
            states=self.states,
            choice_state=np.array(self.choice_state, int),
            choice_name=self.choice_name,
            branch_choice=np.array(self.branch_choice, int),
            target=np.array(self.target, int),
            lower=bounds[:, 0],
            upper=bounds[:, 1],
            rewards={name: paid[:, i] for i, name in enumerate(self.rewards)},
            labels=labels,
            initial=self.labels.get("init", [0]),
        )

    def _numbers(self, text: str | None) -> list[float]:
        """Return one number for each reward; zeros if there are none in the line."""
        if text is None or not text.strip():
            return [0.0] * len(self.rewards)
        found = [(low or plain, high or plain) for low, high, plain in _REWARD.findall(text)]
        if any(_value(low) != _value(high) for low, high in found):
            raise ValueError(f"rewards that are intervals cannot be used, got {text!r}")
        values = [_value(low) for low, _ in found]
        if len(values) != len(self.rewards):
            raise ValueError(f"expected {len(self.rewards)} rewards, got {len(values)}")
        return values


def _value(text: str) -> float:
    """Return a number or a fraction such as 1/3."""
    above, slash, below = text.strip().partition("/")
    if not slash:
        return float(above)
    if float(below) == 0:
        raise ValueError(f"a division by zero in {text!r}")
    return float(above) / float(below)
