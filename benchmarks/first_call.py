"""CPU-seconds of the first calls in a fresh process, without compiled programs on disk and with them.

    python benchmarks/first_call.py [--repeats 3]

Every line is a process of its own, from its start to its end, user and system time together. The first
run of each begins with an empty cache folder, and the others find what it left there. Prints the median
of these beside the limits. The last line starts two processes at once in an empty folder: neither waits
for a program that the other compiles, if each is ready about as soon as one process alone.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs with programs on disk")
    given = parser.parse_args()
    five_lines = re.search(r"```python\n(.*?)```", _README.read_text(), re.DOTALL).group(1)
    with tempfile.TemporaryDirectory() as out:
        solve = (
            f"from holdfast.cli.main import main; main(['solve', 'gambler', '--out', '{out}/a'])"
        )
        lines = [
            ("import holdfast", "import holdfast", None, 0.3),
            ("the five lines of README.md", five_lines, 8.0, 3.0),
            ("holdfast solve gambler", solve, None, 1.5),
        ]
        print("| process | without programs on disk | limit | with them | limit |")
        print("|---|---|---|---|---|", flush=True)
        for title, code, cold_limit, warm_limit in lines:
            with tempfile.TemporaryDirectory() as cache:
                cold = cpu_seconds(code, cache)
                warm = statistics.median(cpu_seconds(code, cache) for _ in range(given.repeats))
            limit = f"{cold_limit:g}" if cold_limit else ""
            print(f"| {title} | {cold:.2f} | {limit} | {warm:.2f} | {warm_limit:g} |", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        alone = together(five_lines, cache, 1)
    with tempfile.TemporaryDirectory() as cache:
        both = together(five_lines, cache, 2)
    print(f"\nfive lines, empty folder: {alone:.1f} s alone, {both:.1f} s for two at once")


def cpu_seconds(code: str, cache: str) -> float:
    """Return the user and system seconds of a process that keeps compiled programs in a folder."""
    command = [sys.executable, "-c", code]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment(cache), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def together(code: str, cache: str, count: int) -> float:
    """Return the seconds until some processes that start at once have ended."""
    began = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment(cache), stdout=subprocess.DEVNULL
        )
        for _ in range(count)
    ]
    for process in running:
        if process.wait():
            raise SystemExit(f"a process ended with {process.returncode}")
    return time.monotonic() - began


def environment(cache: str) -> dict[str, str]:
    unset = ("JAX_COMPILATION_CACHE_DIR", "HOLDFAST_CACHE")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {"XDG_CACHE_HOME": cache}


if __name__ == "__main__":
    main()
