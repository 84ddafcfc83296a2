"""One small simulator and one set of settings: tests that use both share their compiled programs."""

import pytest

import holdfast as hf
from holdfast.environments import TableSimulator


@pytest.fixture(scope="session")
def chain():
    return TableSimulator(hf.environments.n_chain(nodes=5), name="chain", horizon=15)


@pytest.fixture(scope="session")
def tiny():
    """Settings of two seeds, of which every algorithm has one compiled program on `chain`."""
    return {"limit_on": "discounted", "batch_size": 300, "seeds": 2}
