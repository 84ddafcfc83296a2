"""A certificate, or an evaluation without one, as a card."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.report.page.content import Card, Cell, PageTable
from holdfast.tabular.certify import gap_text


def values_card(record: Mapping[str, Any], about_set: str) -> Card:
    """Return the card of a certificate, or of a solution that has none.

    Arguments:
        record: content of `certificate.json` or of `solution.json`.
        about_set: the uncertainty set, as text.
    """
    certified = "upper_bound" in record
    if certified:
        title, feasible = "Certificate", record["feasible"]
        good = "Every constraint is proved to hold in the worst case."
        bad = "Not every constraint holds in the worst case."
        statements = _statements(record, about_set)
    else:
        title, feasible = "Evaluation, not certified", record["status"] == "feasible"
        good = "The constraints hold in the computed worst case."
        bad = "The constraints do not hold in the worst case."
        statements = [
            f"The worst case is over {about_set}.",
            "The best possible reward and the largest radii were not computed: use `holdfast solve … "
            "--certify`.",
        ]
    verdict = Cell(good, "good") if feasible else Cell(bad, "bad")
    reward, head = record["reward"], ["", "threshold", "worst case", "nominal", "margin"]
    cells = ("reward", "", value_text(reward["worst"]), value_text(reward["nominal"]), "")
    rows = [[*map(Cell, cells)], *map(_constraint_row, record["constraints"])]
    if certified:
        head.append("breaks at")
        factors = ["", *(_factor(each["critical_factor"]) for each in record["constraints"])]
        rows = [[*row, Cell(factor)] for row, factor in zip(rows, factors, strict=True)]
    return Card("certificate", title, verdict, statements, PageTable("values", "", head, rows))


def _constraint_row(each: Mapping[str, Any]) -> list[Cell]:
    # A constraint is written as "utility ≥ 0.7" or "reach broken ≤ 5 %".
    name, relation, limit = re.fullmatch("(.*) ([≤≥]) (.*)", each["constraint"]).groups()  # type: ignore[union-attr]
    holds = each["holds"] if "holds" in each else each["margin"] - each["error"] >= 0
    percent = limit.endswith("%")

    def shown(text: Callable[[Any], str], value: Any) -> str:
        return text(100 * value) + " %" if percent else text(value)

    return [
        Cell(name),
        Cell(f"{relation} {limit}"),
        Cell(shown(value_text, each["worst"])),
        Cell(shown(value_text, each["nominal"])),
        Cell(shown(margin_text, each["margin"]), "good" if holds else "bad"),
    ]


def _statements(certificate: Mapping[str, Any], about_set: str) -> list[str]:
    error = certificate["error"]
    numerical = f"{error:.1e}" if isinstance(error, float) else error
    found = [
        f"For every kernel in {about_set}. The values are exact to {numerical}, by bounds from both "
        "sides."
    ]
    bound, gap = certificate["upper_bound"], certificate["gap"]
    if bound == "-inf":
        found.append("No policy satisfies these constraints in the worst case: that is proved.")
    elif not isinstance(bound, str):
        shown = "" if gap is None else f": gap {gap_text(gap)}".replace("< ", "below ")
        text = f"No feasible policy has a worst-case reward above {bound:.6g}{shown}."
        found.append(text.replace(" %", "\u00a0%"))
    factor = certificate["critical_factor"]
    if factor is None:
        found.append("A constraint does not hold even under the nominal kernel.")
    elif factor == "inf":
        found.append("The constraints hold for arbitrarily large radii.")
    else:
        found.append(f"The constraints hold for radii up to {factor:.4g} times the given ones.")
    return found


def _factor(value: Any) -> str:
    if value is None:
        return "nominally"
    return "never" if value == "inf" else f"× {value:.4g}"


def value_text(value: Any) -> str:
    """Return a value with six significant digits.

    Example:
        >>> value_text(104.78392904), value_text(None), value_text("inf")
        ('104.784', '–', '∞')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if value in ("inf", "-inf") or math.isinf(value):
        return "−∞" if str(value).startswith("-") else "∞"
    return f"{value:.6g}".replace("-", "−")


def margin_text(value: float) -> str:
    """Return a margin with its sign.

    Example:
        >>> margin_text(0.0123456), margin_text(-2.0), margin_text(5e-10)
        ('+0.0123', '−2', '+5e-10')
    """
    return f"{value:+.3g}".replace("-", "−", 1) if value < 0 else f"{value:+.3g}"
