"""Runs jobs in processes of their own, each bound to one core, within a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

_ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")},
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def run_on_cores(
    jobs: Sequence[str], processes: int, seconds: float, shortest: float = 30.0
) -> int:
    """Run this script once for each job, and return how many of these processes failed.

    A process has the arguments of this one, then `--job JOB --seconds S`, with the seconds left.

    Arguments:
        jobs: the jobs, in the order in which they start.
        processes: number of processes at the same time.
        seconds: seconds for all jobs; each job has to keep the limit that it is given.
        shortest: no job starts with fewer seconds left. A process compiles for half a minute before its
            first step.
    """
    end = time.monotonic() + seconds
    waiting, failed = list(jobs), 0
    running: dict[int, subprocess.Popen] = {}
    cores = sorted(os.sched_getaffinity(0))[:processes]
    while running or (waiting and time.monotonic() + shortest < end):
        for core in cores:
            if waiting and core not in running and time.monotonic() + shortest < end:
                running[core] = _start(waiting.pop(0), core, end - time.monotonic())
        time.sleep(0.2)
        for core, process in list(running.items()):
            if process.poll() is not None:
                failed += process.returncode != 0
                del running[core]
    return failed


def _start(job: str, core: int, seconds: float) -> subprocess.Popen:
    command = [sys.executable, *sys.argv, "--job", job, "--seconds", str(seconds)]
    return subprocess.Popen(
        command,
        env={**os.environ, **_ONE_THREAD},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
