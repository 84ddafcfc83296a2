"""Brackets of worst-case values against a reference in long double, on random and degenerate models.

    python benchmarks/brackets.py [--cases 100000] [--processes 16] [--first 0] [--minutes 9]

A case is one signal of one model: nine kinds of sets, radii from 0 to infinity, probabilities down to
2.3e-308, discounts up to 0.999999, signals of sizes 1e-9 to 1e12. Prints how many brackets miss the
truth, how many are infinite, and the distribution of the claimed error divided by
max(true error, eps·|value|). Exits with 1 if a bracket misses the truth.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from _campaign import arguments, describe, results, use_tests

# Models of one kind of set in one task: enough to outweigh its overhead.
_AT_ONCE = 50


def main() -> int:
    options = arguments(__doc__, 100_000)
    use_tests()
    from tests.tabular.evaluation.bracket_cases import KINDS, compared, width

    started = time.time()
    models = -(-options.cases // (2 * len(KINDS)))
    tasks = [
        (kind, range(first, min(first + _AT_ONCE, options.first + models)))
        for kind in KINDS
        for first in range(options.first, options.first + models, _AT_ONCE)
    ]
    found: dict[str, list[tuple[np.ndarray, ...]]] = {kind: [] for kind in KINDS}
    wrong = 0
    for (kind, seeds), (claimed, away, doubt, true, discount) in results(compared, tasks, options):
        missed = ~(away <= claimed + doubt)
        wrong += int(missed.sum())
        for i, j in np.argwhere(missed):
            print(f"missed: {kind}, seed {seeds[i]}, signal {j}", flush=True)
        blunt = doubt > claimed + 1e-300
        usual = np.broadcast_to((discount <= 0.99)[:, None], claimed.shape)
        parts = width(claimed, away, true), usual, ~np.isfinite(claimed), blunt, missed
        found[kind].append(tuple(np.asarray(part).ravel() for part in parts))
    joined = {kind: [np.concatenate(p) for p in zip(*x, strict=True)] for kind, x in found.items()}
    for kind, (wide, usual, infinite, blunt, missed) in joined.items():
        print(
            f"{kind}: {len(wide)} brackets, {missed.sum()} miss the truth, {infinite.sum()} infinite, "
            f"{blunt.sum()} sharper than the reference"
        )
        describe("  claimed / max(true error, eps·|value|), γ ≤ 0.99", wide[usual])
        describe("  the same, γ > 0.99", wide[~usual])
    everything = [np.concatenate(parts) for parts in zip(*joined.values(), strict=True)]
    describe("all kinds, γ ≤ 0.99", everything[0][everything[1]])
    print(f"{len(everything[0])} brackets, {wrong} miss the truth, {time.time() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
