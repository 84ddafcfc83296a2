"""What the paper ran, as data, and the runners.

Importing this package costs nothing: the runners and their results are modules of their own.
"""

from holdfast.experiments.configuration import (
    DEEP,
    PAPER,
    DeepExperiment,
    Job,
    TabularExperiment,
    TrainingJob,
)

__all__ = ["DEEP", "PAPER", "DeepExperiment", "Job", "TabularExperiment", "TrainingJob"]
