from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from holdfast.experiments import PAPER, TabularExperiment


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_experiments_round_trip_through_json(name):
    text = json.dumps(PAPER[name].to_dict())
    assert TabularExperiment.from_dict(json.loads(text)) == PAPER[name]


def test_any_experiment_round_trips_through_json():
    experiment = TabularExperiment(
        environment="gambler",
        algorithms=("rvi",),
        seeds=2,
        iterations=7,
        trust_region=0.1,
        step="taylor",
        safeguard=None,
        worst_case="tilted",
    )
    assert TabularExperiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_the_paper_runs_its_three_models_five_times():
    assert list(PAPER) == ["gambler", "n-chain", "frozen-lake"]
    for name, experiment in PAPER.items():
        assert experiment.environment == name
        assert experiment.seeds == 5
        assert {"rcpo", "pcpo", "rvi"} <= set(experiment.algorithms)


def test_jobs_are_every_algorithm_with_every_seed():
    jobs = TabularExperiment(environment="gambler", algorithms=("rcpo", "rvi"), seeds=3).jobs()
    assert [(job.algorithm, job.seed) for job in jobs] == [
        (algorithm, seed) for algorithm in ("rcpo", "rvi") for seed in range(3)
    ]


def test_a_job_does_not_depend_on_how_many_seeds_there_are():
    few, many = (TabularExperiment(environment="gambler", seeds=n).jobs() for n in (1, 4))
    assert few[0] == many[0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seeds": 0}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"iterations": 0}, "iterations"),
        ({"trust_region": 0.0}, "trust_region"),
        ({"trust_region": float("nan")}, "trust_region"),
        ({"algorithms": ()}, "algorithms"),
    ],
)
def test_impossible_settings_are_refused_by_name(change, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        dataclasses.replace(PAPER["gambler"], **change)


@pytest.mark.parametrize("values", [{}, {"environment": "gambler", "speed": 1}])
def test_a_foreign_record_is_refused(values):
    with pytest.raises(ValueError, match=r"^(environment|speed): "):
        TabularExperiment.from_dict(values)


def test_differences_name_both_values():
    changed = dataclasses.replace(PAPER["gambler"], seeds=1)
    assert changed.differences(PAPER["gambler"]) == {"seeds": (1, 5)}


def test_the_configuration_needs_neither_jax_nor_scipy():
    code = (
        "import sys, holdfast.experiments; "
        "print([m for m in ('jax', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
