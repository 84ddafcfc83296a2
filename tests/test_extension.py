"""A package outside Holdfast adds algorithms, a set and an environment; they work wherever names do."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize

import holdfast as hf
from holdfast import registry
from holdfast.report.page import write_page
from holdfast.report.solution import write_solution
from holdfast.verbs import simulator_from

PACKAGE = Path(__file__).parent / "example_package"
REGISTRIES = (
    registry.ALGORITHMS,
    registry.SIMULATOR_ALGORITHMS,
    registry.UNCERTAINTY,
    registry.ENVIRONMENTS,
)


class Unregistered(hf.KL):
    """A set of a user who registers nothing."""


@pytest.fixture(scope="module", autouse=True)
def package():
    """The example package on the path, as if it were installed, in this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        for each in REGISTRIES:
            _ = each.targets  # Found now, so that the end of the tests restores it.
            patch.delitem(vars(each), "targets")
        patch.syspath_prepend(str(PACKAGE))
        patch.setenv("PYTHONPATH", str(PACKAGE), prepend=os.pathsep)
        import holdfast_example

        yield holdfast_example


@pytest.fixture(scope="module")
def model(package):
    return package.two_roads()


@pytest.fixture(scope="module")
def solution(model):
    return hf.solve(model, "random-search", iterations=4)


def test_the_entry_points_on_the_path_are_those_that_an_installation_would_make():
    declared = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    found = configparser.ConfigParser()
    found.read(PACKAGE / "holdfast_example-0.1.dist-info" / "entry_points.txt")
    assert {group: dict(found[group]) for group in found.sections()} == declared
    assert set(declared) == {each.group for each in REGISTRIES}
    for each in REGISTRIES:
        assert set(declared[each.group]) <= set(each)


# --- Python


def test_an_algorithm_is_the_same_by_name_and_as_an_object(package, model, solution):
    other = hf.solve(model, package.RANDOM_SEARCH, iterations=4)
    assert solution.algorithm == other.algorithm == "random-search"
    np.testing.assert_array_equal(solution.policy, other.policy)
    assert (np.diff(solution.history["reward"]) >= 0).all()
    assert solution.history["reward"][-1] > solution.history["reward"][0]


def test_an_algorithm_has_settings_of_its_own(package, model, solution):
    sharp = hf.solve(model, "random-search", iterations=4, settings={"concentration": 0.01})
    assert np.abs(sharp.policy - solution.policy).max() > 0.01
    with pytest.raises(ValueError, match="'random-search' has no 'concentratoin'; did you mean"):
        hf.solve(model, "random-search", settings={"concentratoin": 1.0})
    with pytest.raises(ValueError, match="safeguard: 'random-search' does not use it, got None"):
        hf.solve(model, "random-search", safeguard=None)


def test_the_set_responds_like_a_linear_program(package):
    rng = np.random.default_rng(0)
    p, y, radii = rng.dirichlet(np.ones(4), 6), rng.normal(size=(6, 4)), rng.uniform(0, 4, 6)
    p[0] = [0.5, 0.5, 0.0, 0.0]
    ball = package.CVaR(radii)
    response, lower, upper = ball.bracket(p, y)
    assert (lower <= upper).all()
    assert (upper - lower <= 1e-12).all()
    for i, radius in enumerate(radii):
        cap = (1 + radius) * p[i]
        best = scipy.optimize.linprog(
            y[i], A_eq=np.ones((1, 4)), b_eq=[1.0], bounds=np.c_[np.zeros(4), cap]
        )
        assert response.value[i] == pytest.approx(best.fun, abs=1e-9)
        assert response.lower[i] == pytest.approx(best.fun, abs=1e-9)
    far = p + rng.normal(size=p.shape)
    nearest = ball.project(p, far)
    assert ball.contains(p, nearest).all()
    # No member is nearer: the projection's own optimality condition, tested on random members.
    for _ in range(20):
        member = np.asarray(ball.worst_response(p, rng.normal(size=p.shape)))
        assert (((far - nearest) * (member - nearest)).sum(-1) <= 1e-5).all()


def test_the_set_works_in_every_verb(model):
    policy = [0, 1, 0]
    evaluation = hf.evaluate(model, policy)
    assert evaluation.reward.worst < evaluation.reward.nominal
    assert evaluation.constraints[0].worst > evaluation.constraints[0].nominal
    descended = hf.evaluate(model, policy, worst_case="projected-gradient")
    assert descended.reward.worst == pytest.approx(evaluation.reward.worst, abs=1e-6)
    certificate = hf.certify(model, policy)
    assert certificate.reward == pytest.approx(evaluation.reward.worst, abs=1e-6)
    assert certificate.upper_bound >= certificate.reward
    # At the critical factor the constraint is met with equality.
    factor = certificate.critical_factor
    edge = model.replace(uncertainty=model.uncertainty.scaled(factor))
    assert hf.evaluate(edge, policy).constraints[0].margin == pytest.approx(0, abs=1e-6)


def test_a_simulator_algorithm_trains_by_name_and_as_an_object(package):
    settings = {"limit_on": "discounted", "iterations": 1, "batch_size": 300, "hidden": (8,)}
    rows, agents = [], []
    for algorithm in ("example-pcpo", package.EXAMPLE_PCPO):  # the second compiles nothing
        agents.append(hf.train("two-roads", algorithm, callback=rows.extend, **settings))
    assert [agent.algorithm for agent in agents] == ["example-pcpo", "example-pcpo"]
    assert [row["example"] for row in rows] == [7.0, 7.0]
    observation = np.eye(3)[0]
    assert agents[0].predict(observation) == agents[1].predict(observation)


# --- files


def test_a_saved_model_names_its_set(package, model, tmp_path):
    model.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as file:
        assert json.loads(str(file["header"]))["uncertainty"] == {"set": "cvar"}
    again = hf.RobustCMDP.load(tmp_path / "model.npz")
    assert isinstance(again.uncertainty, package.CVaR)
    assert again.uncertainty.radius == 0.5


def test_a_set_without_a_registered_name_is_saved_by_its_import_string(model, tmp_path):
    path = tmp_path / "model.npz"
    model.replace(uncertainty=Unregistered(0.1)).save(path)
    with np.load(path) as file:
        name = json.loads(str(file["header"]))["uncertainty"]["set"]
    assert name == f"{__name__}:Unregistered"
    assert isinstance(hf.RobustCMDP.load(path).uncertainty, Unregistered)

    class Local(Unregistered):
        """A set that is not an attribute of its module."""

    model.replace(uncertainty=Local(0.1)).save(path)
    with pytest.raises(
        ValueError, match=r"not a Holdfast model: uncertainty: .*cannot be imported"
    ):
        hf.RobustCMDP.load(path)


def test_a_file_cannot_name_a_function_as_its_set(model, tmp_path):
    path = tmp_path / "model.npz"
    model.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    header["uncertainty"] = {"set": "os:system", "command": f"touch {tmp_path / 'sprung'}"}
    np.savez(path, **arrays | {"header": np.array(json.dumps(header))})
    with pytest.raises(ValueError, match="'os:system' is not an uncertainty set"):
        hf.RobustCMDP.load(path)
    assert not (tmp_path / "sprung").exists()


def test_a_file_does_not_choose_which_module_is_imported(model, tmp_path, monkeypatch):
    (tmp_path / "sprung_module.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "model.npz"
    model.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    header["uncertainty"] = {"set": "sprung_module:Set"}
    np.savez(path, **arrays | {"header": np.array(json.dumps(header))})
    with pytest.raises(ValueError, match="import sprung_module first"):
        hf.RobustCMDP.load(path)
    described = {"name": "sprung.module:make", "options": {}}
    assert simulator_from(described) is None
    spawn = {"name": "concurrent.futures.thread:sprung", "options": {}}
    assert simulator_from(spawn) is None
    recipe = {"gymnasium": {"id": "sprung_module:Env-v0", "rebuildable": True}}
    assert simulator_from(recipe) is None
    assert not (tmp_path / "sprung").exists()


def test_an_agents_file_does_not_choose_which_function_is_called(tmp_path, monkeypatch):
    """The name of the environment in a file used to be called with options of the file."""
    called = []
    monkeypatch.setattr("xml.etree.ElementTree.sprung", called.append, raising=False)
    described = {"name": "xml.etree.ElementTree:sprung", "options": {"object": 1}}
    assert simulator_from(described) is None
    assert called == []


# --- command line, worker processes, Ray, report


def test_the_command_line_resolves_the_names(tmp_path):
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "solve",
        "two-roads",
        "--algorithm",
        "random-search",
    ]
    arguments = [
        "--settings",
        "concentration=2",
        "--iterations",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    assert isinstance(
        hf.RobustCMDP.load(tmp_path / "out" / "model.npz").uncertainty, hf.uncertainty.SETS["cvar"]
    )
    assert json.loads((tmp_path / "out" / "solution.json").read_text())


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_workers_resolve_the_names(engine, tmp_path):
    code = """
import sys
from pathlib import Path
from holdfast.experiments import TabularExperiment
from holdfast.experiments.engines import EngineOptions
from holdfast.experiments.runner import run
shared = {"algorithms": ("random-search",), "seeds": 1, "settings": {"iterations": 2}}
experiment = TabularExperiment(("two-roads",), **shared)
outcome = run(experiment, Path(sys.argv[2]), engine=sys.argv[1], options=EngineOptions(workers=1))
print([results.cell for results in outcome.results], outcome.failures)
"""
    # Ray forks, which JAX forbids in a process that has used it: hence one of its own.
    command = [sys.executable, "-c", code, engine, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "['two-roads'] []\n", done.stderr


def test_the_page_shows_a_solution(model, solution, tmp_path):
    settings = {"environment": "two-roads", "algorithm": "random-search"}
    write_solution(tmp_path / "run", model, solution, settings)
    assert write_page([tmp_path / "run"], tmp_path / "page.html") == ()
    page = (tmp_path / "page.html").read_text()
    assert "random-search" in page
    assert "two-roads" in page
