"""CPU-seconds of the paper's three tabular experiments, as `make demo` runs them, against a limit.

    python benchmarks/paper_experiments.py

Runs `holdfast reproduce` twice in new processes and new folders: with an empty compilation cache, then
with the cache of the first run. Prints the CPU-seconds of both and their ratio to the limit of 60.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 60.0


def cpu_seconds(cache: Path, out: Path) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "holdfast", "reproduce", "--out", str(out)],
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return used, time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("empty compilation cache", "warm compilation cache"):
            used, wall = cpu_seconds(Path(folder, "cache"), Path(folder, name.split()[0]))
            print(f"{name:24} {used:6.1f} CPU-s ({wall:.1f} s), {used / LIMIT:.2f} of the limit")


if __name__ == "__main__":
    main()
