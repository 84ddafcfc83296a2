from collections.abc import Callable

import numpy as np
import pytest

import holdfast as hf

Values = Callable[..., np.ndarray]


@pytest.fixture
def nominal_values() -> Values:
    """Values of a policy under the nominal kernel, by a linear solve on its dense form."""

    def solve(model: hf.RobustCMDP, policy: np.ndarray, signal: np.ndarray) -> np.ndarray:
        kernel = model.transitions
        if signal.ndim == 3:
            signal = (kernel.probabilities * signal).sum(-1)
        chain = np.einsum("sa,sat->st", policy, kernel.dense())
        system = np.eye(model.states) - model.discount * chain
        return np.linalg.solve(system, (policy * signal).sum(-1))

    return solve
