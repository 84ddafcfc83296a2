"""Engines on items that cost nothing: what is done, what fails, who dies."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.experiments.items import Square, attempts, check_order, files

from holdfast import registry
from holdfast.experiments.engines import (
    RETRIES,
    EngineOptions,
    Failed,
    engine_named,
    work_through,
    worker_environment,
)
from holdfast.experiments.engines.inline import _InlineWorker

TWO = EngineOptions(workers=2)


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["processes", "inline"])
def test_everything_is_done_whatever_happens_to_some(name, tmp_path, marks):
    # A process that kills itself would end this one.
    dies = "die" if name == "processes" else "raise"
    items = [Square(n, str(marks)) for n in range(6)]
    items[1] = dataclasses.replace(items[1], accident="raise")
    items[2] = dataclasses.replace(items[2], accident=dies, until=RETRIES)
    items[3] = dataclasses.replace(items[3], accident="raise", until=1)
    items[4] = dataclasses.replace(items[4], accident=dies)
    events = list(engine_named(name)(items, tmp_path, TWO))
    check_order(events, items)
    squares = {k: v for k, v in files(events).items() if k.endswith(".txt")}
    assert squares == {f"{n}.txt": str(n * n).encode() for n in (0, 2, 3, 5)}
    failed = [event for event in events if isinstance(event, Failed) and event.for_good]
    assert sorted(failure.item.number for failure in failed) == [1, 4]
    assert "the roof came down" in next(f for f in failed if f.item.number == 1).traceback
    assert [len(attempts(marks, n)) for n in range(6)] == [1, 3, 3, 2, 3, 1]


def test_workers_are_other_processes_with_the_parents_names(tmp_path, marks, monkeypatch):
    monkeypatch.setitem(registry.ENVIRONMENTS.targets, "of-the-parent", "math:pi")
    items = [Square(n, str(marks), look_up="of-the-parent") for n in range(6)]
    events = list(engine_named("processes")(items, tmp_path, EngineOptions(2, threads=3)))
    workers = {attempts(marks, n)[0] for n in range(6)}
    assert str(os.getpid()) not in workers
    assert len(workers) == 2
    assert {data for path, data in files(events).items() if path.endswith(".env")} == {b"3"}
    assert files(events)["3.name"] == b"3.141592653589793"
    # This process keeps its own environment.
    assert os.environ.get("OMP_NUM_THREADS") != "3"


def test_a_worker_prefers_items_whose_programs_it_has(tmp_path, marks):
    class Recorder(_InlineWorker):
        def __init__(self):
            self.begun = []

        def begin(self, item, folder):
            self.begun.append(item.number)
            return super().begin(item, folder)

    items = [Square(n, str(marks)) for n in (0, 1, 2, 4, 3)]
    alone = Recorder()
    list(work_through(items, tmp_path, [alone]))
    assert alone.begun == [0, 2, 4, 1, 3]


def test_options_are_numbers_in_the_end(monkeypatch):
    monkeypatch.setattr("holdfast.experiments.engines.processors", lambda: 8)
    assert EngineOptions().resolved(100) == EngineOptions(8, 1)
    assert EngineOptions().resolved(3) == EngineOptions(3, 1)
    assert EngineOptions(2, 0).resolved(9) == EngineOptions(2, 4)
    assert worker_environment(EngineOptions(2, 4))["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in worker_environment(EngineOptions(1, 4))
    with pytest.raises(ValueError, match="workers"):
        EngineOptions(workers=-1)


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A zombie that nobody has waited for is dead as well.
    state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path, marks, how):
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import dataclasses, os, sys, time
            from pathlib import Path
            from holdfast.experiments.engines import EngineOptions, engine_named

            @dataclasses.dataclass(frozen=True)
            class Sleep:
                number: int
                kin = ""

                def run(self, folder):
                    (folder / f"pid-{{self.number}}").write_text(str(os.getpid()))
                    time.sleep(600)
                    yield from ()

            if __name__ == "__main__":
                run = engine_named("processes")
                for event in run([Sleep(0), Sleep(1)], Path({str(marks)!r}), EngineOptions(2)):
                    pass
            """
        )
    )
    driver = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL)
    try:
        written = wait_for(lambda: len(list(marks.glob("pid-*"))) == 2)
        assert written
        time.sleep(0.2)
        workers = [int(path.read_text()) for path in marks.glob("pid-*")]
        assert all(map(is_running, workers))
        driver.send_signal(how)
        driver.wait(20)
        assert wait_for(lambda: not any(map(is_running, workers)))
    finally:
        driver.kill()


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
