from __future__ import annotations

import json
import shutil

import pytest

from holdfast.report.page import write_page
from holdfast.report.page.collect import Kept, collect
from holdfast.simulators.training import runs

from .conftest import compared, experiment_folder, stressed, train_folder


def reasons(found):
    return {each.path.rsplit("/", 1)[-1]: each.reason for each in found.skipped}


@pytest.fixture
def solved(all_runs, tmp_path):
    """A copy of a solved model's folder, to be spoilt."""
    return shutil.copytree(all_runs / "lake", tmp_path / "solved")


def test_runs_are_found_at_any_depth_and_once(gather_run, tmp_path):
    train_folder(tmp_path / "a" / "b" / "run", gather_run, 1)
    (tmp_path / "a" / ".hidden").mkdir()
    (tmp_path / "a" / ".hidden" / "run.json").write_text("{")
    found = collect([tmp_path, tmp_path / "a", tmp_path / "a" / "b" / "run"])
    assert len(found.trainings) == 1
    assert found.skipped == []


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere: not a folder"):
        collect([tmp_path / "nowhere"])


def test_a_page_of_nothing_is_refused_with_what_was_skipped(tmp_path):
    with pytest.raises(ValueError, match=r"no run to show$"):
        write_page([tmp_path], tmp_path / "report.html")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("[]")
    with pytest.raises(ValueError, match=r"no run to show; .*run: run\.json: damaged"):
        write_page([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("solution.json", "solution.json: damaged"),
        ("certificate.json", "certificate.json: damaged"),
        ("policy.npz", "policy.npz: not a policy"),
        ("model.npz", "model.npz"),
        ("history.csv", "damaged"),
    ],
)
def test_a_damaged_solution_is_named(solved, name, reason):
    _cut(solved / name)
    found = collect([solved])
    assert found.is_empty
    assert reason in reasons(found)["solved"]


def test_a_solution_without_its_record_or_of_a_newer_version_is_named(solved):
    record = json.loads((solved / "solution.json").read_text())
    record["versions"]["holdfast"] = "1000.0"
    (solved / "solution.json").write_text(json.dumps(record))
    assert "written by Holdfast 1000.0" in reasons(collect([solved]))["solved"]
    (solved / "solution.json").unlink()
    assert reasons(collect([solved]))["solved"] == "holds certificate.json but no solution.json"


def test_a_damaged_training_run_is_named(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 2)
    whole = (folder / runs.METRICS).read_text()
    (folder / runs.METRICS).write_text("nothing\n" + whole)
    assert "damaged in line 1" in reasons(collect([folder]))["run"]
    (folder / runs.METRICS).write_text('{"iteration": 0, "seed": 0}\n')
    assert "line 1 has no reward" in reasons(collect([folder]))["run"]
    (folder / runs.DESCRIPTION).unlink()
    assert reasons(collect([folder]))["run"] == "holds metrics.jsonl but no run.json"


def test_a_training_run_of_a_newer_format_is_named(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 1)
    described = json.loads((folder / "run.json").read_text())
    described["format"] = "holdfast-run-2"
    (folder / "run.json").write_text(json.dumps(described))
    assert "not the description of a training run" in reasons(collect([folder]))["run"]


def _without(name):
    def change(described):
        *outer, last = name.split(".")
        for key in outer:
            described = described[key]
        del described[last]

    return change


@pytest.mark.parametrize(
    "change",
    [
        *map(_without, ("environment", "environment.name", "settings", "limits", "made_with")),
        lambda described: described.update(seeds=[]),
        lambda described: described.update(seeds=[0, 0]),
        lambda described: described.update(limits=["0.1"]),
        lambda described: described.update(limits=[10**400]),
        lambda described: described["settings"].update(iterations="6"),
        lambda described: described["environment"].update(name="\ud800"),
    ],
)
def test_a_damaged_description_costs_its_run_and_not_the_page(gather_run, tmp_path, change):
    train_folder(tmp_path / "whole", gather_run, 2)
    folder = train_folder(tmp_path / "spoilt", gather_run, 2)
    described = json.loads((folder / "run.json").read_text())
    change(described)
    (folder / "run.json").write_text(json.dumps(described))
    (skipped,) = write_page([tmp_path], tmp_path / "report.html")
    assert skipped.path == str(folder)
    assert skipped.reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", "12"),
        ("reward", None),
        ("kl", True),
        ("costs", 0.1),
        ("costs", [0.1, 0.2]),
        ("cost_errors", [[0.1]]),
        ("nominal_reward", 1e308),
        ("seed", 7),
        ("iteration", 5),
    ],
)
def test_a_changed_measurement_costs_its_run_and_not_the_page(gather_run, tmp_path, name, value):
    train_folder(tmp_path / "whole", gather_run, 2)
    folder = train_folder(tmp_path / "spoilt", gather_run, 2)
    lines = (folder / runs.METRICS).read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {name: value})
    (folder / runs.METRICS).write_text("\n".join(lines) + "\n")
    (skipped,) = write_page([tmp_path], tmp_path / "report.html")
    assert skipped.path == str(folder)
    assert "line 2" in skipped.reason


def test_a_stress_test_that_cannot_be_shown_is_named(gather_run, tmp_path):
    folder = train_folder(tmp_path / "run", gather_run, 2)
    result = stressed().to_dict()
    del result["setup"]["confidence"]
    (folder / "stress.json").write_text(json.dumps(result))
    found = collect([folder])
    assert [each.stress for each in found.trainings] == [None]
    assert "confidence" in reasons(found)["stress.json"]


def test_a_damaged_part_leaves_the_rest_of_a_run(all_runs, tmp_path):
    folder = shutil.copytree(all_runs / "gather" / "rcpo", tmp_path / "run")
    _cut(folder / "stress.json")
    _cut(folder / "agent-0.safetensors")
    found = collect([folder])
    assert len(found.trainings) == 1
    assert found.trainings[0].arena is None
    assert "not a result of stress" in reasons(found)["stress.json"]
    assert "agent-0.safetensors: damaged" in reasons(found)["run"]


def test_stress_in_a_folder_of_its_own_is_shown(tmp_path):
    (tmp_path / "agent-0-stress").mkdir()
    stressed().save(tmp_path / "agent-0-stress" / "stress.json")
    found = collect([tmp_path])
    assert [folder for folder, _ in found.stresses] == [str(tmp_path / "agent-0-stress")]


def test_experiments_have_a_section_for_each_model(tmp_path):
    several = compared(), compared("gambler")
    folder = experiment_folder(tmp_path / "comparison", *several)
    assert [each.title for each in collect([folder]).sections] == ["frozen-lake", "gambler"]
    damaged = next(folder.glob("gambler/jobs/*.npz"))
    _cut(damaged)
    found = collect([folder])
    assert len(found.sections) == 2
    assert [each.path for each in found.skipped] == [str(damaged)]
    newer = experiment_folder(tmp_path / "newer", *several, version="77")
    assert "newer than this one" in reasons(collect([newer]))["newer"]


def test_what_has_not_changed_is_not_made_again(tmp_path):
    file, kept, made = tmp_path / "file", Kept(), []
    make = lambda: made.append(1) or len(made)  # noqa: E731
    file.write_text("a")
    assert [kept.get("key", [file], make), kept.get("key", [file], make)] == [1, 1]
    file.write_text("longer")
    assert kept.get("key", [file], make) == 2
    assert kept.get("key", [file, tmp_path / "not there"], make) == 3
