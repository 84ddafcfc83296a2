"""The attack at full size: kills, damaged files, misbehaving simulators, endurance. Prints a table.

python -m tests.attack                         # full size, hours
python -m tests.attack --scale 0.01            # a small version, minutes
python -m tests.attack --only files zoo
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from tests.attack import endurance, fuzz, kills, zoo

PARTS = ("files", "kills", "zoo", "shapes", "leak", "determinism")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the full size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    given = parser.parse_args()
    found = 0
    print(f"{'attack':<14}{'size':>10}{'findings':>10}{'seconds':>10}  measured", flush=True)
    for part in given.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as name:
            size, findings, measured = perform(part, Path(name), given.scale, given.seed)
        seconds = time.monotonic() - began
        print(f"{part:<14}{size:>10,}{len(findings):>10}{seconds:>10.0f}  {measured}", flush=True)
        for finding in findings:
            print(f"  {finding}", flush=True)
        found += len(findings)
    return found > 0


def perform(part: str, folder: Path, scale: float, seed: int) -> tuple[int, list, str]:
    """Return the size of a part of the attack, its findings, and what was measured."""
    if part == "files":
        size = max(16, round(100_000 * scale))
        outcomes, findings = fuzz.attack(folder, size, seed)
        read = sum(n for name, n in outcomes.items() if name.endswith(": read"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if peak > 2:
            findings.append(f"{peak:.2f} GiB of memory")
        return size, findings, f"{read:,} read, the others refused; at most {peak:.2f} GiB"
    if part == "kills":
        size = max(len(kills.COMMANDS), round(200 * scale))
        return size, kills.attack(folder, size, seed), f"{len(kills.COMMANDS)} commands"
    if part == "zoo":
        backends = ("sync", "async", "threads")
        size = 2 * len(zoo.KINDS) - 1 + len(zoo.COSTS)
        return size, zoo.attack(backends), ", ".join(backends)
    if part == "shapes":
        size = max(12, round(300 * scale))
        found = endurance.shapes(size, seed)
        return size, found.findings, f"{found.mappings:,} mappings, {found.memory:,.0f} MiB"
    if part == "leak":
        size = max(100, round(20_000 * scale))
        found = endurance.leak(size)
        # A gigabyte a day would end a training of weeks.
        grows = found.low > 0 and found.day > 1024
        return size, [str(found)] if grows else [], str(found)
    return 6, endurance.determinism(folder), "threads, load, folder, engines"


if __name__ == "__main__":
    raise SystemExit(main())
