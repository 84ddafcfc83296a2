from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from holdfast.experiments import TabularExperiment
from holdfast.report.experiment import write_experiment
from holdfast.report.tables import summary, to_json, write_data

RUNS = {"rcpo": (3.0, [-1.0, 0.5, -0.5, 0.25]), "rvi": (4.0, [-1.0, -2.0, -2.0, -2.0])}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_of_an_experiment(fabricate, tmp_path):
    write_experiment(tmp_path / "gambler", fabricate("gambler", **RUNS))
    assert sorted(path.name for path in (tmp_path / "gambler").iterdir()) == [
        "config.json",
        "data.csv",
        "figure.png",
        "figure.svg",
        "summary.csv",
        "summary.json",
    ]


def test_data_has_every_iterate_of_every_run(fabricate, tmp_path):
    results = fabricate("gambler", **RUNS)
    write_data(tmp_path / "data.csv", results)
    data = rows(tmp_path / "data.csv")
    assert len(data) == 2 * 2 * 4
    expected = ["algorithm", "seed", "iteration", "reward", "utility", "margin"]
    expected += ["nominal_reward", "nominal_utility", "kl", "recovered", "error"]
    assert list(data[0]) == expected
    row = next(r for r in data if (r["algorithm"], r["seed"], r["iteration"]) == ("rcpo", "1", "2"))
    history = results.runs["rcpo"][1].history
    assert float(row["reward"]) == history["reward"][2]
    assert float(row["margin"]) == -0.5
    assert float(row["utility"]) == 2.0
    assert float(row["nominal_utility"]) == 2.5
    assert row["recovered"] == "False"


def test_the_summary_is_what_a_hand_would_compute(fabricate):
    rcpo, rvi = summary(fabricate("gambler", **RUNS))
    assert rcpo["algorithm"] == "rcpo"
    assert rcpo["reward_mean"] == pytest.approx(3.005)
    assert rcpo["reward_std"] == pytest.approx(0.005)
    assert (rcpo["utility_mean"], rcpo["utility_std"]) == (2.75, 0.0)
    assert rcpo["smallest_margin"] == 0.25
    assert rcpo["seeds_feasible"] == rcpo["seeds"] == 2
    # After the first feasible iterate come an infeasible one and a feasible one, on both seeds.
    assert rcpo["infeasible_share_after_first_feasible"] == 0.5
    assert rcpo["seconds"] == pytest.approx(2 * 1.5)
    assert rvi["seeds_feasible"] == 0
    assert math.isnan(rvi["infeasible_share_after_first_feasible"])


def test_the_error_counts_against_feasibility(fabricate):
    rcpo, _ = summary(fabricate("gambler", error=0.3, **RUNS))
    assert rcpo["seeds_feasible"] == 0


def test_the_summary_is_the_same_as_json_and_csv(fabricate, tmp_path):
    results = fabricate("gambler", **RUNS)
    write_experiment(tmp_path, results)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["environment"] == "gambler"
    assert written["constraints"] == [{"kind": "utility", "threshold": 2.5, "name": "utility"}]
    for record, row in zip(written["algorithms"], rows(tmp_path / "summary.csv"), strict=True):
        assert list(record) == list(row)
        for name, value in record.items():
            if isinstance(value, float):
                assert float(row[name]) == value
    assert written["algorithms"][1]["infeasible_share_after_first_feasible"] is None


def test_the_configuration_can_be_run_again(fabricate, tmp_path):
    results = fabricate("gambler", **RUNS)
    write_experiment(tmp_path, results)
    config = json.loads((tmp_path / "config.json").read_text())
    assert TabularExperiment.from_dict(config["experiment"]) == results.experiment
    assert set(config["versions"]) == {"holdfast", "jax", "numpy", "python"}
    assert str(tmp_path) not in (tmp_path / "config.json").read_text()


def test_equal_results_give_equal_files(fabricate, tmp_path):
    for name in ("a", "b"):
        write_experiment(tmp_path / name, fabricate("gambler", **RUNS))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_json_is_strict():
    value = {"a": np.float64("nan"), "b": [np.inf, -np.inf], "c": np.arange(2), "d": np.bool_(True)}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "a": None,
        "b": ["inf", "-inf"],
        "c": [0, 1],
        "d": True,
    }
