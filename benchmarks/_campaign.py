"""Runs one function of the tests over many cases, in worker processes, and describes the results."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
# One thread for each process: the cases are the parallel part.
_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}


class ProcessorClock:
    """Processor time in place of wall time, for the module `time` of a search on a busy machine."""

    perf_counter = staticmethod(time.process_time)


def use_tests() -> None:
    """Make the package and the tests of this checkout importable, here and in worker processes."""
    os.environ.update(_ONE_THREAD)
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]


def arguments(description: str | None, cases: int, *flags: str) -> argparse.Namespace:
    """Return the options that all campaigns have, and flags of one's own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=1)
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--minutes", type=float, default=np.inf, help="no case starts later")
    return parser.parse_args()


def results(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], options: argparse.Namespace
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every task with its result, as they come; tasks that would start too late are left out."""
    deadline = time.time() + 60 * options.minutes
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context) as pool:
        started = {pool.submit(_unless_late, deadline, function, task): task for task in tasks}
        left_out = 0
        for future in as_completed(started):
            late, result = future.result()
            if late:
                left_out += 1
            else:
                yield started[future], result
    if left_out:
        print(f"{left_out} of {len(tasks)} tasks were left out for time")


def _unless_late(
    deadline: float, function: Callable[..., Any], task: tuple[Any, ...]
) -> tuple[bool, Any]:
    return (True, None) if time.time() > deadline else (False, function(*task))


def describe(name: str, values: Any) -> None:
    """Print the distribution of some numbers."""
    values = np.asarray(values, float).ravel()
    if len(values):
        shown = ", ".join(f"{q:.3g}" for q in np.quantile(values, [0.0, 0.5, 0.9, 0.99, 1.0]))
        print(f"{name}: {len(values)} values; least, median, 90 %, 99 %, largest: {shown}")
