"""RVI: robust value iteration (Iyengar 2005; Nilim and El Ghaoui 2005), without the constraints.

It maximises the worst-case reward alone, problem (3). Its value is an upper bound for every constrained
algorithm.
"""

from __future__ import annotations

from holdfast.registry import Algorithm
from holdfast.tabular.evaluation.optimum import robust_optimum, sweep
from holdfast.tabular.run import Run


def rvi(run: Run) -> None:
    """Sweep with the robust Bellman operator until the certified error is small.

    The rows of the history are the greedy policies of the first sweeps, which start from the initial
    policy's worst-case values. The last row is the optimal policy to a certified error of 1e-9,
    whatever number of sweeps or rounds of robust policy iteration that takes.
    """
    table, reward = run.table, run.table.signals[0]
    if table.horizon is not None:  # one backward induction is exact
        run.record(robust_optimum(table, reward).policy)
        run.fill()
        return
    alone = table.with_signals(table.signals[:1])
    assert run.worst.multipliers is not None
    values, multipliers = run.worst.values[0], run.worst.multipliers[0]
    for _ in range(run.options.iterations - 1):
        values, greedy, multipliers = sweep(alone, values, multipliers)
        if (greedy == run.policy).all():
            run.repeat()
        else:
            run.record(greedy)
    run.record(robust_optimum(table, reward, start=run.policy).policy)


ALGORITHM = Algorithm(
    "rvi",
    rvi,
    accepts=("trust_region", "step", "safeguard", "bounds"),
    constrained=False,
    local=False,
)
