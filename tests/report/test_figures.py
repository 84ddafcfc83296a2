from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from holdfast.experiments.results import ConstraintThreshold
from holdfast.report.experiment_charts import iteration_ticks
from holdfast.report.figures import (
    DOTS_PER_INCH,
    PANEL_INCHES,
    write_figure,
)

RUNS = {
    "rcpo": (3.2, [-1.0, 0.5, 0.1, 0.1]),
    "pcpo": (3.1, [-1.0, -1.0, -1.1, -1.2]),
    "cpo": (3.1, [-1.0, -1.1, -1.1, -1.2]),
    "rvi": (3.6, [-1.0, -2.0, -2.0, -2.0]),
}


def pixels(path):
    from matplotlib.image import imread

    return (255 * imread(path)[..., :3]).round().astype(int)


def texts(path):
    # Letters are drawn as shapes; matplotlib writes the text itself beside them as a comment.
    return set(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_the_png_has_its_size_and_every_curve(fabricate, tmp_path):
    write_figure(tmp_path / "figure", fabricate("gambler", **RUNS))
    image = pixels(tmp_path / "figure.png")
    width, height = 2 * PANEL_INCHES[0] * DOTS_PER_INCH, (PANEL_INCHES[1] + 0.4) * DOTS_PER_INCH
    assert image.shape == (height, width, 3)
    for half in (image[:, : image.shape[1] // 2], image[:, image.shape[1] // 2 :]):
        for colour in ((0, 114, 178), (213, 94, 0), (0, 158, 115), (77, 77, 77)):
            assert (half == colour).all(-1).sum() > 200


def test_the_svg_is_the_same_byte_for_byte(fabricate, tmp_path):
    for name in ("first", "second"):
        write_figure(tmp_path / name, fabricate("gambler", **RUNS))
    first, second = ((tmp_path / f"{n}.svg").read_bytes() for n in ("first", "second"))
    assert first == second
    assert b"dc:date" not in first
    assert ET.fromstring(first).tag.endswith("svg")


def test_different_results_give_different_figures(fabricate, tmp_path):
    write_figure(tmp_path / "a", fabricate("gambler", **RUNS))
    write_figure(tmp_path / "b", fabricate("gambler", **RUNS | {"rvi": (3.5, RUNS["rvi"][1])}))
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_what_is_drawn_is_labelled(fabricate, tmp_path):
    write_figure(tmp_path / "figure", fabricate("gambler", **RUNS))
    assert {
        "RCPO",
        "PCPO",
        "CPO",
        "RVI",
        "utility ≥ 2.5",
        "worst-case reward (discounted)",
        "worst-case utility (discounted)",
        "Gambler: mean ± 1 standard deviation, 2 seeds",
    } <= texts(tmp_path / "figure.svg")


def test_the_users_own_matplotlib_settings_do_not_show(fabricate, tmp_path):
    import matplotlib as mpl

    write_figure(tmp_path / "plain", fabricate("gambler", **RUNS))
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 9}):
        write_figure(tmp_path / "own", fabricate("gambler", **RUNS))
        assert mpl.rcParams["font.size"] == 20
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "own.svg").read_bytes()


def test_several_constraints_have_a_panel_each(fabricate, tmp_path):
    bounds = (ConstraintThreshold("utility", 2.0, "thrift"), ConstraintThreshold("cost", 1.5))
    margins = [[0.1, 0.2], [-0.3, 0.1]]
    results = fabricate("gambler", seeds=1, bounds=bounds, rcpo=(1.0, margins), other=(1, margins))
    write_figure(tmp_path / "figure", results)
    assert pixels(tmp_path / "figure.png").shape[1] == 3 * PANEL_INCHES[0] * DOTS_PER_INCH
    assert {
        "thrift ≥ 2",
        "cost ≤ 1.5",
        "worst-case utility: thrift (discounted)",
        "worst-case cost (discounted)",
        "other",
        "Gambler: one seed",
    } <= texts(tmp_path / "figure.svg")


@pytest.mark.parametrize("iterations", [1, 2, 3, 10, 200, 1234, 100_000])
def test_ticks_run_from_the_start_to_the_end_and_stand_apart(iterations):
    ticks = iteration_ticks(iterations)
    assert ticks[0] == 0
    assert ticks[-1] == iterations
    assert (np.diff(np.sqrt(np.array(ticks) / iterations)) >= 0.06).all()


def test_ticks_are_round_numbers():
    assert iteration_ticks(200) == [0, 1, 5, 10, 20, 50, 100, 200]
