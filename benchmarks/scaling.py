"""Speed-up of an experiment from one worker to two, and the cost of a job for the driver.

    python benchmarks/scaling.py

Runs RCPO on Gambler at 16 radii with 5 seeds each on the process engine, with compiled programs kept
from an earlier run. Prints the elapsed seconds, their ratio beside the limit of 2, the bytes of a result
file, and the driver's CPU-milliseconds per job, from which it estimates the load of a thousand workers.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from holdfast.experiments import SolveSettings, TabularExperiment
from holdfast.experiments.engines import EngineOptions
from holdfast.experiments.runner import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--iterations", type=int, default=200)
    given = parser.parse_args()
    experiment = TabularExperiment(
        environments=("gambler",),
        algorithms=("rcpo",),
        radii=tuple(np.linspace(0.02, 0.32, 16).round(3).tolist()),
        settings=SolveSettings(iterations=given.iterations),
    )
    jobs = len(experiment.jobs())
    seconds = {}
    with tempfile.TemporaryDirectory() as scratch, Path(os.devnull).open("w") as nowhere:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{scratch}/cache"
        for label, workers in (("compiling", 2), ("one", 1), ("two", 2)):
            out = Path(scratch) / label
            options = EngineOptions(workers=workers)
            start, used = time.perf_counter(), _driver_cpu()
            run(experiment, out, engine=given.engine, options=options, stream=nowhere)
            seconds[label] = time.perf_counter() - start
            driver = (_driver_cpu() - used) / jobs
        size = np.mean([path.stat().st_size for path in out.glob("*/jobs/*.npz")])
    ratio = seconds["one"] / seconds["two"]
    print(
        f"{jobs} jobs, {given.engine}: {seconds['one']:.1f} s on one worker, "
        f"{seconds['two']:.1f} s on two"
    )
    print(f"ratio {ratio:.2f} of 2 ({100 * ratio / 2:.0f} %)")
    job = seconds["one"] / jobs
    print(
        f"a job: {job:.2f} s, {size / 1000:.1f} kB, {1000 * driver:.1f} ms of the driver's processor"
    )
    print(
        f"1,000 workers: {1000 / job:.0f} jobs a second would come back, "
        f"{1000 / job * size / 1e6:.1f} MB/s; one driver takes {1 / driver:.0f} a second"
    )


def _driver_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
