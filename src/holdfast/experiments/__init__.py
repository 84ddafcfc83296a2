"""Comparisons of algorithms: descriptions, one runner, its engines, and statistics of the results.

Importing this package loads the descriptions only, not JAX.
"""

from holdfast.experiments.description import DeepExperiment, Experiment, TabularExperiment
from holdfast.experiments.jobs import Job, SolveSettings, TrainingJob
from holdfast.experiments.reading import read_description, read_suite, suites
from holdfast.experiments.robots import RobotExperiment, RobotJob

__all__ = [
    "DeepExperiment",
    "Experiment",
    "Job",
    "RobotExperiment",
    "RobotJob",
    "SolveSettings",
    "TabularExperiment",
    "TrainingJob",
    "read_description",
    "read_suite",
    "suites",
]
