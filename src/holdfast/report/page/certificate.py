"""A certificate, or what is known without one, as a card that can be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.report.page.content import Card, Cell, Table

_HEAD = ("", "threshold", "worst case", "nominal", "margin")


def certificate_card(certificate: Mapping[str, Any], about_set: str) -> Card:
    """What `certificate.json` says.

    Arguments:
        certificate: its contents.
        about_set: the uncertainty set in words.
    """
    holds = certificate["feasible"]
    verdict = (
        Cell("Every constraint is proved to hold in the worst case.", "good")
        if holds
        else Cell("Not every constraint holds in the worst case.", "bad")
    )
    rows = [_reward_row(certificate["reward"], extra=1)]
    rows += [
        (*_constraint_row(each, each["holds"]), Cell(_factor(each["critical_factor"])))
        for each in certificate["constraints"]
    ]
    return Card(
        key="certificate",
        title="Certificate",
        verdict=verdict,
        statements=_statements(certificate, about_set),
        table=Table("values", "", (*_HEAD, "breaks at"), rows),
    )


def evaluation_card(solution: Mapping[str, Any], about_set: str) -> Card:
    """What `solution.json` says, where nothing was certified."""
    constraints = solution["constraints"]
    kept = [each["margin"] - each["error"] >= 0 for each in constraints]
    verdict = (
        Cell("The constraints hold in the worst case that was computed.", "good")
        if solution["status"] == "feasible"
        else Cell("The constraints do not hold in the worst case.", "bad")
    )
    statements = [
        f"The worst case is over {about_set}.",
        "How good any policy could be, and how far the radii may grow, was not asked: "
        "`holdfast solve … --certify` says it.",
    ]
    rows = [_reward_row(solution["reward"])]
    rows += [_constraint_row(each, ok) for each, ok in zip(constraints, kept, strict=True)]
    return Card(
        key="certificate",
        title="Evaluation, not certified",
        verdict=verdict,
        statements=statements,
        table=Table("values", "", _HEAD, rows),
    )


def _reward_row(reward: Mapping[str, Any], extra: int = 0) -> tuple[Cell, ...]:
    values = (Cell(shown(reward["worst"])), Cell(shown(reward["nominal"])))
    return (Cell("reward"), Cell(""), *values, *[Cell("")] * (1 + extra))


def _constraint_row(each: Mapping[str, Any], holds: bool) -> tuple[Cell, ...]:
    name, relation, _ = _parts(each["constraint"])
    return (
        Cell(name),
        Cell(f"{relation} {each['threshold']:g}"),
        Cell(shown(each["worst"])),
        Cell(shown(each["nominal"])),
        Cell(margin(each["margin"]), "good" if holds else "bad"),
    )


def _parts(text: str) -> tuple[str, str, str]:
    """Name, relation and threshold of a constraint as it is written, such as "utility ≥ 0.7"."""
    name, relation, threshold = text.rsplit(" ", 2)
    return name, relation, threshold


def _statements(certificate: Mapping[str, Any], about_set: str) -> list[str]:
    error = certificate["error"]
    numerical = f"{error:.1e}" if isinstance(error, float) else error
    found = [
        f"For every kernel in {about_set}; the values are exact to {numerical}, by bounds from both "
        "sides."
    ]
    bound, gap = certificate["upper_bound"], certificate["gap"]
    if bound == "-inf":
        found.append("No policy keeps these constraints in the worst case: that is proved.")
    elif not isinstance(bound, str):
        within = (
            f": this one is within {100 * gap:.2g}\u00a0% of the best" if gap is not None else ""
        )
        found.append(
            f"No policy that keeps the constraints has a worst-case reward over {bound:.6g}{within}."
        )
    factor = certificate["critical_factor"]
    if factor is None:
        found.append("A constraint does not hold even under the nominal kernel.")
    elif factor == "inf":
        found.append("The constraints hold however large the radii are.")
    else:
        found.append(f"The constraints hold up to {factor:.4g} times the radii.")
    return found


def _factor(value: Any) -> str:
    if value is None:
        return "nominally"
    return "never" if value == "inf" else f"× {value:.4g}"


def shown(value: Any) -> str:
    """A value with as many digits as a reader can use.

    Example:
        >>> shown(104.78392904), shown(None), shown("inf")
        ('104.784', '–', '∞')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if value in ("inf", "-inf") or math.isinf(value):
        return "−∞" if str(value).startswith("-") else "∞"
    return f"{value:.6g}".replace("-", "−")


def margin(value: float) -> str:
    """A margin, with its sign.

    Example:
        >>> margin(0.0123456), margin(-2.0), margin(5e-10)
        ('+0.0123', '−2', '+5e-10')
    """
    return f"{value:+.3g}".replace("-", "−", 1) if value < 0 else f"{value:+.3g}"
