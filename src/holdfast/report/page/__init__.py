"""The HTML page of a report: one file that shows runs in a browser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from holdfast._support.files import write_text
from holdfast.report.page.collect import Collection, collect
from holdfast.report.page.content import MOST_POINTS, Skipped
from holdfast.report.page.render import page_data, render

# Larger files take a browser seconds to open, and mail servers refuse them.
MOST_BYTES = 6_000_000
# Points per curve: fewer where the page would be too large.
_MOST_POINTS = (MOST_POINTS, 120, 40)


def write_page(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]
) -> tuple[Skipped, ...]:
    """Write a page about all runs in folders; an error leaves no file behind.

    Arguments:
        paths: folders that `holdfast solve`, `train`, `stress`, `bench` or `reproduce` wrote, or folders
            that contain such folders.
        out: the file, such as report.html.

    Returns:
        The runs that are not on the page, because they are damaged or a newer version wrote them.

    Raises:
        ValueError: a path is not a folder, or there is no run to show, or too many for a page.

    Example:
        >>> import pathlib, tempfile
        >>> import holdfast as hf
        >>> from holdfast.report.page import write_page
        >>> from holdfast.report.solution import write_solution
        >>> model = hf.environments.n_chain(nodes=5)
        >>> settings = {"environment": "n-chain", "algorithm": "rcpo"}
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = pathlib.Path(name)
        ...     write_solution(folder / "chain", model, hf.solve(model, iterations=2), settings)
        ...     skipped = write_page([folder], folder / "report.html")
        ...     (folder / "report.html").stat().st_size < 6_000_000, skipped
        (True, ())
    """
    found = collect([Path(path) for path in paths])
    if found.is_empty:
        reasons = [f"{each.path}: {each.reason}" for each in found.skipped]
        names = ", ".join(str(path) for path in paths)
        raise ValueError("; ".join([f"{names}: no run to show", *reasons]))
    write_text(out, _small_enough(found))
    return tuple(found.skipped)


def _small_enough(found: Collection) -> str:
    """Return the page, with fewer points per curve if it would be too large."""
    for most in _MOST_POINTS:
        text = render(page_data(found, most=most))
        size = len(text.encode())
        if size < MOST_BYTES:
            return text
    raise ValueError(
        f"RUNS: the page would have {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:g}; name fewer"
    )
