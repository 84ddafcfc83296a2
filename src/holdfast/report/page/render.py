"""One file out of the records, the scripts and the charting library."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from holdfast import __version__
from holdfast.report.page.collect import Collection
from holdfast.report.page.content import Section, kept_rows
from holdfast.report.page.stress import stress_section
from holdfast.report.page.training import training_sections

TITLE = "Holdfast report"
SCRIPTS = (
    "tools.js",
    "theme.js",
    "save.js",
    "options.js",
    "figures.js",
    "kernels.js",
    "player.js",
    "grid.js",
    "arena.js",
    "blocks.js",
    "main.js",
)


def page_data(found: Collection, *, follow_every: float | None = None) -> dict[str, Any]:
    """All that the scripts draw.

    Arguments:
        found: the runs.
        follow_every: seconds between two looks at a server for what is new; None for a file.
    """
    sections = [*found.sections, *training_sections(found.trainings)]
    sections += [stress_section(folder, stress) for folder, stress in found.stresses]
    return {
        "title": TITLE,
        "version": __version__,
        "made": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "summary": _summary(found, sections),
        "follow_every": follow_every,
        "sections": [{"id": each.id, **dataclasses.asdict(each)} for each in sections],
        "skipped": [dataclasses.asdict(each) for each in found.skipped],
    }


def thinned(data: dict[str, Any], most: int) -> dict[str, Any]:
    """The same with at most so many points in a curve.

    Example:
        >>> curve = {"x": [1, 2, 3], "y": [4, 5, 6], "low": None, "high": None}
        >>> block = {"type": "lines", "views": [{"series": [curve]}]}
        >>> short = thinned({"sections": [{"blocks": [block]}]}, most=2)
        >>> short["sections"][0]["blocks"][0]["views"][0]["series"][0]["y"]
        [4, 6]
    """
    data = copy.deepcopy(data)
    for section in data["sections"]:
        for block in section["blocks"]:
            for view in block["views"] if block["type"] == "lines" else ():
                for series in view["series"]:
                    kept = kept_rows(len(series["x"]), most)
                    for name in ("x", "y", "low", "high"):
                        if series[name] is not None:
                            series[name] = [series[name][i] for i in kept]
    return data


def render(data: dict[str, Any]) -> str:
    """The page: everything in one text, nothing to be fetched."""
    return _filled(
        _asset("page.html"),
        {
            "title": html.escape(data["title"]),
            "style": _asset("page.css"),
            "library": _asset("echarts/echarts.min.js"),
            "data": json_for_script(data),
            "script": "\n".join(_asset(f"js/{name}") for name in SCRIPTS),
        },
    )


def json_for_script(value: Any) -> str:
    r"""JSON that stays within a script element whatever strings are in it.

    Example:
        >>> json_for_script("</script><!-- \u2028")
        '"\\u003c/script>\\u003c!-- \\u2028"'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with its parts; parts are never searched for further places to fill."""
    pieces = []
    for piece in template.split("{{"):
        name, closed, rest = piece.partition("}}")
        pieces.append(parts[name.strip()] + rest if closed else piece)
    return "".join(pieces)


def _asset(name: str) -> str:
    return (resources.files("holdfast.report.page") / "assets" / name).read_text("utf-8")


def _summary(found: Collection, sections: Sequence[Section]) -> str:
    """What is in the page, in a paragraph."""
    counts = {
        "solved model": sum(each.key.startswith("solution ") for each in sections),
        "comparison of algorithms": sum(each.key.startswith("experiment ") for each in sections),
        "training run": len(found.trainings),
        "stress test": len(found.stresses),
    }
    parts = [_counted(number, what) for what, number in counts.items() if number]
    unfinished = sum(not run.finished for run in found.trainings)
    text = f"This page shows {_joined(parts)}." if parts else "There is no run to show yet."
    if unfinished:
        are = "is" if unfinished == 1 else "are"
        text += f" {_counted(unfinished, 'training run')} {are} not finished."
    return text + (
        " The worst case is over all kernels of the uncertainty set; every signal has its own. A margin "
        "is how far a constraint is from its threshold in its worst case; below zero it is violated."
    )


def _counted(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    plural = what.replace("comparison", "comparisons") if " of " in what else f"{what}s"
    return f"{number} {plural}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
