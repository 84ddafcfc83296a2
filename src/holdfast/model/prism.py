"""Explicit files of PRISM: `.tra`, with the `.lab`, `.srew` and `.trew` files of the same name.

The formats are described in the appendix "Explicit Model Files" of PRISM's manual. MDPs, interval MDPs
and Markov chains are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from holdfast.model.explicit import ExplicitModel

_LABEL = re.compile(r'(\d+)="([^"]*)"')
_COMMENT = re.compile(r'#\s*Reward structure\s*"?([^"]*)"?', re.IGNORECASE)


def read_prism(path: Path) -> ExplicitModel:
    """Return the model in a `.tra` file and in the files beside it.

    Reward files are `NAME.srew` and `NAME.trew`; several structures are `NAME1.srew`, `NAME2.srew`, …
    as PRISM numbers them.

    Raises:
        ValueError: a line cannot be read; the message names the file and the line.
    """
    header, rows = _lines(path)
    if len(header) not in (2, 3):
        raise ValueError(f"{path.name}: the first line has {len(header)} numbers, expected 2 or 3")
    states, chain = int(header[0]), len(header) == 2
    source, choice, target, lower, upper = [], [], [], [], []
    names: dict[tuple[int, int], str] = {}
    for number, words in rows:
        with _line(path, number):
            s, k = int(words[0]), 0 if chain else int(words[1])
            rest = words[1:] if chain else words[2:]
            target.append(int(rest[0]))
            low, high, action = _probability(rest[1:])
            source.append(s)
            choice.append(k)
            lower.append(low)
            upper.append(high)
            names[s, k] = action
    _check_count(path, len(source), int(header[-1]), "transitions")
    # Choices in the order of states; the numbers of choices in the file need not be consecutive.
    keys = sorted(set(zip(source, choice, strict=True)))
    if len({s for s, _ in keys}) < states:
        missing = next(s for s in range(states) if s not in {key[0] for key in keys})
        raise ValueError(f"{path.name}: state {missing} has no transition")
    if not chain:
        _check_count(path, len(keys), int(header[1]), "choices")
    place = {key: i for i, key in enumerate(keys)}
    branch = np.array([place[key] for key in zip(source, choice, strict=True)], int)
    order = np.argsort(branch, kind="stable")
    labels = _labels(path.with_suffix(".lab"))
    where = {
        "source": np.array(source, int)[order],
        "choice": np.array(choice, int)[order],
        "target": np.array(target, int)[order],
    }
    return ExplicitModel(
        states=states,
        choice_state=np.array([s for s, _ in keys], int),
        choice_name=[names[key] for key in keys],
        branch_choice=branch[order],
        target=where["target"],
        lower=np.array(lower)[order],
        upper=np.array(upper)[order],
        rewards=_rewards(path, where, chain),
        labels={name: found for name, found in labels.items() if name != "init"},
        initial=labels.get("init", [0]),
    )


def _probability(words: list[str]) -> tuple[float, float, str]:
    """Return the bounds of a probability and the action after it: `0.5 a` or `[0.4,0.6] a`."""
    text = " ".join(words)
    if text.startswith("["):
        inside, _, action = text[1:].partition("]")
        low, high = inside.split(",")
        return float(low), float(high), action.strip()
    return float(words[0]), float(words[0]), " ".join(words[1:])


def _rewards(path: Path, where: dict[str, np.ndarray], chain: bool) -> dict[str, np.ndarray]:
    """Return the sum of state and transition rewards for each branch, by structure."""
    found: dict[str, np.ndarray] = {}
    keys = ("source", "target") if chain else ("source", "choice", "target")
    for suffix in (".srew", ".trew"):
        on: dict[tuple[int, ...], list[int]] = {}
        used = keys if suffix == ".trew" else ("source",)
        for b, key in enumerate(zip(*(where[name].tolist() for name in used), strict=True)):
            on.setdefault(key, []).append(b)
        for file in sorted(path.parent.glob(f"{glob_safe(path.stem)}*{suffix}")):
            number = file.stem[len(path.stem) :]
            if number and not number.isdigit():
                continue
            name = _structure_name(file) or f"reward{number}"
            values = found.setdefault(name, np.zeros(len(where["target"])))
            _, rows = _lines(file)
            for line, words in rows:
                with _line(file, line):
                    key = tuple(int(word) for word in words[: len(used)])
                    if key not in on:
                        raise ValueError(
                            f"there is no such {'state' if len(used) == 1 else 'transition'}"
                        )
                    values[on[key]] += float(words[len(used)])
    return found


def glob_safe(text: str) -> str:
    """Return a string with the characters escaped that have a meaning in a glob pattern."""
    return re.sub(r"([\[\]*?])", r"[\1]", text)


def _structure_name(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        match = _COMMENT.match(opened.readline())
    return match[1].strip() if match else ""


def _labels(path: Path) -> dict[str, list[int]]:
    if not path.is_file():
        return {}
    lines = path.read_text("utf-8").splitlines()
    names = {int(i): name for i, name in _LABEL.findall(lines[0] if lines else "")}
    if not names:
        raise ValueError(f"{path.name}: the first line names no labels")
    found: dict[str, list[int]] = {name: [] for name in names.values()}
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            with _line(path, number):
                state, _, numbers = line.partition(":")
                for each in numbers.split():
                    found[names[int(each)]].append(int(state))
    return found


def _lines(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the words of the first line, and the number and the words of every other one."""
    lines = [
        (number, words)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if (words := line.split()) and not line.startswith("#")
    ]
    if not lines:
        raise ValueError(f"{path.name}: it is empty")
    header = lines[0][1]
    if not all(word.isdigit() for word in header):
        raise ValueError(
            f"{path.name}: expected numbers in the first line, got {' '.join(header)!r}"
        )
    return header, iter(lines[1:])


def _check_count(path: Path, found: int, stated: int, noun: str) -> None:
    if found != stated:
        raise ValueError(f"{path.name}: the first line says {stated} {noun}, got {found}")


class _line:  # noqa: N801  (used as a verb: with _line(path, 3))
    """Adds the file and the line to an error about a line that cannot be read."""

    def __init__(self, path: Path, number: int) -> None:
        self.where = f"{path.name}, line {number}"

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, _: object) -> None:
        if isinstance(error, ValueError | IndexError | KeyError):
            raise ValueError(f"{self.where}: {error}") from error
