"""Write maintenance.csv: what operators recorded about 20 machines in 250 weeks.

The log is simulated, with a fixed seed. Operators look at a machine before they decide, and are more
careful after a breakdown, so that the numbers of visits depend on the outcomes. The probabilities below
are the truth, which the log shows only in part.
"""

from __future__ import annotations

import csv

import numpy as np

CONDITIONS = ("good", "worn", "critical", "broken")
DECISIONS = ("run", "service", "replace")
# Next condition, by condition and decision.
NEXT = {
    ("good", "run"): (0.88, 0.12, 0.0, 0.0),
    ("good", "service"): (0.97, 0.03, 0.0, 0.0),
    ("good", "replace"): (0.99, 0.01, 0.0, 0.0),
    ("worn", "run"): (0.0, 0.90, 0.09, 0.01),
    ("worn", "service"): (0.80, 0.19, 0.01, 0.0),
    ("worn", "replace"): (0.99, 0.01, 0.0, 0.0),
    ("critical", "run"): (0.0, 0.0, 0.70, 0.30),
    ("critical", "service"): (0.40, 0.45, 0.15, 0.0),
    ("critical", "replace"): (0.99, 0.01, 0.0, 0.0),
    ("broken", "run"): (0.0, 0.0, 0.0, 1.0),
    ("broken", "service"): (0.30, 0.30, 0.10, 0.30),
    ("broken", "replace"): (0.98, 0.02, 0.0, 0.0),
}
# Profit of a week in thousands, and hours of downtime.
PROFIT = {
    "run": (10.0, 9.0, 7.0, 0.0),
    "service": (4.0, -2.0, -3.0, -5.0),
    "replace": (-8.0, -8.0, -9.0, -12.0),
}
HOURS = {
    "run": (0.0, 0.5, 2.0, 40.0),
    "service": (3.0, 4.0, 6.0, 40.0),
    "replace": (4.0, 4.0, 4.0, 40.0),
}
# How often operators service or replace, by condition.
HABITS = {
    "good": (0.15, 0.03),
    "worn": (0.45, 0.05),
    "critical": (0.55, 0.30),
    "broken": (0.45, 0.50),
}


def write_log(
    path: str = "maintenance.csv", machines: int = 20, weeks: int = 250, seed: int = 0
) -> int:
    """Write the log, and return its number of rows."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:  # noqa: PTH123
        writer = csv.writer(file)
        writer.writerow(["machine", "week", "condition", "decision", "profit", "hours"])
        for machine in range(machines):
            condition, last_breakdown = "good", -100
            for week in range(weeks):
                service, replace = HABITS[condition]
                if week - last_breakdown < 10:
                    service = min(service + 0.1, 1 - replace)
                shares = (1 - service - replace, service, replace)
                decision = str(rng.choice(DECISIONS, p=shares))
                at = CONDITIONS.index(condition)
                profit = PROFIT[decision][at] + rng.uniform(-1, 1)
                writer.writerow(
                    [
                        f"M{machine:02}",
                        week,
                        condition,
                        decision,
                        f"{profit:.2f}",
                        HOURS[decision][at],
                    ]
                )
                condition = str(rng.choice(CONDITIONS, p=NEXT[condition, decision]))
                last_breakdown = week if condition == "broken" else last_breakdown
    return machines * weeks


if __name__ == "__main__":
    print(f"{write_log()} rows written to maintenance.csv")
