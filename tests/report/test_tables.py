from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from holdfast._support.files import to_json
from holdfast.report.experiment import write_experiment
from holdfast.report.tables import write_data

RUNS = {"rcpo": (3.0, [-1.0, 0.5, -0.5, 0.25]), "rvi": (4.0, [-1.0, -2.0, -2.0, -2.0])}


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_experiment_has_its_files_and_equal_results_give_equal_ones(fabricate, tmp_path):
    for name in ("a", "b"):
        write_experiment(tmp_path / name, [fabricate("gambler", **RUNS)])
    tables = [f"{n}.{k}" for n in ("overall", "table", "timings") for k in ("csv", "md", "tex")]
    figures = [f"gambler/{n}.{k}" for n in ("figure", "plane") for k in ("png", "svg")]
    files = [path for path in (tmp_path / "a").rglob("*") if path.is_file()]
    names = {str(path.relative_to(tmp_path / "a")) for path in files}
    assert names == {"versions.json", "gambler/data.csv", *tables, *figures}
    for path in files:
        other = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == other.read_bytes()


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


def test_json_is_strict():
    value = {"a": np.float64("nan"), "b": [np.inf, -np.inf], "c": np.arange(2), "d": np.bool_(True)}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "a": None,
        "b": ["inf", "-inf"],
        "c": [0, 1],
        "d": True,
    }
