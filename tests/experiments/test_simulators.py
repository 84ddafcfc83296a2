"""A tiny experiment in a simulator: trained, stressed, kept, carried home from elsewhere."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest

from holdfast._support.files import write_bytes
from holdfast.experiments import DeepExperiment, TrainingJob
from holdfast.experiments.runner import run

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
    return run(EXPERIMENT, folder, stream=io.StringIO())


def test_it_is_trained_and_stressed(found, folder):
    (results,) = found.results
    assert found.failures == []
    trained = results.of("pcpo", 0.01)
    assert trained.curve("nominal_reward").shape == (1, 1)
    labels = ["nominal", "noise × 2"]
    likely = [f"{label}, most likely actions" for label in labels]
    assert [row.label for row in trained.stress.rows] == labels + likely
    description = json.loads((folder / "point-gather" / "experiment.json").read_text())
    assert description["experiment"] == EXPERIMENT.to_dict()
    with pytest.raises(KeyError):
        results.of("rcpo", 0.01)


def test_what_is_finished_is_kept(found, folder):
    stream = io.StringIO()
    again = run(EXPERIMENT, folder, stream=stream)
    assert stream.getvalue() == "[1/1] 1 kept from an earlier run\n"
    assert again.results[0].runs == found.results[0].runs


def test_another_stress_is_another_result(found, folder, monkeypatch):
    begun = []
    monkeypatch.setattr(TrainingJob, "run", lambda self, _: iter(begun.append(self) or ()))
    changed = dataclasses.replace(EXPERIMENT, episodes=60)
    outcome = run(changed, folder, stream=io.StringIO())
    assert [job.stress["episodes"] for job in begun] == [60]
    assert outcome.results == []  # nothing was measured, so nothing is shown


def test_a_run_without_the_folder_returns_every_file(found, tmp_path):
    (job,) = EXPERIMENT.jobs()
    for file in job.run(None):
        write_bytes(tmp_path / file.path, file.data)
    there = run(EXPERIMENT, tmp_path, stream=(stream := io.StringIO()))
    assert "1 kept" in stream.getvalue()
    assert there.results[0].of("pcpo", 0.01).rows == found.results[0].of("pcpo", 0.01).rows


def test_impossible_trainings_are_refused_before_any_work(tmp_path):
    for change, message in (
        ({"environments": ("casino",)}, "environments: there is no 'casino'"),
        ({"algorithms": ("magic",)}, "algorithm: there is no 'magic'"),
    ):
        with pytest.raises(ValueError, match=message):
            run(dataclasses.replace(EXPERIMENT, **change), tmp_path)
    assert list(tmp_path.iterdir()) == []
