"""The section of an audit: its verdict, and what was proved about each signal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.report.page.content import Card, Cell, PageTable, Section
from holdfast.simulators.certificates.assumptions import ACTING
from holdfast.simulators.certificates.simulator_certificate import SimulatorCertificate

_TONES = {"holds": "good", "broken": "bad", "undecided": ""}


def audit_section(
    folder: str, about: Mapping[str, Any], proofs: Sequence[SimulatorCertificate]
) -> Section:
    """Return the section of an audit; the sweeps and attacks of its folder have their own.

    Arguments:
        folder: folder of the audit.
        about: contents of audit.json: verdict, reasons and the name of the policy.
        proofs: the certificates of the ways to act; empty if there is none.
    """
    verdict = str(about["verdict"])
    rows: list[list[Cell]] = []
    # The lines of the table say which actions they are about.
    assumptions = [a for p in proofs for a in p.assumptions if a not in ACTING.values()]
    statements = list(dict.fromkeys([*about["reasons"], *assumptions]))
    for proof in proofs:
        way = proof.setup.get("actions", "")
        what = f", {way} actions" if way else ""
        for cost in proof.costs:
            numbers = (cost.nominal, cost.found, cost.upper, cost.limit)
            rows.append([Cell(cost.name + what), *map(_number, numbers)])
        reward = proof.reward
        numbers_of_reward = (reward.nominal, reward.found, reward.lower)
        rows.append([Cell("reward" + what), *map(_number, numbers_of_reward), Cell("")])
    table = PageTable("proved", "Proved", ["", "nominal", "found", "proved", "limit"], rows)
    card = Card("verdict", "Verdict", Cell(verdict, _TONES[verdict]), statements, table)
    environment = f" in {proofs[0].environment}" if proofs else ""
    title = f"Audit of {about['policy']}{environment}"
    return Section(f"audit {folder}", title, [folder], [Cell(verdict, _TONES[verdict])], [card])


def _number(value: float) -> Cell:
    return Cell(f"{value:.4g}" if math.isfinite(value) else "–")
