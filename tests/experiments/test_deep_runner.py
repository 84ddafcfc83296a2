"""A tiny experiment in a simulator: trained, stressed, kept, carried home from elsewhere."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from holdfast._support.files import write_bytes
from holdfast.experiments import DeepExperiment
from holdfast.experiments.deep_runner import TrainTask, run_deep

EXPERIMENT = DeepExperiment(
    algorithms=("pcpo",),
    references=(),
    undisturbed=(),
    trust_regions=(0.01,),
    seeds=1,
    iterations=1,
    batch_size=300,
    attacks=(),
    noise=(2.0,),
    action_noise=(),
    episodes=50,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deep")


@pytest.fixture(scope="module")
def found(folder):
    return run_deep(EXPERIMENT, folder, stream=io.StringIO())


def test_it_is_trained_and_stressed(found, folder):
    (results,), failures = found
    assert failures == []
    trained = results.of("pcpo", 0.01)
    assert trained.curve("nominal_reward").shape == (1, 1)
    assert [row.label for row in trained.stress.rows] == ["nominal", "noise × 2"]
    description = json.loads((folder / "point-gather" / "experiment.json").read_text())
    assert description["experiment"] == EXPERIMENT.to_dict()
    with pytest.raises(KeyError):
        results.of("rcpo", 0.01)


def test_what_is_finished_is_kept(found, folder):
    stream = io.StringIO()
    again, _ = run_deep(EXPERIMENT, folder, stream=stream)
    assert stream.getvalue() == "1 kept from an earlier run\n"
    assert again[0].runs == found[0][0].runs


def test_another_stress_is_another_result(found, folder, monkeypatch):
    begun = []
    monkeypatch.setattr(TrainTask, "run", lambda self, _: iter(begun.append(self) or ()))
    changed = dataclasses.replace(EXPERIMENT, episodes=60)
    results, _ = run_deep(changed, folder, stream=io.StringIO())
    assert [task.asked["episodes"] for task in begun] == [60]
    assert results == []  # nothing was measured, so nothing is shown


def test_a_run_elsewhere_comes_home_whole(found, folder, tmp_path):
    (job,) = EXPERIMENT.jobs()
    asked = {
        "radii": None,
        "noise": (2.0,),
        "action_noise": None,
        "episodes": 50,
        "restarts": 2,
        "updates": 100,
    }
    for file in TrainTask(job, asked).run(None):
        write_bytes(tmp_path / file.path, file.data)
    (there,), _ = run_deep(EXPERIMENT, tmp_path, stream=(stream := io.StringIO()))
    assert "1 kept" in stream.getvalue()
    assert there.of("pcpo", 0.01).rows == found[0][0].of("pcpo", 0.01).rows


def test_what_cannot_be_trained_is_refused_before_any_work(tmp_path):
    for change, message in (
        ({"environments": ("casino",)}, "environments: there is no 'casino'"),
        ({"algorithms": ("magic",)}, "algorithm: expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            run_deep(dataclasses.replace(EXPERIMENT, **change), tmp_path)
    assert list(tmp_path.iterdir()) == []
