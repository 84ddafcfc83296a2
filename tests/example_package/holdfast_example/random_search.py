"""An algorithm for tables: draw policies and keep the best one."""

import dataclasses

import numpy as np

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms import Run


@dataclasses.dataclass(frozen=True)
class RandomSearch:
    """Settings: concentration of the Dirichlet rows that are drawn."""

    concentration: float = 1.0


def random_search(run: Run) -> None:
    """Record a drawn policy if its worst-case reward is larger, else the same policy again."""
    model, settings = run.layout.model, run.settings(RandomSearch)
    rng = np.random.default_rng(0)
    for _ in range(run.options.iterations):
        rows = rng.dirichlet(np.full(model.actions, settings.concentration), model.states)
        policy = run.layout.pad_policy(rows)
        worst = run.worst_case(policy)
        if worst.value[0] > run.worst.value[0]:
            run.record(policy, worst=worst)
        else:
            run.repeat()


RANDOM_SEARCH = Algorithm("random-search", random_search, RandomSearch, constrained=False)
