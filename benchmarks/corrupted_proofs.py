"""Corrupted proof files, decided by the checker and by a second, exact computation.

    python benchmarks/corrupted_proofs.py [--cases 10000] [--processes 16] [--first 0] [--minutes 9]

A case is a proof of a small model in which one thing was changed: a claim, a kernel, a multiplier, a
vector, the policy, a leaf, a step or a division of the tree. Prints how many were refused by kind of
change. Exits with 1 if the checker accepts what does not follow, or refuses what does.
"""

from __future__ import annotations

import collections
import sys

from _campaign import arguments, results, use_tests

# Corruptions of one model in one task.
_AT_ONCE = 50


def main() -> int:
    options = arguments(__doc__, 10_000)
    use_tests()
    from tests.tabular.certificates.proof_cases import MODELS, corrupted

    rounds = -(-options.cases // (_AT_ONCE * len(MODELS)))
    tasks = [
        (case, _AT_ONCE, options.first + seed)
        for seed in range(rounds)
        for case in range(len(MODELS))
    ]
    refused, total, wrong = collections.Counter(), collections.Counter(), 0
    for (case, _, seed), found in results(corrupted, tasks, options):
        for change, accepted, follows in found:
            total[change] += 1
            refused[change] += not accepted
            if accepted != follows:
                wrong += 1
                print(f"{MODELS[case]}, seed {seed}, {change}: accepted {accepted}", flush=True)
    for change, count in sorted(total.items()):
        print(f"{change}: {count} files, {refused[change]} refused")
    print(f"{total.total()} files, {refused.total()} refused, {wrong} decided wrongly")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
