"""The record of a stress: critical radius, table and JSON."""

import json
import math

import pytest

from holdfast.simulators.certificates.intervals import ConfidenceInterval, Measured
from holdfast.simulators.certificates.stress_result import Row, Stress


def fabricated(nominal, *highs, radii=(0.1, 0.4), limits=(0.1,)):
    """A record whose upper ends are given: of each cost at every radius."""

    def value(high):
        return Measured(
            high - 0.02, high - 0.04, high, None, (ConfidenceInterval(high - 0.02, 0.0, high),)
        )

    names = tuple(f"cost {i}" for i in range(len(limits)))
    rows = [Row("nominal", 0.0, "", value(1.0), tuple(value(x) for x in nominal))]
    for name, each in zip(names, highs, strict=True):
        rows += [
            Row("attack", radius, name, value(1.0), (value(high),) * len(names), ("tilted",))
            for radius, high in zip(radii, each, strict=True)
        ]
    environment = {"name": "made-up", "parameters": {}}
    setup = {"episodes": 10, "confidence": 0.95}
    return Stress(("rcpo-0",), names, limits, tuple(rows), environment, setup)


@pytest.mark.parametrize(
    ("nominal", "highs", "radius", "beyond"),
    [
        (0.2, (0.3, 0.4), math.nan, False),
        (0.05, (0.06, 0.1), 0.4, True),
        (0.05, (0.06, 0.14), (math.sqrt(0.1) * 1.5) ** 2, False),
        (0.0, (0.2, 0.3), 0.1 / 4, False),
        # What holds again further out does not count.
        (0.0, (0.2, 0.05), 0.1 / 4, False),
    ],
)
def test_the_critical_radius_is_the_first_crossing(nominal, highs, radius, beyond):
    found = fabricated([nominal], highs)
    assert found.critical_radius == pytest.approx(radius, nan_ok=True)
    assert found.beyond_tested is beyond


def test_the_overall_critical_radius_is_the_smallest():
    found = fabricated([0.0, 0.0], (0.05, 0.06), (0.2, 0.3), limits=(0.1, 0.1))
    assert [each.beyond_tested for each in found.critical_radii] == [True, False]
    assert found.critical_radius == pytest.approx(0.025)
    assert not found.beyond_tested


def test_json_comes_back_the_same(tmp_path):
    found = fabricated([0.05], (0.08, 0.3))
    path = tmp_path / "deep" / "stress.json"
    found.save(path)
    again = Stress.load(path)
    assert again == found
    assert str(again) == str(found)
    fabricated([0.2], (0.3, 0.4)).save(path)
    assert json.loads(path.read_text())["critical_radius"] is None
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"stress\.json: not a result of stress"):
        Stress.load(path)


def test_it_prints_as_a_table():
    text = str(fabricated([0.05], (0.08, 0.3)))
    assert text.splitlines() == [
        "made-up, rcpo-0: mean over 10 episodes [95 % interval]",
        "                                      reward       cost 0 ≤ 0.1",
        "nominal                       0.98 [0.96, 1]  0.03 [0.01, 0.05]",
        "attack on cost 0, radius 0.1  0.98 [0.96, 1]  0.06 [0.04, 0.08]",
        "attack on cost 0, radius 0.4  0.98 [0.96, 1]   0.28 [0.26, 0.3]  limit violated",
        "critical radius of cost 0: 0.119",
    ]


@pytest.mark.parametrize(
    ("nominal", "highs", "lines"),
    [
        (0.05, (0.06, 0.1), ["critical radius of cost 0: at least 0.4, the largest tested"]),
        (
            0.2,
            (0.3, 0.4),
            ["critical radius of cost 0: none, the limit does not hold under the nominal kernel"],
        ),
        (0.05, None, ["critical radius: unknown, no attack was run"]),
    ],
)
def test_the_critical_radius_is_said_in_words(nominal, highs, lines):
    found = fabricated([nominal], highs) if highs else fabricated([nominal], (), radii=())
    assert [line for line in str(found).splitlines() if line.startswith("critical")] == lines
    assert found.attacked == (highs is not None)


def test_without_attacks_there_is_no_critical_radius():
    found = fabricated([0.05], (), radii=())
    assert math.isnan(found.critical_radius)
    assert not found.beyond_tested
    assert math.isnan(found.to_dict()["critical_radius"])


def test_an_interval_around_the_limit_decides_nothing():
    assert "undecided: the interval contains the limit" in str(fabricated([0.05], (0.12, 0.13)))
