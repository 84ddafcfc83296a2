"""A baseline for robust training: a limit that is tightened until the policy survives an attack."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Tightened(NamedTuple):
    """One try: the limit that a policy was trained with, and the cost that the attack found."""

    limit: float
    attacked: float


def tighten(
    attacked_cost: Callable[[float], float], limit: float, tries: int = 5
) -> list[Tightened]:
    """Return the tries of a search for the loosest training limit that survives, in their order.

    The limit is halved until the attacked cost is at most `limit`. The remaining tries bisect between
    the last limit that failed and the first that survived, on a logarithmic scale. The best survivor is
    the one with the largest limit; if no limit survives, there is none.

    Arguments:
        attacked_cost: function of a training limit that trains a policy and returns its largest cost
            under the attack.
        limit: the true limit, and the first training limit.
        tries: largest number of policies to train.
    """
    found: list[Tightened] = []
    failed, survived, trial = limit, None, limit
    for _ in range(tries):
        found.append(Tightened(trial, attacked_cost(trial)))
        if found[-1].attacked <= limit:
            survived = trial
            if trial == limit:
                break
        else:
            failed = trial
        trial = failed / 2 if survived is None else (failed * survived) ** 0.5
    return found


def survivor(found: list[Tightened], limit: float) -> Tightened | None:
    """Return the try with the largest training limit whose attacked cost is within the true limit."""
    held = [each for each in found if each.attacked <= limit]
    return max(held, default=None)
