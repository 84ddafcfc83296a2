"""The claims as files and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast._support.files import write_json, write_text
from holdfast.report.claims import Verdict
from holdfast.report.tables import versions

if TYPE_CHECKING:
    from rich.table import Table

_LEGEND = (
    "In tables feasible means that the worst-case margin less the numerical error is at least zero, "
    "and rewards are worst-case, discounted, the mean over the seeds of the last iterate. In "
    "simulators costs and rewards are means over episodes and seeds, with 95 % confidence intervals "
    "in brackets."
)


def write_claims(out: Path, verdicts: Sequence[Verdict]) -> None:
    """Writes `claims.md` and `claims.json`."""
    write_text(out / "claims.md", claims_markdown(verdicts))
    write_json(
        out / "claims.json",
        {
            "claims": [
                {
                    "experiment": verdict.claim.experiment,
                    "statement": verdict.claim.statement,
                    "source": verdict.claim.source,
                    "holds": verdict.finding.holds,
                    "numbers": verdict.finding.numbers,
                    "changed_settings": verdict.settings,
                }
                for verdict in verdicts
            ],
            "versions": versions(),
        },
    )


def claims_markdown(verdicts: Sequence[Verdict]) -> str:
    """The claims as a Markdown table, with what was run otherwise than by default below it."""
    lines = [
        "# The paper's claims, measured",
        "",
        "| experiment | claim | source | measured | verdict |",
        "|---|---|---|---|---|",
    ]
    for verdict in verdicts:
        claim, finding = verdict.claim, verdict.finding
        mark = "holds" if finding.holds else "**does not hold**"
        lines.append(
            f"| {claim.experiment} | {claim.statement} | {claim.source} "
            f"| {finding.numbers} | {mark} |"
        )
    lines += ["", _LEGEND, *(f"\n{note}" for note in notes(verdicts))]
    return "\n".join(lines) + "\n"


def notes(verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence for each experiment that was run with other settings than the default ones."""
    changed = {v.claim.experiment: v.settings for v in verdicts if v.settings}
    return [
        f"{name} was run with other settings than the default ones: {settings}."
        for name, settings in changed.items()
    ]


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """The claims as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table("experiment", "claim", "measured", "verdict", show_lines=True)
    for verdict in verdicts:
        claim, finding = verdict.claim, verdict.finding
        mark = Text("holds", "green") if finding.holds else Text("does not hold", "bold red")
        statement = claim.statement if claim.source != "ours" else f"{claim.statement} (ours)"
        table.add_row(claim.experiment, Text(statement), Text(finding.numbers), mark)
    return table
