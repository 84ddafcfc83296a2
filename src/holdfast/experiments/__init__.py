"""Experiments: what is compared, as data; the runner; the engines it runs on.

Importing this package costs nothing: the runners and their results are modules of their own.
"""

from holdfast.experiments.configuration import Job, SolveSettings, TabularExperiment
from holdfast.experiments.deep_configuration import DeepExperiment, TrainingJob
from holdfast.experiments.description import read_description, read_suite, suites

__all__ = [
    "DeepExperiment",
    "Job",
    "SolveSettings",
    "TabularExperiment",
    "TrainingJob",
    "read_description",
    "read_suite",
    "suites",
]
