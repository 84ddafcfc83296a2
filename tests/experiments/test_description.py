from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from holdfast._support.files import path_inside
from holdfast.experiments import (
    DeepExperiment,
    Job,
    SolveSettings,
    TabularExperiment,
    read_description,
    read_suite,
    suites,
)

PAPER = read_suite("paper")


@pytest.mark.parametrize("name", suites())
def test_every_experiment_in_the_package_round_trips_through_json(name):
    experiment = read_suite(name)
    assert experiment.name == name
    assert type(experiment).from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


def test_any_experiment_round_trips_through_json():
    experiment = TabularExperiment(
        environments=("gambler", "small"),
        algorithms=("rvi",),
        radii=(0.1, 0.3),
        seeds=2,
        settings=SolveSettings(7, 0.1, "taylor", "none", "tilted", {"a": 1}),
        variants={"a": {"iterations": 3}},
        algorithm={"rvi": {"iterations": 9}},
        environment={"small": {"model": "gambler", "goal": 4}},
        certify=True,
        nodes=3,
    )
    assert TabularExperiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    job = experiment.jobs()[0]
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_the_paper_runs_its_three_models_five_times():
    assert PAPER.environments == ("gambler", "n-chain", "frozen-lake")
    assert PAPER.seeds == 5
    assert {"rcpo", "pcpo", "rvi"} <= set(PAPER.algorithms)
    assert PAPER.settings == SolveSettings()


def test_the_papers_simulator_is_the_default_one():
    defaults = {k: v for k, v in DeepExperiment().to_dict().items() if k not in ("name", "about")}
    described = read_suite("point-gather").to_dict()
    assert {k: described[k] for k in defaults} == defaults


def test_jobs_are_every_algorithm_with_every_seed():
    jobs = TabularExperiment(("gambler",), algorithms=("rcpo", "rvi"), seeds=3).jobs()
    assert [(job.algorithm, job.seed) for job in jobs] == [
        (algorithm, seed) for algorithm in ("rcpo", "rvi") for seed in range(3)
    ]
    assert len({job.path for job in jobs}) == len(jobs)


def test_a_job_does_not_depend_on_how_many_seeds_there_are():
    few, many = (TabularExperiment(("gambler",), seeds=n).jobs() for n in (1, 4))
    assert few[0] == many[0]


def test_an_algorithms_own_settings_come_before_a_variants():
    experiment = TabularExperiment(
        ("gambler",),
        algorithms=("rcpo", "rvi"),
        seeds=1,
        settings=SolveSettings(iterations=10),
        algorithm={"rvi": {"iterations": 20, "step": "taylor"}},
        variants={"as they are": {}, "short": {"iterations": 5}},
    )
    found = {job.label: (job.settings.iterations, job.settings.step) for job in experiment.jobs()}
    assert found == {
        "rcpo as they are": (10, "exact"),
        "rcpo short": (5, "exact"),
        "rvi as they are": (20, "taylor"),
        "rvi short": (5, "taylor"),
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seeds": 0}, "seeds"),
        ({"seeds": True}, "seeds"),
        ({"algorithms": ()}, "algorithms"),
        ({"algorithms": ("rcpo", "rcpo")}, "algorithms"),
        ({"environments": ()}, "environments"),
        ({"environments": ("../secret",)}, "environments"),
        ({"radii": (-1.0,)}, "radii"),
        ({"radii": (float("nan"),)}, "radii"),
        ({"nodes": 5}, "nodes"),
        ({"seeds": 10**9}, "seeds"),
        ({"name": "../x"}, "name"),
        ({"name": 3}, "name"),
        ({"certify": 1}, "certify"),
        ({"algorithms": ("../x:NAME",)}, "algorithms"),
        ({"variants": {"/../../x": {}}}, "variants"),
        ({"variants": {"a\0b": {}}}, "variants"),
        ({"variants": {"x" * 300: {}}}, "variants"),
        ({"search": {"rcpo": {"settings": {"mode": ["/../../x"]}}}}, r"search\.rcpo"),
        ({"algorithm": {"magic": {}}}, r"algorithm\.magic"),
        ({"environment": {"casino": {}}}, r"environment\.casino"),
        ({"variants": {"a": {"iteration": 3}}}, r"variants\.a\.iteration"),
        ({"algorithm": {"rcpo": {"iterations": 0}}}, r"algorithm\.rcpo\.iterations"),
    ],
)
def test_impossible_experiments_are_refused_by_name(change, named):
    with pytest.raises(ValueError, match=f"^{named}: "):
        dataclasses.replace(PAPER, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"trust_region": 0.0},
        {"trust_region": float("nan")},
        {"step": "sideways"},
        {"safeguard": "prayer"},
        {"worst_case": "guess"},
        {"settings": 3},
    ],
)
def test_impossible_settings_are_refused_by_name(change):
    with pytest.raises(ValueError, match=f"^{next(iter(change))}: "):
        SolveSettings(**change)


GOOD = 'environments = ["gambler"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("environments = [", "not TOML"),
        ("", "environments: expected at least one name"),
        ('environments = "gambler"', "environments: expected a list"),
        ("environments = [3]", "environments: expected names"),
        (GOOD + "algoritms = []", "algoritms: no such key; did you mean algorithms?"),
        (GOOD + "[settings]\niteration = 3", "settings.iteration: .*did you mean iterations?"),
        (GOOD + "settings = 3", "settings: expected a table"),
        (GOOD + "[settings]\niterations = 0", "settings.iterations: expected a whole number"),
        (GOOD + "name = 3", "name: expected a string"),
        (GOOD + 'certify = "no"', "certify: expected true or false"),
        (GOOD + 'kind = "simulators"\ncost_limit = "much"', "cost_limit: expected a .*number"),
        (GOOD + '[variants."/../../x"]', "variants: '/../../x' cannot be part of a file name"),
        (GOOD + "radii = [true]", "radii: expected numbers"),
        (GOOD + f"radii = [1{400 * '0'}]", "radii: expected numbers"),
        (GOOD + "variants = [1]", "variants: expected a table"),
        (GOOD + "[variants]\na = 1", "variants.a: expected a table"),
        (GOOD + 'kind = "dreams"', "kind: expected tables or simulators or robots, got 'dreams'"),
        (GOOD + 'kind = "simulators"\nbatchsize = 3', "batchsize: .*did you mean batch_size?"),
        (GOOD + 'kind = "simulators"\nseeds = 0', "seeds: expected a whole number"),
        (GOOD + 'kind = "simulators"\nradii = []', "radii: expected at least one number"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_path_and_what_is_wrong(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refusal:
        read_description(path)
    assert str(refusal.value).startswith(f"{path}: ")


def test_too_many_seeds_are_refused_at_once_with_the_number_of_jobs(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + "seeds = 1_000_000_000")
    with pytest.raises(ValueError, match="1,000,000,000 seeds make 4,000,000,000 jobs"):
        read_description(path)
    with pytest.raises(ValueError, match="seeds: expected at most"):
        DeepExperiment(seeds=10**9)


def test_every_path_of_an_experiment_is_inside_its_folder(tmp_path):
    assert path_inside(tmp_path, "a/b.npz") == tmp_path / "a" / "b.npz"
    (tmp_path / "link").symlink_to(tmp_path.parent)
    for name in ("../x", "/etc/x", "a/../../x", "link/x"):
        with pytest.raises(ValueError, match="leads out of"):
            path_inside(tmp_path, name)
    for job in (*PAPER.jobs(), *DeepExperiment().jobs()):
        path_inside(tmp_path, job.path)


def test_a_name_that_is_not_there_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="papr: no such experiment; did you mean paper"):
        read_description("papr")
    with pytest.raises(ValueError, match="cannot be read"):
        read_description(tmp_path / "missing.toml")


def test_differences_name_both_values():
    changed = dataclasses.replace(PAPER, seeds=1, settings=SolveSettings(iterations=3))
    assert changed.differences(PAPER) == {"seeds": (1, 5), "iterations": (3, 200)}


def test_training_runs_have_folders_of_their_own():
    experiment = DeepExperiment(radii=(0.1, 0.2))
    paths = [job.path for job in experiment.jobs()]
    assert len(set(paths)) == len(paths)
    assert "point-gather/rcpo-0.01-radius-0.1" in paths
    assert "point-gather/pcpo-0.01" in paths


def test_the_configuration_needs_neither_jax_nor_scipy():
    code = (
        "import sys, holdfast.experiments, holdfast.experiments.engines.processes; "
        "print([m for m in ('jax', 'scipy', 'matplotlib', 'ray') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
