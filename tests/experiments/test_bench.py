"""A whole experiment by every engine, with workers and drivers killed: the tables are the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Three algorithms, three models, five seeds; all models are padded to the same shapes.
EXPERIMENT = """
environments = ["gambler", "n-chain", "lucky"]
algorithms = ["rcpo", "pcpo", "rvi"]
seeds = 5
[settings]
iterations = 4
[environment]
gambler = { goal = 6 }
n-chain = { nodes = 7 }
lucky = { model = "gambler", goal = 6, heads = 0.7 }
"""
COMMAND = "import sys; from holdfast.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    path = tmp_path_factory.mktemp("described") / "mine.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def start(described):
    def begin(out, *arguments):
        command = [sys.executable, "-c", COMMAND, "bench", str(described), "--out", str(out)]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(described.parent / "cache")}
        return subprocess.Popen(
            [*command, "--workers", "2", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | cache,
        )

    return begin


def finish(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return output, errors


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    finish(start(out))
    return out


def check_same(out, undisturbed):
    """Every table, every iterate and every figure, to the byte; timings have files of their own."""
    files = [
        path.relative_to(undisturbed)
        for path in undisturbed.rglob("*.*")
        if path.suffix != ".npz" and path.stem != "timings"
    ]
    assert len(files) == 2 * 3 + 2 + 3 * 5
    for file in files:
        assert (out / file).read_bytes() == (undisturbed / file).read_bytes(), file


def job_files(out):
    return sorted(out.glob("*/jobs/*.npz"))


def wait_until(condition, process):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def descendants(process):
    found, waiting = [], [process]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            children = [int(child) for child in task.read_text().split()]
            found += children
            waiting += children
    return found


def workers(process, mark):
    return [
        child
        for child in descendants(process)
        if mark in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    ]


@pytest.mark.parametrize(
    ("arguments", "mark"),
    [((), "spawn_main"), (("--engine", "ray"), "ray::_do")],
    ids=["processes", "ray"],
)
def test_a_killed_worker_changes_nothing(start, undisturbed, tmp_path, arguments, mark):
    driver = start(tmp_path, *arguments)
    wait_until(lambda: job_files(tmp_path) and workers(driver.pid, mark), driver)
    os.kill(workers(driver.pid, mark)[0], signal.SIGKILL)
    _, errors = finish(driver)
    assert "is tried again" in errors
    assert len(job_files(tmp_path)) == 45
    check_same(tmp_path, undisturbed)


def test_a_killed_driver_loses_only_what_was_in_flight(start, undisturbed, tmp_path):
    driver = start(tmp_path)
    wait_until(lambda: len(job_files(tmp_path)) >= 3, driver)
    driver.kill()
    driver.communicate()
    kept = {path: path.stat().st_mtime_ns for path in job_files(tmp_path)}
    assert 3 <= len(kept) < 45
    _, errors = finish(start(tmp_path))
    assert f"{len(kept)} kept from an earlier run" in errors.replace("  ", " ")
    assert all(path.stat().st_mtime_ns == time_ for path, time_ in kept.items())
    check_same(tmp_path, undisturbed)


def test_the_folder_says_what_it_is(undisturbed, described):
    from holdfast.experiments import read_description
    from holdfast.experiments.store import read_experiment

    found = read_experiment(undisturbed)
    assert found[0].experiment == read_description(described)
    assert [len(list(each)) for each in found] == [15, 15, 15]
    content = json.loads((undisturbed / "experiment.json").read_text())
    assert sorted(content["models"]) == ["gambler", "lucky", "n-chain"]


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
    from holdfast.experiments.store import read_experiment

    path = tmp_path / "experiment.json"
    path.write_bytes((undisturbed / "experiment.json").read_bytes())
    damage(path)
    with pytest.raises(ValueError, match=message) as refusal:
        read_experiment(tmp_path)
    assert str(refusal.value).startswith(str(path))
