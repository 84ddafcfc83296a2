"""RVI: robust value iteration (Iyengar 2005; Nilim and El Ghaoui 2005), constraints ignored.

It maximises the worst-case reward alone, so its value bounds that of every constrained algorithm.
"""

from __future__ import annotations

from jaxtyping import Array, Float

from holdfast.registry import Algorithm
from holdfast.tabular.algorithms._run import Run
from holdfast.tabular.evaluation.optimum import robust_optimum, sweep


def rvi(run: Run) -> Float[Array, "S A"]:
    """Sweeps of the robust Bellman operator; stops on its certified error, never on a count.

    The history's rows are the greedy policies of the first sweeps, starting from the initial policy's
    worst-case values; the last row is the optimal policy, to a certified error of 1e-9, however many
    sweeps or rounds of robust policy iteration that took.
    """
    table, reward = run.table, run.table.signals[0]
    values, multipliers = run.worst.values[0], run.worst.multipliers[0]
    for _ in range(run.options.iterations - 1):
        values, greedy, multipliers = sweep(table, reward, values, multipliers)
        if (greedy == run.policy).all():
            run.repeat()
        else:
            run.record(greedy)
    optimum = robust_optimum(table, reward, start=run.policy)
    run.record(optimum.policy)
    return optimum.policy


ALGORITHM = Algorithm(
    "rvi",
    rvi,
    accepts=("trust_region", "step", "safeguard", "bounds"),
    constrained=False,
    local=False,
)
