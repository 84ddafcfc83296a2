"""An experiment in worker processes, with workers and drivers killed: the results are the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.experiments import read_description
from holdfast.experiments.store import read, read_experiment, read_record

# Both models are padded to the same shapes, so that they share their programs.
EXPERIMENT = """
environments = ["gambler", "n-chain"]
algorithms = ["rcpo", "pcpo"]
seeds = 4
[settings]
iterations = 4
[environment]
gambler = { goal = 6 }
n-chain = { nodes = 7 }
"""
JOBS = 16
DRIVER = """
import sys
from pathlib import Path
from holdfast.experiments import read_description
from holdfast.experiments.engines import EngineOptions
from holdfast.experiments.runner import run

if __name__ == "__main__":
    options = EngineOptions(workers=2)
    outcome = run(read_description(sys.argv[1]), Path(sys.argv[2]), options=options)
    sys.exit(len(outcome.failures))
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("described") / "mine.toml"
    path.write_text(EXPERIMENT)
    (path.parent / "driver.py").write_text(DRIVER)
    return path


@pytest.fixture(scope="module")
def start(described):
    def begin(out):
        return subprocess.Popen(
            [sys.executable, str(described.parent / "driver.py"), str(described), str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    finish(start(out))
    return out


def job_files(out):
    return sorted(path.relative_to(out) for path in out.glob("*/jobs/*.npz"))


def check_same(out, undisturbed):
    """Every policy and every iterate to the last bit, apart from the timings."""
    assert len(job_files(undisturbed)) == JOBS
    assert job_files(out) == job_files(undisturbed)
    for file in job_files(out):
        (mark, mine), (expected, theirs) = read(out / file), read(undisturbed / file)
        assert mark == expected
        np.testing.assert_array_equal(mine.policy, theirs.policy)
        assert mine.history.keys() == theirs.history.keys()
        for name in mine.history.keys() - {"seconds"}:
            np.testing.assert_array_equal(mine.history[name], theirs.history[name])


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def workers(process):
    """The processes that a driver spawned, without the resource tracker."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [
        int(child)
        for child in children
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    ]


@pytest.mark.long
def test_a_killed_worker_changes_nothing(start, undisturbed, tmp_path):
    driver = start(tmp_path)
    wait_until(lambda: job_files(tmp_path) and workers(driver.pid), driver)
    os.kill(workers(driver.pid)[0], signal.SIGKILL)
    assert "failed and is tried again: the worker process ended abruptly" in finish(driver)
    check_same(tmp_path, undisturbed)


def test_a_killed_driver_loses_only_the_jobs_in_flight(start, undisturbed, tmp_path):
    driver = start(tmp_path)
    wait_until(lambda: len(job_files(tmp_path)) >= 2, driver)
    driver.kill()
    driver.communicate()
    kept = {path: (tmp_path / path).stat().st_mtime_ns for path in job_files(tmp_path)}
    assert 2 <= len(kept) < JOBS
    assert f"{len(kept)} kept from an earlier run" in finish(start(tmp_path))
    assert all((tmp_path / path).stat().st_mtime_ns == time_ for path, time_ in kept.items())
    check_same(tmp_path, undisturbed)


def test_the_folder_describes_itself(undisturbed, described):
    found = read_experiment(undisturbed)
    assert found[0].experiment == read_description(described)
    assert [len(list(each)) for each in found] == [8, 8]
    assert sorted(read_record(undisturbed)[1]) == ["gambler", "n-chain"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_text("{"), "damaged"),
        (lambda path: path.write_text("[]"), "damaged"),
        (
            lambda path: path.write_text('{"format": "holdfast-experiment-9", "version": "9.0"}'),
            "made by 9.0",
        ),
        (
            lambda path: path.write_text(path.read_text().replace('"algorithms"', '"algos"')),
            "did you mean algorithms",
        ),
    ],
)
def test_a_damaged_or_newer_folder_is_refused_with_its_path(undisturbed, tmp_path, damage, message):
    path = tmp_path / "experiment.json"
    path.write_bytes((undisturbed / "experiment.json").read_bytes())
    damage(path)
    with pytest.raises(ValueError, match=message) as refusal:
        read_experiment(tmp_path)
    assert str(refusal.value).startswith(str(path))
