"""The section of an audit: its verdict, and what was proved about each signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.report.page.content import Card, Cell, PageTable, Section
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate

_TONES = {"holds": "good", "broken": "bad", "undecided": ""}


def audit_section(
    folder: str, about: Mapping[str, Any], proof: SimulatorCertificate | None
) -> Section:
    """Return the section of an audit; the sweeps and attacks of its folder have their own.

    Arguments:
        folder: folder of the audit.
        about: contents of audit.json: verdict, reasons and the name of the policy.
        proof: the certificate, or None if there is none.
    """
    verdict = str(about["verdict"])
    rows, statements = [], list(about["reasons"])
    if proof is not None:
        statements += proof.assumptions
        rows = [
            [Cell(cost.name), *map(_number, (cost.nominal, cost.found, cost.upper, cost.limit))]
            for cost in proof.costs
        ]
        reward = proof.reward
        rows.append(
            [Cell("reward"), *map(_number, (reward.nominal, reward.found, reward.lower)), Cell("")]
        )
    table = PageTable("proved", "Proved", ["", "nominal", "found", "proved", "limit"], rows)
    card = Card("verdict", "Verdict", Cell(verdict, _TONES[verdict]), statements, table)
    environment = "" if proof is None else f" in {proof.environment}"
    title = f"Audit of {about['policy']}{environment}"
    return Section(f"audit {folder}", title, [folder], [Cell(verdict, _TONES[verdict])], [card])


def _number(value: float) -> Cell:
    return Cell(f"{value:.4g}" if math.isfinite(value) else "–")
