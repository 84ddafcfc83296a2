"""Writes records, scripts and the charting library into one HTML text."""

from __future__ import annotations

import datetime
import html
import string
from importlib import resources
from typing import Any

from holdfast import __version__
from holdfast.report.page.collect import Collection
from holdfast.report.page.content import MOST_POINTS, json_for_script, to_plain

TITLE = "Holdfast report"


def page_data(
    found: Collection, *, follow_every: float | None = None, most: int = MOST_POINTS
) -> dict[str, Any]:
    """Return the data that the scripts draw.

    Arguments:
        found: the runs.
        follow_every: seconds between two requests of a served page for new data; None for a file.
        most: largest number of points of a curve.
    """
    return {
        "title": TITLE,
        "version": __version__,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "summary": _summary(found),
        "follow_every": follow_every,
        "sections": [{"id": each.id, **to_plain(each, most)} for each in found.sections],
        "skipped": to_plain(found.skipped),
    }


def render(data: dict[str, Any]) -> str:
    """Return the page with everything it needs, so that nothing has to be fetched."""
    return string.Template(_asset("page.html")).substitute(
        title=html.escape(data["title"]),
        style=_asset("page.css"),
        library=_asset("echarts/echarts.min.js"),
        data=json_for_script(data),
        script="\n".join(_asset(f"js/{name}") for name in script_names()),
    )


def script_names() -> list[str]:
    """Return the names of the scripts; `main.js`, which draws the page, comes last."""
    folder = resources.files("holdfast.report.page") / "assets" / "js"
    return sorted((path.name for path in folder.iterdir()), key=lambda n: (n == "main.js", n))


def _asset(name: str) -> str:
    return (resources.files("holdfast.report.page") / "assets" / name).read_text("utf-8")


def _summary(found: Collection) -> str:
    """Return the contents of the page in a paragraph."""
    kinds = [each.key.split()[0] for each in found.sections]
    counts = [
        (kinds.count("solution"), "solved model", ""),
        (kinds.count("experiment"), "comparison", " of algorithms"),
        (len(found.trainings), "training run", ""),
        (kinds.count("audit"), "audit", " of a policy"),
        (len(found.stresses), "stress test", ""),
    ]
    parts = [f"{n} {one}{'s' if n > 1 else ''}{rest}" for n, one, rest in counts if n]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
    text = f"This page shows {listed}." if parts else "There is no run to show yet."
    unfinished = sum(not run.finished for run in found.trainings)
    if unfinished:
        runs = "training run is" if unfinished == 1 else "training runs are"
        text += f" {unfinished} {runs} not finished."
    return text + (
        " The worst case is over all kernels of the uncertainty set; every signal has its own. A margin "
        "is the distance of a constraint from its threshold in the worst case; a negative margin is a "
        "violation."
    )
