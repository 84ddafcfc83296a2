"""A sweep as a table and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.report.charts import Axis, Chart, Series
from holdfast.report.figures import write_charts
from holdfast.tabular.sweep import Sweep


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write `sweep.csv`, `sweep.png` and `sweep.svg`: reward and its upper bound against the value."""
    sweep.to_csv(folder / "sweep.csv")
    write_charts(folder / "sweep", [sweep_chart(sweep)], "Worst-case reward, found and at most")


def sweep_chart(sweep: Sweep) -> Chart:
    """Return the reward that was found and the certified upper bound, where a policy is feasible."""
    kept = [p for p in sweep.points if p.status == "feasible" and np.isfinite(p.upper_bound)]
    x = [p.value for p in kept]
    found = Series("found", "#0072b2", "solid", x, [p.reward for p in kept])
    upper = Series("at most", "#d55e00", "dashed", x, [p.upper_bound for p in kept])
    return Chart("reward", Axis(sweep.over), "worst-case reward", [found, upper])
