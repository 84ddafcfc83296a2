"""Ray: one session for all items, and an address without a cluster."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import ray
from tests.experiments.items import Square, attempts, check_order, files

from holdfast import registry
from holdfast.experiments import SolveSettings, TabularExperiment
from holdfast.experiments.engines import RETRIES, EngineOptions, Failed, engine_named
from holdfast.experiments.runner import run

# Ray forks to start its own processes, in which nothing calls JAX.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(scope="module")
def session():
    """A Ray of this machine that the engine finds already started."""
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield
    ray.shutdown()


def test_items_that_fail_or_kill_their_worker_are_repeated(session, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.ENVIRONMENTS.targets, "of-the-parent", "math:pi")
    items = [
        Square(0, str(tmp_path), look_up="of-the-parent"),
        Square(1, str(tmp_path), accident="raise"),
        Square(2, str(tmp_path), accident="die", until=1),
    ]
    events = list(engine_named("ray")(items, tmp_path, EngineOptions(workers=2)))
    check_order(events, items)
    made = files(events)
    assert {name: made[name] for name in made if name.endswith(".txt")} == {
        "0.txt": b"0",
        "2.txt": b"4",
    }
    assert made["0.name"] == b"3.141592653589793"
    assert {data for name, data in made.items() if name.endswith(".env")} == {b"1"}
    (failure,) = [event for event in events if isinstance(event, Failed) and event.for_good]
    assert "OSError: the roof came down" in failure.traceback
    assert [len(attempts(tmp_path, n)) for n in range(3)] == [1, RETRIES + 1, 2]
    assert ray.is_initialized()  # the engine ends only a session that it began


def test_an_experiment_has_the_same_results_as_in_this_process(session, tmp_path):
    experiment = TabularExperiment(
        environments=("small",),
        algorithms=("rvi",),
        seeds=2,
        settings=SolveSettings(iterations=2),
        environment={"small": {"model": "gambler", "goal": 4}},
    )
    there, here = (
        run(experiment, tmp_path / engine, engine=engine, stream=io.StringIO())
        for engine in ("ray", "inline")
    )
    assert there.failures == []
    mine, theirs = there.results[0].runs["rvi"], here.results[0].runs["rvi"]
    assert len(mine) == len(theirs) == 2
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a.policy, b.policy, atol=1e-12)
        np.testing.assert_allclose(a.history["reward"], b.history["reward"], rtol=1e-12)


def test_an_address_that_does_not_answer_is_refused_in_time():
    code = (
        "import sys; from pathlib import Path\n"
        "from holdfast.experiments.engines import EngineOptions, engine_named\n"
        "options = EngineOptions(address=sys.argv[1])\n"
        "try:\n"
        "    next(engine_named('ray')([], Path(), options))\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = subprocess.run(
            [sys.executable, "-c", code, address],
            env=os.environ | {"HOLDFAST_RAY_TIMEOUT": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert found.stdout == (
        f"address: no Ray cluster at {address}: no answer within 1 s "
        "(HOLDFAST_RAY_TIMEOUT sets the limit)\n"
    )


LISTENERS = """
import os, re, sys
from pathlib import Path
import ray
from holdfast.experiments.engines.ray import _QUIET, _loopback_only

with _loopback_only():
    ray.init(address="local", num_cpus=1, **_QUIET)
ray.get(ray.remote(lambda: 1).remote())
session, sockets = ray._private.worker._global_node.get_session_dir_path(), set()
for process in Path("/proc").glob("[0-9]*"):
    try:
        command = (process / "cmdline").read_text()
        if command.startswith("ray::"):  # of which session its parent says
            parent = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
            command = Path("/proc", parent, "cmdline").read_text()
        if session in command or process.name == str(os.getpid()):
            links = [os.readlink(file) for file in (process / "fd").iterdir()]
            sockets |= {link[8:-1] for link in links if link.startswith("socket:[")}
    except OSError:
        pass
for family in ("tcp", "tcp6"):
    for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in sockets:  # listening
            print(fields[1].split(":")[0])
ray.shutdown()
"""


def test_a_ray_of_this_machine_listens_on_the_loopback_interface_only():
    found = subprocess.run(
        [sys.executable, "-c", LISTENERS], capture_output=True, text=True, check=True
    )
    addresses = found.stdout.split()
    # 127.0.0.1 in both families, as the system writes it.
    assert addresses
    assert {address[-8:] for address in addresses} == {"0100007F"}
