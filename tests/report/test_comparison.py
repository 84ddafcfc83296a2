"""The comparison is what a hand would compute, and reads the same in every format."""

from __future__ import annotations

import csv
import dataclasses
import io
import math

import pytest
from rich.console import Console

from holdfast.report.comparison import (
    algorithm_rows,
    best_feasible,
    overall_rows,
)
from holdfast.report.experiment import write_experiment
from holdfast.report.tables import comparison_table, write_comparison

# Last reward (a hundredth more for the second seed) and the margins of the iterates.
RUNS = {
    "rcpo": (3.0, [-1.0, 0.5, -0.5, 0.25]),
    "pcpo": (2.0, [-1.0, 0.5, 0.5, 0.5]),
    "rvi": (4.0, [-1.0, -2.0, -2.0, -2.0]),
}


def of(results, name):
    return next(line for line in algorithm_rows([results]) if line.algorithm == name)


def test_a_line_is_what_a_hand_would_compute(fabricate):
    rcpo = of(fabricate("gambler", **RUNS), "rcpo")
    assert rcpo.reward.value == pytest.approx(3.005)
    assert (rcpo.reward.low, rcpo.reward.high) == pytest.approx((3.0, 3.01))
    assert rcpo.deviation == pytest.approx(0.005)
    assert rcpo.middle.value == pytest.approx(3.005)
    assert (rcpo.margin, rcpo.feasible, rcpo.runs) == (0.25, 1.0, 2)
    assert (rcpo.first_feasible, rcpo.iterations) == (1.0, 3)
    assert rcpo.infeasible_share == pytest.approx(1 / 3)
    assert math.isnan(rcpo.gap)
    # One of the pairs of runs is won, one lost, two are ties.
    assert rcpo.improvement.value == 0.5
    rvi = of(fabricate("gambler", **RUNS), "rvi")
    assert (rvi.feasible, rvi.first_feasible, rvi.infeasible_share) == (0.0, math.inf, 1.0)


def test_a_run_that_is_not_feasible_beats_none_that_is(fabricate):
    results = fabricate("gambler", **RUNS)
    assert of(results, "rvi").improvement.value == 0.0
    assert of(results, "pcpo").improvement.value == 0.0
    worse = fabricate("gambler", **RUNS | {"rcpo": (9.0, [-1.0, -1.0, -1.0, -2.5])})
    # Both miss the constraint, and RVI misses it by less.
    assert of(worse, "rvi").improvement.value == 1.0
    assert of(worse, "pcpo").improvement.value == 1.0


def test_the_best_is_the_best_of_the_feasible(fabricate):
    results = fabricate("gambler", **RUNS)
    assert best_feasible(results) == ["rcpo"]
    assert [line.algorithm for line in algorithm_rows([results]) if line.best] == ["rcpo"]
    tie = fabricate("gambler", **RUNS | {"pcpo": RUNS["rcpo"]})
    assert best_feasible(tie) == ["rcpo", "pcpo"]
    assert best_feasible(fabricate("gambler", error=1.0, **RUNS)) == []


def test_over_all_models(fabricate):
    second = {"rcpo": (1.0, [1.0] * 4), "pcpo": (2.0, [1.0] * 4), "rvi": (2.0, [-1.0] * 4)}
    both = [fabricate("gambler", **RUNS), fabricate("n-chain", **second)]
    rcpo, pcpo, rvi = overall_rows(both)
    assert (rcpo.best, pcpo.best, rvi.best, rcpo.cells) == (1, 1, 0, 2)
    assert (rcpo.feasible.value, pcpo.feasible.value, rvi.feasible.value) == (1.0, 1.0, 0.0)
    assert pcpo.improvement.value == 0.5  # never on the one, always on the other
    # Shares: of 3.005 and of 2.005, two runs each; the middle two count.
    lacks = sorted([0.005 / 3.005, -0.005 / 3.005, 1.005 / 2.005, 0.995 / 2.005])
    assert rcpo.shortfall == pytest.approx((lacks[1] + lacks[2]) / 2)
    assert math.isnan(rvi.shortfall)


def test_certificates_bring_their_gap(fabricate, tmp_path):
    results = fabricate("gambler", **RUNS)
    runs = {
        name: [
            dataclasses.replace(run, certificate={"gap": 0.01 * (i + 1)})
            for i, run in enumerate(of_)
        ]
        for name, of_ in results.runs.items()
    }
    certified = dataclasses.replace(results, runs=runs)
    assert of(certified, "rcpo").gap == 0.02
    write_comparison(tmp_path, [certified])
    assert "| gap |" in (tmp_path / "table.md").read_text()


def test_every_format_says_the_same(fabricate, tmp_path):
    results = [fabricate("gambler", **RUNS), fabricate("frozen-lake", **RUNS)]
    write_comparison(tmp_path, results)
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(rows, algorithm_rows(results), strict=True):
        assert row["algorithm"] == line.algorithm
        assert float(row["reward"]) == line.reward.value
        assert float(row["reward_low"]) == line.reward.low
        assert row["best"] == str(line.best)
    text = (tmp_path / "table.md").read_text()
    assert "| **gambler** | **RCPO** | **2** | **3.005 ± 0.005** |" in text
    assert "| gambler | RVI | 2 | 4.005 ± 0.005 |" in text
    assert "beats RCPO" in text
    tex = (tmp_path / "table.tex").read_text()
    assert r"\textbf{RCPO} & \textbf{2} & \textbf{3.005 $\pm$ 0.005}" in tex
    assert tex.count(r"\\") == 1 + len(rows)
    assert "%" not in tex.replace(r"\%", "")
    assert comparison_table(results).row_count == len(rows)


def test_timings_are_in_files_of_their_own(fabricate, tmp_path):
    results = [fabricate("gambler", **RUNS)]
    assert algorithm_rows(results)[0].seconds == pytest.approx(2 * 1.5)
    write_comparison(tmp_path, results)
    slower = fabricate("gambler", **RUNS)
    for run in slower:
        run.history["seconds"][:] *= 2
    write_comparison(tmp_path / "slower", [slower])
    for path in tmp_path.glob("*.*"):
        same = path.read_bytes() == (tmp_path / "slower" / path.name).read_bytes()
        assert same == (path.stem != "timings")


def test_a_model_at_several_radii_gets_a_figure_of_them(fabricate, tmp_path):
    at = [dataclasses.replace(fabricate("gambler", **RUNS), radius=r) for r in (0.1, 0.2)]
    write_experiment(tmp_path, at)
    assert {path.name for path in tmp_path.glob("gambler-radii.*")} == {
        "gambler-radii.png",
        "gambler-radii.svg",
    }
    drawn = (tmp_path / "gambler-radii.svg").read_text()
    assert all(f"<!-- {name} -->" in drawn for name in ("RCPO", "PCPO", "RVI", "radius"))
    plane = (tmp_path / "gambler-radius-0.1" / "plane.svg").read_text()
    assert all(f"<!-- {name} -->" in plane for name in ("RCPO", "PCPO", "RVI"))
    assert "radius" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("width", [100, 120, 160])
def test_the_table_fits_the_terminal_and_says_never_only_if_no_run_becomes_feasible(
    fabricate, width
):
    results = fabricate("frozen-lake", **RUNS)
    for run in results.runs["rvi"][:1]:
        run.history["margins"][1:] = 0.5
    text = io.StringIO()
    console = Console(file=text, width=width)
    console.print(comparison_table([results], width))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in text.getvalue()
    assert all(
        name in text.getvalue() for name in ("frozen-lake", "RVI", "50 %", "CPU-seconds", "0.0 │")
    )
    assert "never" not in text.getvalue()
    assert of(results, "rvi").first_feasible == 1.0
