from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from holdfast.experiments.results import ConstraintThreshold
from holdfast.report.charts import Axis, Chart, Limit, Series, Trace, iteration_ticks, margin_plane
from holdfast.report.figures import (
    DOTS_PER_INCH,
    PANEL_INCHES,
    _draw_arrow,
    _draw_plane,
    draw_chart,
    write_figure,
    write_plane,
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


@pytest.fixture(scope="module")
def drawn(fabricate, tmp_path_factory):
    """The figures of one experiment, drawn once."""
    folder = tmp_path_factory.mktemp("figures")
    write_figure(folder / "figure", fabricate("gambler", **RUNS))
    write_plane(folder / "plane", fabricate("gambler", **RUNS))
    return folder


def test_the_png_has_its_size_and_every_curve(drawn):
    image = pixels(drawn / "figure.png")
    width, height = 2 * PANEL_INCHES[0] * DOTS_PER_INCH, (PANEL_INCHES[1] + 0.4) * DOTS_PER_INCH
    assert image.shape == (height, width, 3)
    for half in (image[:, : image.shape[1] // 2], image[:, image.shape[1] // 2 :]):
        for colour in ((0, 114, 178), (213, 94, 0), (0, 158, 115), (77, 77, 77)):
            assert (half == colour).all(-1).sum() > 200


def test_the_svg_depends_on_the_results_only(drawn, fabricate, tmp_path):
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 20, "axes.facecolor": "red", "lines.linewidth": 9}):
        write_figure(tmp_path / "own", fabricate("gambler", **RUNS))
        assert mpl.rcParams["font.size"] == 20
    write_figure(tmp_path / "other", fabricate("gambler", **RUNS | {"rvi": (3.5, RUNS["rvi"][1])}))
    first = (drawn / "figure.svg").read_bytes()
    assert first == (tmp_path / "own.svg").read_bytes()
    assert first != (tmp_path / "other.svg").read_bytes()
    assert b"dc:date" not in first
    assert ET.fromstring(first).tag.endswith("svg")


def test_what_is_drawn_is_labelled(drawn):
    assert {
        "RCPO",
        "PCPO",
        "CPO",
        "RVI",
        "utility ≥ 2.5",
        "worst-case reward (discounted)",
        "worst-case utility (discounted)",
        "Gambler: mean ± 1 standard deviation, 2 seeds",
    } <= texts(drawn / "figure.svg")
    assert {
        "start",
        "infeasible end",
        "smallest worst-case margin (left of the line: violated)",
    } <= texts(drawn / "plane.svg")


def test_the_plane_has_every_run_from_its_start_along_an_arrow_to_its_end(fabricate):
    axes = Figure().subplots()
    _draw_plane(axes, margin_plane(fabricate("gambler", **RUNS)))
    starts = [line for line in axes.lines if line.get_marker() == "s"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in starts[:2]] == [
        (-1.0, 0.0),
        (-1.0, 0.01),
    ]
    ends = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(starts) == len(ends) == len(axes.texts) == 8  # four algorithms, two seeds
    filled = [line.get_markerfacecolor() for line in ends]
    assert filled == ["#0072b2"] * 2 + ["white"] * 6


def test_the_arrow_points_along_the_path():
    axes = Figure().subplots()
    axes.plot([2.0, 1.0, 0.0], [0.0, 0.5, 1.0])
    _draw_arrow(axes, Trace([2.0, 1.0, 0.0], [0.0, 0.5, 1.0]), "black")
    (arrow,) = axes.texts
    assert arrow.xy[0] < arrow.xyann[0]
    assert arrow.xy[1] > arrow.xyann[1]


@pytest.mark.parametrize(("values", "limit"), [([0.3, 0.5], 0.1), ([0.01, 0.02], 0.1)])
def test_a_limit_is_drawn_within_the_axes_wherever_the_curves_are(values, limit):
    axes = Figure().subplots()
    series = Series("RCPO", "#0072b2", "solid", [0, 1], values)
    chart = Chart("cost", Axis("radius"), "cost", [series], [Limit(limit, "cost ≤ 0.1", "above")])
    draw_chart(axes, chart)
    low, high = axes.get_ylim()
    assert low < limit < high
    (line,) = (line for line in axes.lines if list(line.get_ydata()) == [limit, limit])
    assert line.get_visible()


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
