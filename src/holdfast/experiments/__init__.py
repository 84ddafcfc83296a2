"""What the paper ran, as data, and the runner.

Importing this package costs nothing: the runner and its results are modules of their own.
"""

from holdfast.experiments.configuration import PAPER, Job, TabularExperiment

__all__ = ["PAPER", "Job", "TabularExperiment"]
