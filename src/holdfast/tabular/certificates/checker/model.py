"""A model file in exact arithmetic.

Every number in a file is a double, so it is a rational number. Rows, initial distributions and
policies are divided by their exact sums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Vector = Sequence[Fraction]

_FORMAT = "holdfast-model-1"
_HEADER = {"format", "discount", "constraints", "uncertainty"}
_CONSTRAINT = {"threshold", "sense", "name"}
# Rows in a file may miss one by this, as in `RobustCMDP`; they are divided by their sum.
_ROW_SUM_TOLERANCE = Fraction(1e-8)
# The sets whose rows and bounds the checker knows.
KINDS = ("kl", "chi-square", "total-variation", "contamination", "interval", "wasserstein")


@dataclass(frozen=True)
class ExactRow:
    """One row (s, a) of the nominal kernel, with the entries that some member of the set may use.

    Attributes:
        place: for each such entry, its index in the file's row, or the next state if the set may lead
            to any state.
        to: next states.
        p: nominal probabilities; they sum to one exactly.
        radius: radius of the set; None if infinite.
        room: for an interval set, how far each entry may fall below p and rise above it.
    """

    place: dict[int, int]
    to: list[int]
    p: list[Fraction]
    radius: Fraction | None
    room: list[tuple[Fraction, Fraction]]


@dataclass(frozen=True)
class ExactModel:
    """A model with rational numbers, and every constraint as a utility.

    Attributes:
        kind: name of the uncertainty set.
        rows: one row for each state and action.
        signals: reward, then utilities: for each state and action one number per entry of its row.
        thresholds: least values of the utilities.
        names: the constraints in words.
        initial: initial distribution; it sums to one exactly.
        discount: γ.
        metric: distances between states, for a Wasserstein set.
    """

    kind: str
    rows: list[list[ExactRow]]
    signals: list[list[list[Vector]]]
    thresholds: list[Fraction]
    names: list[str]
    initial: list[Fraction]
    discount: Fraction
    metric: list[list[Fraction]]

    def targets(self, row: ExactRow, signal: Vector, values: Vector) -> list[Fraction]:
        """Return y = signal + γV(s') for the entries of a row."""
        return [c + self.discount * values[to] for c, to in zip(signal, row.to, strict=True)]

    def combined(self, weights: Vector) -> list[list[Vector]]:
        """Return the weighted sum of the signals."""
        used = [(w, signal) for w, signal in zip(weights, self.signals, strict=True) if w]
        return [
            [
                [sum((w * c[s][a][k] for w, c in used), Fraction()) for k in range(len(row.to))]
                for a, row in enumerate(rows)
            ]
            for s, rows in enumerate(self.rows)
        ]

    def reachable(self, policy: Sequence[Vector]) -> list[int]:
        """Return the states that the policy may visit under some member of the set."""
        found = {s for s, mass in enumerate(self.initial) if mass}
        new = list(found)
        while new:
            s = new.pop()
            for share, row in zip(policy[s], self.rows[s], strict=True):
                if share:
                    fresh = set(row.to) - found
                    found |= fresh
                    new += fresh
        return sorted(found)


def read_model(path: str | os.PathLike[str]) -> ExactModel:
    """Return the model in a file that `RobustCMDP.save` wrote.

    Raises:
        ValueError: the file is not a model, or has a set or a field that the checker does not know.
    """
    try:
        # np.load does not close a file that it cannot read.
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # Deflate expands a byte to at most 1,032; a file may declare more, to exhaust the memory.
            for member in file.zip.infolist():
                if member.file_size > 1032 * (member.compress_size + 1):
                    raise ValueError(f"{member.filename} declares {member.file_size:,} bytes")
            arrays = {name: file[name] for name in file.files}
        return _exact(json.loads(str(arrays["header"])), arrays)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise eight kinds for damaged archives
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: not a model that can be checked: {reason}") from error


def _exact(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> ExactModel:
    plain = all(set(limit) <= _CONSTRAINT for limit in header["constraints"])
    if "horizon" in header or "allowed" in arrays or not plain:
        raise ValueError(
            "the checker knows sums without a horizon; this model has a horizon, a reach rule, a mean "
            "of a step, or a rule on actions"
        )
    if header["format"] != _FORMAT or set(header) - {"about"} != _HEADER:  # names change no value
        raise ValueError(f"expected the format {_FORMAT!r} with the fields {sorted(_HEADER)}")
    kind, given = header["uncertainty"]["set"], header["uncertainty"]
    if kind not in KINDS:
        raise ValueError(f"the checker knows the sets {', '.join(KINDS)}, not {kind!r}")
    lists = "successors" in arrays
    p = arrays["probabilities" if lists else "transitions"]
    states, actions, width = p.shape
    to = arrays["successors"] if lists else np.broadcast_to(np.arange(states), p.shape)
    if to.shape != p.shape or to.min() < 0 or to.max() >= states:
        raise ValueError("successors and probabilities do not fit together")
    # These sets may move mass to any state. Their rows are over states, not over listed entries.
    anywhere = kind == "wasserstein"
    if kind in ("total-variation", "contamination"):
        anywhere = not given["within_support"]
    radius = np.broadcast_to(arrays["uncertainty_radius"], (states, actions))
    bounds = [arrays.get(f"uncertainty_{side}", np.zeros(())) for side in ("lower", "upper")]
    lower, upper = (np.broadcast_to(bound, p.shape) for bound in bounds)
    metric = [
        [Fraction(d) for d in row] for row in arrays.get("uncertainty_metric", np.zeros((0, 0)))
    ]
    if kind == "wasserstein" and [len(row) for row in metric] != [states] * states:
        raise ValueError("the metric has the wrong shape")
    if any(d < 0 for row in metric for d in row) or any(metric[s][s] for s in range(len(metric))):
        raise ValueError("the metric has a negative distance, or a positive one on the diagonal")

    def row(s: int, a: int) -> ExactRow:
        if not radius[s, a] >= 0:
            raise ValueError(f"the radius at ({s}, {a}) is {radius[s, a]}")
        size = Fraction(radius[s, a]) if radius[s, a] < np.inf else None
        nominal = distribution(p[s, a].tolist(), f"the row ({s}, {a})")
        if anywhere:
            dense = [Fraction()] * states
            for mass, state in zip(nominal, to[s, a].tolist(), strict=True):
                dense[state] += mass
            stays = kind != "wasserstein" and size == 0
            used = [k for k in range(states) if dense[k] or not stays]
            return ExactRow(
                {k: n for n, k in enumerate(used)}, used, [dense[k] for k in used], size, []
            )
        room = [(Fraction(), Fraction())] * width
        if kind == "interval":
            room = [
                (_room(size, at - Fraction(lower[s, a, k]), at, nominal[k]),
                 _room(size, Fraction(upper[s, a, k]) - at, at, 1 - nominal[k]))
                for k, at in enumerate(map(Fraction, p[s, a]))
            ]  # fmt: skip
        used = [k for k in range(width) if nominal[k] + room[k][1]]
        return ExactRow(
            place={k: n for n, k in enumerate(used)},
            to=[int(to[s, a, k]) for k in used],
            p=[nominal[k] for k in used],
            radius=size,
            room=[room[k] for k in used],
        )

    rows = [[row(s, a) for a in range(actions)] for s in range(states)]

    def signal(array: np.ndarray, sign: int) -> list[list[Vector]]:
        if array.shape not in ((states, actions), p.shape) or (
            anywhere and lists and array.ndim > 2
        ):
            raise ValueError(f"a signal has the shape {array.shape}")
        if array.ndim == 2:
            array = np.broadcast_to(array[..., None], (states, actions, max(width, states)))
        return [
            [
                [sign * Fraction(array[s, a, k]) for k in each.place]
                for a, each in enumerate(actions_)
            ]
            for s, actions_ in enumerate(rows)
        ]

    limits = header["constraints"]
    signs = [{"at_least": 1, "at_most": -1}[limit["sense"]] for limit in limits]
    shown = [("utility ≥", "cost ≤")[sign < 0] for sign in signs]
    discount = Fraction(header["discount"])
    if not 0 <= discount < 1:
        raise ValueError(f"the discount {header['discount']} is outside [0, 1)")
    return ExactModel(
        kind=kind,
        rows=rows,
        signals=[
            signal(arrays["reward"], 1),
            *(signal(arrays[f"constraint_{i}"], sign) for i, sign in enumerate(signs)),
        ],
        thresholds=[
            s * Fraction(limit["threshold"]) for s, limit in zip(signs, limits, strict=True)
        ],
        names=[
            f"{limit['name'] + word[-2:] if limit['name'] else word} {limit['threshold']:g}"
            for word, limit in zip(shown, limits, strict=True)
        ],
        initial=distribution(arrays["initial"].tolist(), "the initial distribution"),
        discount=discount,
        metric=metric,
    )


def distribution(numbers: Sequence[float], what: str) -> list[Fraction]:
    """Return non-negative numbers divided by their exact sum.

    Raises:
        ValueError: a number is negative, or the sum is not close to one.
    """
    exact = [Fraction(number) for number in numbers]
    total = sum(exact, Fraction())
    if any(number < 0 for number in exact) or abs(total - 1) > _ROW_SUM_TOLERANCE:
        raise ValueError(f"{what} is not a distribution")
    return [number / total for number in exact]


def _room(radius: Fraction | None, width: Fraction, p: Fraction, most: Fraction) -> Fraction:
    """Return radius·width, at most `most`; zero times infinity is zero.

    An interval that ends within four rounding errors of p ends at p.
    """
    if width <= p / 2**50 or radius == 0:
        return Fraction()
    return most if radius is None else min(radius * width, most)


def mean(p: Vector, y: Vector) -> Fraction:
    """Return p·y."""
    return sum((mass * target for mass, target in zip(p, y, strict=True)), Fraction())
