from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from holdfast.experiments import SolveSettings, read_suite
from holdfast.experiments.results import ConstraintThreshold, Result, Results

THRESHOLDS = {"gambler": 2.5, "n-chain": 6.0, "frozen-lake": 0.7}

Fabricate = Callable[..., Results]


@pytest.fixture(scope="session")
def fabricate() -> Fabricate:
    """Makes results out of numbers: each algorithm's last reward and its iterates' margins."""

    def make(environment="gambler", *, seeds=2, error=0.0, bounds=None, **algorithms) -> Results:
        bounds = bounds or (ConstraintThreshold("utility", THRESHOLDS[environment], "utility"),)
        iterations = max(len(margins) for _, margins in algorithms.values()) - 1
        experiment = dataclasses.replace(
            read_suite("paper"),
            environments=(environment,),
            algorithms=tuple(algorithms),
            seeds=seeds,
            settings=SolveSettings(iterations=iterations),
        )
        runs: dict[str, list[Result]] = {algorithm: [] for algorithm in algorithms}
        for job in experiment.jobs():
            reward, margins = algorithms[job.algorithm]
            rows = len(margins)
            table = np.asarray(margins, float).reshape(rows, -1)
            history = {
                "reward": np.linspace(0.0, reward, rows) + 0.01 * job.seed,
                "margins": table,
                "nominal_reward": np.linspace(1.0, reward + 1, rows),
                "nominal_margins": table + 0.5,
                "kl": np.full(rows, 0.01),
                "recovered": np.zeros(rows, bool),
                "error": np.full(rows, error),
                "seconds": np.arange(rows) * 0.5,
            }
            runs[job.algorithm].append(
                Result(job, "feasible", bounds, np.full((2, 2), 0.5), history)
            )
        return Results(experiment, runs, "0" * 64, environment)

    return make
