"""What `stress` found: reward and costs against how much worse the world is, limits drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.report.page.content import (
    Axis,
    Block,
    Cell,
    Limit,
    Lines,
    Section,
    Series,
    View,
    numbers,
)
from holdfast.report.page.looks import Look, looks_of
from holdfast.simulators.certificates.stress_result import (
    ACTIONS,
    ATTACK,
    PARAMETER,
    SCALED,
    Stress,
)

_KINDS = (ATTACK, SCALED, ACTIONS, PARAMETER)
_AXES = {
    ATTACK: "radius of the attack (square-root scale)",
    SCALED: "factor on the noise",
    ACTIONS: "standard deviation of noise on actions",
}
_NAMES = {ATTACK: "attack", SCALED: "more noise", ACTIONS: "noise on actions"}


class _Test(NamedTuple):
    """A kind of test; `subject` is a parameter's name."""

    kind: str
    subject: str


def stress_section(folder: str, found: Stress) -> Section:
    """A result that lies in a folder of its own."""
    name = ", ".join(found.agents)
    look = looks_of([found.agents[0].rsplit("-", 1)[0]])[0]
    facts = [
        Cell(f"{n} ≤ {limit:g}") for n, limit in zip(found.cost_names, found.limits, strict=True)
    ]
    facts.append(Cell(f"critical radius {critical_in_words(found)}"))
    title = f"{found.environment['name']}, stress of {name}"
    return Section(
        f"stress {folder}", title, [folder], facts, stress_blocks({name: found}, {name: look})
    )


def stress_blocks(found: Mapping[str, Stress], looks: Mapping[str, Look]) -> list[Block]:
    """A figure for the reward and one for each cost, with a view for each kind of test.

    Arguments:
        found: by the run's name; all have the same costs and limits.
        looks: of the runs.
    """
    tests = _tests(found)
    if not tests:
        return []
    first = next(iter(found.values()))
    confidence = 100 * first.setup["confidence"]
    about = (
        f"Means over episodes of frozen policies; bars are {confidence:g} % confidence intervals."
    )
    limits = dict(zip(first.cost_names, first.limits, strict=True))
    blocks: list[Block] = []
    for signal in ("reward", *first.cost_names):
        lines = (
            [Limit(limits[signal], f"{signal} ≤ {limits[signal]:g}", "above")]
            if signal in limits
            else []
        )
        views = [
            View(
                _NAMES.get(test.kind, test.subject),
                _axis(found, signal, test),
                signal,
                _series(found, looks, signal, test),
                lines,
            )
            for test in tests
        ]
        blocks.append(Lines(f"stress-{signal}", f"Under stress: {signal}", about, views, "bars"))
    return blocks


def critical_in_words(found: Stress) -> str:
    """The critical radius, as a table has it."""
    radius = found.critical_radius
    if math.isnan(radius):
        return "none" if found.attacked else "no attack was run"
    if math.isinf(radius):
        return "∞"
    return f"≥ {radius:.3g}" if found.beyond_tested else f"{radius:.3g}"


def _tests(found: Mapping[str, Stress]) -> list[_Test]:
    tests = [
        _Test(row.kind, row.subject if row.kind == PARAMETER else "")
        for each in found.values()
        for row in each.rows[1:]
    ]
    return sorted(dict.fromkeys(tests), key=lambda test: _KINDS.index(test.kind))


def _axis(found: Mapping[str, Stress], signal: str, test: _Test) -> Axis:
    if test.kind != ATTACK:
        return Axis(_AXES.get(test.kind, test.subject))
    levels = {level for each in found.values() for level, _ in each.curve(signal, ATTACK)}
    return Axis(_AXES[ATTACK], "sqrt", sorted(levels))


def _series(
    found: Mapping[str, Stress], looks: Mapping[str, Look], signal: str, test: _Test
) -> list[Series]:
    series = []
    for name, each in found.items():
        if not any(row.kind == test.kind for row in each.rows):
            continue
        curve = each.curve(signal, test.kind, test.subject)
        series.append(
            Series(
                name,
                looks[name].colour,
                looks[name].dash,
                numbers(level for level, _ in curve),
                numbers(value.mean for _, value in curve),
                numbers(value.low for _, value in curve),
                numbers(value.high for _, value in curve),
            )
        )
    return series
