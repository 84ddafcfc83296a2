"""A model file in exact arithmetic.

Every number in a file is a double, so it is a rational number. Rows, initial distributions and policies
are divided by their exact sums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Vector = Sequence[Fraction]
Rows = Sequence[Vector]
Table = Sequence[Rows]  # by state, by action, by entry of the row: a kernel or a signal
Record = dict[str, Any]  # what JSON calls an object

_FORMAT = "holdfast-model-1"
_HEADER = {"format", "discount", "constraints", "uncertainty"}
_CONSTRAINT = {"threshold", "sense", "name"}
# Rows in a file may miss one by this, as in `RobustCMDP`; they are divided by their sum.
_ROW_SUM_TOLERANCE = Fraction(1e-8)
# The sets whose rows and bounds the checker knows.
KINDS = ("kl", "chi-square", "total-variation", "contamination", "interval", "wasserstein")
_ZERO, _ONE = Fraction(), Fraction(1)


class RefusedError(ValueError):
    """A claim does not follow from the evidence, or a file is damaged; the message says where."""


def require(holds: bool, message: str) -> None:
    """Refuse with a message if something does not hold."""
    if not holds:
        raise RefusedError(message)


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
        discount: factor on the value of the next state.
    """

    place: dict[int, int]
    to: list[int]
    p: list[Fraction]
    radius: Fraction | None
    room: list[tuple[Fraction, Fraction]]
    discount: Fraction


@dataclass(frozen=True)
class Payoff:
    """The reward or a utility: a sum, the mean of a step, or the probability of a rule.

    Attributes:
        paid: what every entry of a row pays.
        ends: states in which the signal ends; nothing that follows them counts.
        initial: initial distribution, without the states of `ends`.
        start: what is paid in the initial states of `ends`.
        threshold: least value of a constraint; zero for the reward.
        name: the constraint in words.
    """

    paid: Table
    ends: frozenset[int]
    initial: Vector
    start: Fraction
    threshold: Fraction
    name: str

    def value(self, values: Vector) -> Fraction:
        """Return the value from the initial distribution."""
        return self.start + mean(self.initial, values)


@dataclass(frozen=True)
class ExactModel:
    """A robust constrained MDP in rational numbers; every constraint is a utility.

    With a horizon, state s at step t is the state t·S + s.

    Attributes:
        kind: kind of the uncertainty set.
        rows: the nominal kernel by state and action.
        signals: the reward, then the constraints.
        metric: distances between states, for a Wasserstein set.
        visits: upper bound on all visits, Σ_t of the products of `discount` in the rows.
        barred: states and actions that are not allowed; their rows are those of an allowed action.
    """

    kind: str
    rows: list[list[ExactRow]]
    signals: list[Payoff]
    metric: list[list[Fraction]]
    visits: Fraction
    barred: list[tuple[int, int]]

    def targets(self, signal: Payoff, s: int, a: int, values: Vector) -> list[Fraction]:
        """Return y = paid + γV(s') for the entries of a row."""
        row = self.rows[s][a]
        paid = zip(signal.paid[s][a], row.to, strict=True)
        return [c if to in signal.ends else c + row.discount * values[to] for c, to in paid]

    def reachable(self, signal: Payoff, policy: Rows) -> list[int]:
        """Return the states that the policy may visit under some member before the signal ends."""
        found: set[int] = set()
        new = {s for s, mass in enumerate(signal.initial) if mass}
        while new:
            found |= new
            rows = [pair for s in new for pair in zip(policy[s], self.rows[s], strict=True)]
            new = {to for share, row in rows if share and row.discount for to in row.to}
            new -= found | signal.ends
        return sorted(found)

    def remembering(self, weights: Vector) -> tuple[ExactModel, Payoff]:
        """Return the model on states that know which rules have ended, with a weighted sum of signals.

        State f·n + s is state s after the events in f, bit by bit; rules that end in the same states
        share an event. A rule pays nothing after its event.
        """
        events = [*dict.fromkeys(each.ends for each in self.signals if each.ends)]
        n, initial = len(self.rows), [_ZERO] * (len(self.rows) << len(events))
        bits = [sum((s in ends) << e for e, ends in enumerate(events)) for s in range(n)]
        rows, paid = [], []
        for f in range(1 << len(events)):
            over = {ends for e, ends in enumerate(events) if f >> e & 1}
            pairs = zip(self.signals, weights, strict=True)
            left = [_ZERO if each.ends in over else weight for each, weight in pairs]
            for s, of_state in enumerate(self.rows):
                after = [[(f | bits[to]) * n + to for to in row.to] for row in of_state]
                rows.append([replace(r, to=to) for r, to in zip(of_state, after, strict=True)])
                of_actions = zip(*(signal.paid[s] for signal in self.signals), strict=True)
                paid.append([[mean(left, c) for c in zip(*of, strict=True)] for of in of_actions])
        for s, mass in enumerate(self.signals[0].initial):
            initial[bits[s] * n + s] = mass
        start = mean(weights, [each.start for each in self.signals])
        threshold = mean(weights, [each.threshold for each in self.signals])
        return replace(self, rows=rows), Payoff(paid, frozenset(), initial, start, threshold, "")


def read_model(path: str | os.PathLike[str]) -> ExactModel:
    """Return the model in a file that `RobustCMDP.save` wrote.

    Raises:
        ValueError: the file is not a model, or has a set or a field that the checker does not know.
    """
    try:
        # np.load does not close a file that it cannot read.
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            # Deflate expands a byte to at most 1,032; a file may declare more, to exhaust the memory.
            for part in file.zip.infolist():
                fits = part.file_size <= 1032 * (part.compress_size + 1)
                require(fits, f"{part.filename} declares {part.file_size:,} bytes")
            arrays = {name: file[name] for name in file.files}
        return _exact(json.loads(str(arrays["header"])), arrays)
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise eight kinds for damaged archives
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: not a model that can be checked: {reason}") from error


def _exact(header: Record, arrays: dict[str, np.ndarray]) -> ExactModel:
    horizon, limits, gamma = header.get("horizon"), header["constraints"], header["discount"]
    kinds = _CONSTRAINT, _CONSTRAINT | {"per"}, _CONSTRAINT | {"reach", "avoid"}
    require(all(set(limit) in kinds for limit in limits), "the checker does not know a constraint")
    fit = header["format"] == _FORMAT and set(header) - {"about", "horizon"} == _HEADER
    require(fit, f"expected the format {_FORMAT!r} with the fields {sorted(_HEADER)}")
    given, steps, discount = header["uncertainty"], header.get("horizon", 1), Fraction(gamma)
    # Probabilities are not discounted with a horizon. Then the signals are, and nothing else.
    ruled = any("reach" in limit for limit in limits)
    falling, lasting = (discount, _ONE) if horizon and ruled else (_ONE, discount)
    about = {"labels": {}, "state_names": []} | header.get("about", {})
    known = about["labels"] | {name: [s] for s, name in enumerate(about["state_names"])}
    fit = 0 <= gamma <= 1 and (gamma < 1 or horizon is not None)
    require(fit, f"the discount {gamma} is out of range")
    kind, metric = given["set"], arrays.get("uncertainty_metric", np.zeros((0, 0)))
    require(kind in KINDS, f"the checker knows the sets {', '.join(KINDS)}, not {kind!r}")
    lists = "successors" in arrays
    entries = arrays["probabilities" if lists else "transitions"]
    states, actions, width = shape = entries.shape[-3:]

    def by_step(array: np.ndarray, axes: int) -> np.ndarray:
        """Return a number, an array over states, or one over steps and states as the last of these."""
        shapes = (), shape[:axes], (horizon, *shape[:axes])
        require(array.shape in shapes, f"an array has the shape {array.shape}")
        return np.broadcast_to(array, (steps, *shape[:axes]))

    every = np.broadcast_to(np.arange(states), (states, actions, states))
    p, to = by_step(entries, 3), by_step(arrays.get("successors", every), 3)
    require(to.min() >= 0 and to.max() < states, "a successor is not a state")
    fit = kind != "wasserstein" or metric.shape == (states, states)
    fit = fit and bool((metric >= 0).all() and not metric.diagonal().any())
    require(fit, "the metric is not a distance")
    # These sets may move mass to any state. Their rows are over states, not over listed entries.
    anywhere = not given.get("within_support", kind in ("kl", "chi-square", "interval"))
    radius = by_step(arrays["uncertainty_radius"], 2)
    sides = ("uncertainty_lower", "uncertainty_upper") if kind == "interval" else ()
    bounds = [by_step(arrays[side], 3) for side in sides]
    allowed = arrays.get("allowed", np.ones(shape[:2])).astype(bool)
    require(allowed.shape == shape[:2] and bool(allowed.any(-1).all()), "a state has no action")
    # An action that is not allowed is a copy of the first allowed one.
    action = np.where(allowed, np.arange(actions), allowed.argmax(-1)[:, None]).tolist()

    def row(t: int, s: int, a: int) -> ExactRow:
        at = t, s, a
        require(radius[at] >= 0, f"the radius at {at} is {radius[at]}")
        size = Fraction(radius[at]) if radius[at] < np.inf else None
        nominal, ends = distribution(p[at].tolist(), f"the row {at}"), to[at].tolist()
        room = [(_ZERO, _ZERO)] * max(width, states)
        if anywhere:
            listed, ends = list(zip(nominal, ends, strict=True)), list(range(states))
            nominal = [total(mass for mass, state in listed if state == k) for k in ends]
        elif kind == "interval":
            low, center, high = (list(map(Fraction, x[at])) for x in (bounds[0], p, bounds[1]))
            room = [
                (_room(size, x - a, x, q), _room(size, b - x, x, 1 - q))
                for a, x, b, q in zip(low, center, high, nominal, strict=True)
            ]
        open_ended = anywhere and (kind == "wasserstein" or size != 0)
        used = [k for k, mass in enumerate(nominal) if open_ended or mass + room[k][1]]
        place, q = {k: n for n, k in enumerate(used)}, [nominal[k] for k in used]
        leads_to = [(t + 1) % steps * states + ends[k] for k in used]
        factor = _ZERO if horizon == t + 1 else lasting  # nothing follows the last step
        return ExactRow(place, leads_to, q, size, [room[k] for k in used], factor)

    pairs = [[(t, s, a) for a in action[s]] for t in range(steps) for s in range(states)]
    rows = [[row(*at) for at in of_state] for of_state in pairs]

    def paid(array: np.ndarray, factor: Fraction | int) -> Table:
        by_entry = array.ndim == 4 or array.shape == shape
        require(not (by_entry and anywhere and lists), "a signal has entries for listed successors")
        given = by_step(array, 2 + by_entry)

        def of_row(at: tuple[int, int, int], place: dict[int, int]) -> list[Fraction]:
            unit = factor * falling ** at[0]
            return [unit * Fraction(given[at][k] if by_entry else given[at]) for k in place]

        each = zip(pairs, rows, strict=True)
        return [[of_row(at, row.place) for at, row in zip(*both, strict=True)] for both in each]

    def states_of(given: list[Any]) -> set[int]:
        """Return the states that indices, names and labels stand for; a name comes before a label."""
        found = {s for each in given for s in ([each] if type(each) is int else known[each])}
        require(found <= set(range(states)), "a rule is about a state that does not exist")
        return found

    weight = total(discount**t for t in range(steps)) if horizon else 1 / (1 - discount)
    initial = distribution(arrays["initial"].tolist(), "the initial distribution")
    initial += [_ZERO] * (len(rows) - states)
    signals = [Payoff(paid(arrays["reward"], 1), frozenset(), initial, _ZERO, _ZERO, "reward")]
    for i, limit in enumerate(limits):
        sign, per = {"at_least": 1, "at_most": -1}[limit["sense"]], limit.get("per", "total")
        threshold, ends, start = sign * Fraction(limit["threshold"]), frozenset[int](), _ZERO
        if "reach" in limit:
            reached, avoided = states_of(limit["reach"]), states_of(limit["avoid"])
            require(not reached & avoided, "a rule is to reach and to avoid a state")
            gain = [sign * (s in reached) * (_ONE if horizon else discount) for s in range(states)]
            earned: Table = [[[gain[to % states] for to in r.to] for r in of] for of in rows]
            ends = frozenset(s for s in range(len(rows)) if s % states in reached | avoided)
            start = sign * total(initial[s] for s in reached)
        else:
            factor = {"total": Fraction(sign), "step": sign / weight}[per]
            earned = paid(arrays[f"constraint_{i}"], factor)
        going = [_ZERO if s in ends else mass for s, mass in enumerate(initial)]
        what = f"reach {limit['reach']}" if ends else ("utility", "cost")[sign < 0]
        name = (limit["name"] or what) + " per step" * (per == "step")
        name += f" {'≥≤'[sign < 0]} {limit['threshold']:g}"
        signals.append(Payoff(earned, ends, going, start, threshold, name))
    distances = [list(map(Fraction, row)) for row in metric]
    barred = [(t * states + s, a) for t in range(steps) for s, a in np.argwhere(~allowed).tolist()]
    visits = Fraction(steps) if horizon and ruled else weight
    return ExactModel(kind, rows, signals, distances, visits, barred)


def distribution(numbers: Sequence[float], what: str) -> list[Fraction]:
    """Return non-negative numbers divided by their exact sum.

    Raises:
        RefusedError: a number is negative, or the sum is not close to one.
    """
    exact = [Fraction(number) for number in numbers]
    whole = total(exact)
    fits = min(exact) >= 0 and abs(whole - 1) <= _ROW_SUM_TOLERANCE
    require(fits, f"{what} is not a distribution")
    return [number / whole for number in exact]


def _room(radius: Fraction | None, width: Fraction, p: Fraction, most: Fraction) -> Fraction:
    """Return radius·width, at most `most`; zero times infinity is zero.

    An interval that ends within four rounding errors of p ends at p.
    """
    if width <= p / 2**50 or radius == 0:
        return _ZERO
    return most if radius is None else min(radius * width, most)


def mean(p: Vector, y: Vector) -> Fraction:
    """Return p·y."""
    return total(mass * target for mass, target in zip(p, y, strict=True))


def total(terms: Iterable[Fraction]) -> Fraction:
    """Return the sum of some terms."""
    return sum(terms, _ZERO)
