from __future__ import annotations

import math
import re

import pytest

from holdfast.report.figures import DOTS_PER_INCH
from holdfast.report.stress import plot_stress
from holdfast.simulators.certificates.intervals import ConfidenceInterval, Measured
from holdfast.simulators.certificates.stress_result import Row, Stress

BLUE, ORANGE, GREEN = (0, 114, 178), (213, 94, 0), (0, 158, 115)


def result(algorithm="rcpo", *, cost=0.05, slope=0.2, costs=("bombs",), kinds=("attack",)):
    def value(mean):
        interval = ConfidenceInterval(mean, mean - 0.01, mean + 0.01)
        return Measured(*interval, None, (interval,))

    def row(kind, level, subject, worse):
        return Row(
            kind, level, subject, value(10 - worse), (value(cost + slope * worse),) * len(costs)
        )

    rows = [row("nominal", 0.0, "", 0.0)]
    if "attack" in kinds:
        rows += [
            row("attack", radius, name, math.sqrt(radius))
            for name in ("reward", *costs)
            for radius in (0.1, 0.4)
        ]
    rows += [row("noise", level, "", level - 1) for level in (1.0, 2.0) if "noise" in kinds]
    rows += [row("parameter", level, "speed", level) for level in (0.5, 2.0) if "speed" in kinds]
    environment = {"name": "point-gather", "parameters": {"speed": 1.0}}
    setup = {"episodes": 20_000, "confidence": 0.95}
    limits = (0.1,) * len(costs)
    return Stress((f"{algorithm}-0",), tuple(costs), limits, tuple(rows), environment, setup)


def pixels(path):
    from matplotlib.image import imread

    return (255 * imread(path)[..., :3]).round().astype(int)


def texts(path):
    return set(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_every_result_has_its_colour_and_its_critical_radius(tmp_path):
    results = {
        "RCPO": result(slope=0.02),
        "PCPO": result("pcpo"),
        "CPO": result("cpo", cost=0.2),
    }
    plot_stress(tmp_path / "stress.png", results)
    image = pixels(tmp_path / "stress.png")
    for colour in (BLUE, ORANGE, GREEN):
        assert (image == colour).all(-1).sum() > 200
    plot_stress(tmp_path / "stress.svg", results)
    assert {
        "point-gather: mean over 20,000 episodes, with 95 % confidence interval",
        "RCPO: critical radius ≥ 0.4",
        "PCPO: critical radius 0.04",
        "CPO: critical radius none, over the limit nominally",
        "bombs ≤ 0.1",
        "reward",
        "bombs",
    } <= texts(tmp_path / "stress.svg")


def test_the_limit_is_labelled_where_every_cost_is_above_it(tmp_path):
    plot_stress(tmp_path / "over.svg", {"RCPO": result(cost=0.5)})
    assert "bombs ≤ 0.1" in texts(tmp_path / "over.svg")


def test_the_svg_is_the_same_byte_for_byte_and_differs_with_the_results(tmp_path):
    for name, slope in (("a", 0.2), ("b", 0.2), ("c", 0.3)):
        plot_stress(tmp_path / f"{name}.svg", {"RCPO": result(slope=slope)})
    a, b, c = ((tmp_path / f"{name}.svg").read_bytes() for name in "abc")
    assert a == b != c


def test_noise_and_parameters_have_columns_and_costs_have_rows(tmp_path):
    kinds = ("attack", "noise", "speed")
    plot_stress(tmp_path / "wide.svg", {"RCPO": result(costs=("bombs", "heat"), kinds=kinds)})
    assert {
        "attack",
        "more noise",
        "speed",
        "speed (nominal: 1)",
        "heat",
    } <= texts(tmp_path / "wide.svg")
    plot_stress(tmp_path / "small.png", {"RCPO": result()})
    plot_stress(tmp_path / "wide.png", {"RCPO": result(costs=("bombs", "heat"), kinds=kinds)})
    small, wide = (pixels(tmp_path / f"{name}.png").shape for name in ("small", "wide"))
    assert wide[0] > small[0] > DOTS_PER_INCH
    assert wide[1] > small[1]


def test_the_record_draws_itself(tmp_path):
    result().plot(tmp_path / "own.png")
    assert (pixels(tmp_path / "own.png") == BLUE).all(-1).any()


@pytest.mark.parametrize(
    ("name", "results", "message"),
    [
        ("a.pdf", {"RCPO": result()}, "path: expected a name that ends in .png or .svg"),
        ("a.png", {}, "results: expected at least one"),
        ("a.png", {"RCPO": result(kinds=())}, "results: nothing but the nominal kernel"),
        (
            "a.png",
            {"RCPO": result(), "CPO": result(costs=("heat",))},
            "results: CPO has other costs or limits than the first",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, name, results, message):
    with pytest.raises(ValueError, match=message):
        plot_stress(tmp_path / name, results)
    assert not list(tmp_path.iterdir())
